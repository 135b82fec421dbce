"""Token level: does the gradient of the behaviour's tokens point where a target points?

Source: the paper's section 4.3 and Table 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from behaviortrace.evaluate.bootstrap import Interval
from behaviortrace.evaluate.cluster_mean import cluster_percentile, cluster_t
from behaviortrace.evaluate.clusters import by_prompt
from behaviortrace.recipe import EvaluateSettings

TOKEN_LEVEL_SCHEMA: dict[str, Any] = {
    "span": pl.String,
    "target": pl.String,
    "mean": pl.Float64,
    "lo": pl.Float64,
    "hi": pl.Float64,
    "interval": pl.String,  # what lo and hi are: "t" or "percentile"
    "percentile_lo": pl.Float64,  # the paper's interval
    "percentile_hi": pl.Float64,
    "n": pl.Int64,
    "groups": pl.Int64,
    "clusters": pl.Int64,  # prompts, all groups of one together
}
"""One row a span and target: mean cosine over n responses, interval over their clusters."""


def token_level(rows: pl.DataFrame, settings: EvaluateSettings) -> pl.DataFrame:
    """Mean cosine of each span with each target, with its intervals over clusters: the prompts,
    all groups of one together (:func:`~behaviortrace.evaluate.clusters.by_prompt`).

    Responses whose cosine is undefined (null or NaN: a zero gradient) are left out of ``n``.

    Args:
        rows: ``TOKEN_SCHEMA``, one row a response, span and target.
        settings: interval (t over clusters unless the paper's percentiles are asked for), resamples
            and seed.

    Returns:
        ``TOKEN_LEVEL_SCHEMA``; the mean is null without a defined cosine, its bounds also where
        all responses are to one prompt.
    """
    found = []
    for (span, target), part in rows.group_by("span", "target", maintain_order=True):
        defined = part.filter(pl.col("cosine").is_finite())
        cluster = by_prompt(defined)
        chosen, paper = mean_cosine(defined["cosine"].to_numpy(), cluster, settings)
        found.append(
            {
                "span": span,
                "target": target,
                "mean": chosen.point,
                "lo": chosen.lo,
                "hi": chosen.hi,
                "interval": "percentile" if chosen is paper else "t",
                "percentile_lo": paper.lo,
                "percentile_hi": paper.hi,
                "n": defined.height,
                "groups": defined["group"].n_unique(),
                "clusters": len(np.unique(cluster)),
            }
        )
    frame = pl.DataFrame(found, schema=TOKEN_LEVEL_SCHEMA)
    return frame.with_columns(pl.col(pl.Float64).replace(np.nan, None))


def mean_cosine(
    cosine: np.ndarray, cluster: np.ndarray, settings: EvaluateSettings
) -> tuple[Interval, Interval]:
    """Mean cosine with the interval that the settings ask for, and with the paper's.

    Args:
        cosine: shape (n,), finite.
        cluster: shape (n,), of each response.
        settings: interval, resamples and seed.
    """
    paper = cluster_percentile(cosine, cluster, settings.resamples, settings.seed)
    return (paper if settings.interval == "percentile" else cluster_t(cosine, cluster)), paper
