"""What each control leaves of a ranking, over all seeds and draws. Descriptive: nothing is judged.

The decisive result is one ranking under one control. Beside it stand the same ranking under the
others, the in-context direction, and the controls themselves as rankings.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from behaviortrace.checklist import rows
from behaviortrace.checklist.evidence import Replicate
from behaviortrace.checklist.replication import components_of
from behaviortrace.errors import BehaviorTraceError

CONTROL_SCHEMA: dict[str, Any] = {
    "ranking": pl.String,
    "variant": pl.String,  # of within-group AUC, as in the rollout-level table
    "replicates": pl.Int64,
    "mean": pl.Float64,  # over seeds
    "lo": pl.Float64,
    "hi": pl.Float64,
    "between_seeds": pl.Float64,  # standard deviation
    "between_draws": pl.Float64,
    "within_draw": pl.Float64,  # standard error
    "reason": pl.String,  # why it is undefined
}
"""One row a ranking and variant, over the draws of all runs."""

RANKINGS: dict[str, dict[str, str]] = {
    "direction, minimal pair": rows.DIRECTION,
    "direction, in-context": {**rows.DIRECTION, "target": "in_context"},
    "norm": {"embedding": "plain", "estimator": "norm"},
    "fluency": {"estimator": "fluency"},
}
VARIANTS = ("raw", "residualized", "residualized_spline", "residualized_norm")
"""Without "matched": a handful of pairs a draw says nothing of seeds."""


def control_rows(merged: pl.DataFrame) -> pl.DataFrame:
    """Mean over seeds of each ranking's within-group AUC under each control.

    Args:
        merged: the sweep's rows.

    Returns:
        ``CONTROL_SCHEMA``. Draws decide, as in the checklist; fluency is given raw alone.
    """
    held = "variant" in merged.columns  # no run has finished otherwise
    found = []
    for name, which in RANKINGS.items():
        for variant in VARIANTS[:1] if name == "fluency" else VARIANTS:
            part = rows.where(
                merged if held else None,
                level="rollout_level",
                label="behavior",
                variant=variant,
                **which,
            )
            found.append({"ranking": name, "variant": variant, **_over_all(part)})
    return pl.DataFrame(found, schema=CONTROL_SCHEMA)


def _over_all(part: pl.DataFrame | None) -> dict[str, Any]:
    if part is None:
        return {"replicates": 0, "reason": "no run evaluated it"}
    known = part.filter(
        pl.col("draw").is_not_null(), pl.all_horizontal(pl.col("auc", "lo", "hi").is_finite())
    ).sort("seed", "draw")
    replicates = [
        Replicate(*each) for each in known.select("seed", "draw", "auc", "lo", "hi").iter_rows()
    ]
    try:
        components = components_of(replicates)
    except BehaviorTraceError as error:
        return {"replicates": len(replicates), "reason": str(error)}
    return {
        "replicates": len(replicates),
        "mean": components.mean.point,
        "lo": components.mean.lo,
        "hi": components.mean.hi,
        "between_seeds": components.between_seeds.point,
        "between_draws": components.between_draws.point,
        "within_draw": components.within_draw.point,
    }
