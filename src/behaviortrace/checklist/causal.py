"""Does removing what a ranking names remove the behaviour?"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from behaviortrace.checklist import rows
from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.registry import Finding, check, not_run
from behaviortrace.evaluate.multiplicity import holm

_LEVEL = 0.05
_WAY = {"replay": "replayed", "rerun": "trained again"}


@check(
    name="causal",
    title="Removing what a ranking names does more than removing matched rollouts",
    order=77,
)
def causal(evidence: Evidence) -> Finding:
    """Pass where the removal of some targeted ranking's top beats matched removal.

    Matched rollouts have the same gradient norms, fluencies and steps, so that magnitude alone
    cannot explain the drop of s_b. The interval of the difference lies above zero, and its p-value
    is at most 0.05 after Holm's adjustment over the targeted rankings that were tried.
    """
    table = evidence.leave_out
    if table is None:
        return not_run("nothing was taken out of training; `behaviortrace leave-out RUN` does")
    matched = table.filter((pl.col("control") == "matched") & pl.col("lo").is_not_null())
    tried = matched.filter(pl.col("targeted").fill_null(False))
    if tried.is_empty():
        return not_run("no targeted ranking's top was removed beside matched rollouts")
    adjusted = holm(tried["p"].cast(pl.Float64).to_numpy())
    tried = tried.with_columns(p_holm=pl.Series(adjusted))
    beats = tried.filter((pl.col("lo") > 0) & (pl.col("p_holm") <= _LEVEL))
    best = tried.sort("effect", descending=True).row(0, named=True)
    others = [
        _told(row)
        for name in ("ground-truth", "top:norm")
        for row in matched.filter(pl.col("removal") == name).head(1).iter_rows(named=True)
    ]
    beside = f"; {', '.join(others)}" if others else ""
    return Finding(
        "pass" if beats.height else "fail",
        f"{_told(best)} more than matched rollouts ({_WAY[best['mode']]}); of {tried.height} "
        f"targeted rankings {beats.height} do so after Holm{beside}",
        {
            "tried": tried.height,
            "beat": sorted(set(beats["removal"].to_list())),
            "best": _numbers(best),
            "p_holm": float(np.nanmin(adjusted)) if np.isfinite(adjusted).any() else None,
        },
    )


def _told(row: dict[str, Any]) -> str:
    what = f"without the {row['size']:.0f} of {row['removal']}"
    return f"{what} s_b falls by {row['effect']:+.3f} [{row['lo']:+.3f}, {row['hi']:+.3f}]"


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    names = ("effect", "lo", "hi", "p", "rate", "rate_control", "rate_nothing")
    found = {name: rows.finite(row[name]) for name in names}
    return {"removal": row["removal"], "mode": row["mode"], "size": row["size"], **found}
