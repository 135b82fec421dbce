"""The ways to control for fluency, by name.

Apart from what applies them, so that the command line can offer them without loading SciPy.
"""

from __future__ import annotations

from typing import Literal

Control = Literal["linear", "spline"]
"""How fluency is regressed out: one pooled slope, or a cross-fit natural cubic spline."""
