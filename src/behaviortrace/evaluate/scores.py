"""Scores from the long table, aligned with the rollouts they are scores of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from behaviortrace.errors import BehaviorTraceError


@dataclass(frozen=True)
class Scored:
    """The scores of all rollouts of a source by one estimator.

    Attributes:
        embedding: what was scored; None where the estimator uses none.
        estimator: its name.
        target: None for a target-free control.
        values: shape (n,), aligned with the rollouts; NaN where there is no score.
    """

    embedding: str | None
    estimator: str
    target: str | None
    values: np.ndarray

    @property
    def key(self) -> dict[str, Any]:
        """The columns that name it in a result table."""
        return {
            "embedding": self.embedding,
            "estimator": self.estimator,
            "target": self.target,
            "target_free": self.target is None,
        }


def aligned(rollouts: pl.DataFrame, scores: pl.DataFrame, source: str) -> list[Scored]:
    """The scores of a source, each aligned with its rollouts, in order of appearance.

    Args:
        rollouts: n rows with ``rollout_id``.
        scores: ``SCORE_SCHEMA``; rows of other sources are ignored.
        source: "training" or the name of a draw.

    Raises:
        BehaviorTraceError: a score of an unknown rollout, or two of one rollout.
    """
    numbered = rollouts.select("rollout_id").with_row_index("row")
    placed = scores.filter(pl.col("source") == source).join(
        numbered, on="rollout_id", how="left", maintain_order="left"
    )
    if placed["row"].null_count():
        raise BehaviorTraceError(
            f"scores/all has {placed['row'].null_count()} scores of rollouts that source "
            f"{source!r} lacks; score the run again"
        )
    found = []
    names = ["embedding", "estimator", "target"]
    for (embedding, estimator, target), part in placed.group_by(names, maintain_order=True):
        rows = part["row"].to_numpy()
        if len(np.unique(rows)) != len(rows):
            raise BehaviorTraceError(
                f"scores/all scores a rollout of source {source!r} twice by {estimator!r} "
                f"(embedding {embedding}, target {target}); score the run again"
            )
        values = np.full(rollouts.height, np.nan)
        values[rows] = part["score"].fill_null(math.nan).to_numpy()
        found.append(Scored(embedding, estimator, target, values))
    return found
