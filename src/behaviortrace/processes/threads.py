"""How a process that works at a run is kept to its share of the cores."""

from __future__ import annotations

_LIBRARIES = ("OMP", "MKL", "OPENBLAS", "NUMBA")


def environment(threads: int) -> dict[str, str]:
    """The variables that keep a process's libraries to so many threads."""
    return {f"{name}_NUM_THREADS": str(threads) for name in _LIBRARIES} | {
        "POLARS_MAX_THREADS": str(threads)
    }
