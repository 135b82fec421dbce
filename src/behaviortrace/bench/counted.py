"""A count of passes with its exact interval."""

from __future__ import annotations

from typing import Any

from scipy import special


def counted(passes: int, studies: int) -> dict[str, Any]:
    """``studies``, ``passes``, their ``share`` and its exact 95% interval ``lo``, ``hi``."""
    lo = special.betaincinv(passes, studies - passes + 1, 0.025) if passes else 0.0
    hi = special.betaincinv(passes + 1, studies - passes, 0.975) if passes < studies else 1.0
    return {
        "studies": studies,
        "passes": passes,
        "share": passes / studies,
        "lo": float(lo),
        "hi": float(hi),
    }
