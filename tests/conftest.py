"""Property tests draw the same examples in every run; `make fuzz` draws new ones each time."""

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile("fuzz", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
