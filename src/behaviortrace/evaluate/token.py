"""Token level: does the gradient of the behaviour's tokens point where a target points?

Source: the paper's section 4.3 and Table 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from behaviortrace.evaluate.bootstrap import cluster_mean

TOKEN_LEVEL_SCHEMA: dict[str, Any] = {
    "span": pl.String,
    "target": pl.String,
    "mean": pl.Float64,
    "lo": pl.Float64,
    "hi": pl.Float64,
    "n": pl.Int64,
    "groups": pl.Int64,
}
"""One row a span and target: mean cosine over n responses, interval over their groups."""


def token_level(rows: pl.DataFrame, *, resamples: int = 5000, seed: int = 0) -> pl.DataFrame:
    """Mean cosine of each span with each target, with a percentile interval over groups.

    Responses whose cosine is undefined (null or NaN: a zero gradient) are left out of ``n``.

    Args:
        rows: ``TOKEN_SCHEMA``, one row a response, span and target.
        resamples: bootstrap resamples of whole groups.
        seed: of the resampling.

    Returns:
        ``TOKEN_LEVEL_SCHEMA``; the mean is null without a defined cosine, its bounds also where
        all responses come from one group.
    """
    found = []
    for (span, target), part in rows.group_by("span", "target", maintain_order=True):
        defined = part.filter(pl.col("cosine").is_finite())
        interval = cluster_mean(
            defined["cosine"].to_numpy(), defined["group"].to_numpy(), resamples, seed
        )
        found.append(
            {
                "span": span,
                "target": target,
                "mean": interval.point,
                "lo": interval.lo,
                "hi": interval.hi,
                "n": defined.height,
                "groups": defined["group"].n_unique(),
            }
        )
    frame = pl.DataFrame(found, schema=TOKEN_LEVEL_SCHEMA)
    return frame.with_columns(pl.col(pl.Float64).replace(np.nan, None))
