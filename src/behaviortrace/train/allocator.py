"""How this process gets its memory: keep what is freed, instead of asking for fresh pages again.

Training allocates and frees the same tens of megabytes in every layer. glibc hands large blocks
back to the kernel when they are freed, so that every use begins with page faults, which are dear on
virtual machines.
"""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # mallopt's parameter numbers, malloc.h
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory in this process; whether it was told.

    Left alone where another C library serves the process, or a MALLOC_ or GLIBC_TUNABLES variable
    says that the user has chosen.
    """
    chosen = any(name.startswith("MALLOC_") for name in os.environ)
    if not sys.platform.startswith("linux") or chosen or "GLIBC_TUNABLES" in os.environ:
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, _NEVER))
