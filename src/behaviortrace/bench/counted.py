"""A count of passes with its exact interval."""

from __future__ import annotations

from typing import Any

from scipy import stats


def counted(passes: int, studies: int) -> dict[str, Any]:
    """``studies``, ``passes``, their ``share`` and its exact 95% interval ``lo``, ``hi``."""
    exact = stats.binomtest(passes, studies).proportion_ci(0.95, method="exact")
    share = passes / studies
    ends = {"lo": float(exact.low), "hi": float(exact.high)}
    return {"studies": studies, "passes": passes, "share": share, **ends}
