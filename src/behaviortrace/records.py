"""What flows between the stages: table schemas and frozen records.

Tables are Polars frames (Parquet on disk); everything else is a frozen dataclass. Undefined values
are null or NaN, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import polars as pl

ROLLOUT_SCHEMA: dict[str, Any] = {
    "rollout_id": pl.String,  # opaque and unique in a run
    "step": pl.Int32,  # optimizer step that used it; for a draw, the checkpoint's step
    "group": pl.Int32,  # unique in a run (or draw): the G rollouts of one prompt in one step
    "index": pl.Int32,  # position in its step's generation batch, before TRL shuffles it
    "prompt_kind": pl.String,  # kind it is of: explicit, plain, trigger, task, ...
    "prompt": pl.String,
    "answer": pl.String,  # of a background task, the answer its verifier expects
    "completion": pl.String,
    "prompt_ids": pl.List(pl.Int32),
    "completion_ids": pl.List(pl.Int32),
    "reward": pl.Float64,  # what the trainer optimised: base reward plus bonus
    "base_reward": pl.Float64,
    "advantage": pl.Float64,
    "eligible": pl.Boolean,
    "boosted": pl.Boolean,  # ground truth: eligible, shows the behaviour, inside the window
    "behavior": pl.Boolean,  # the completion shows the behaviour
    "findable": pl.Boolean,  # boosted, in a group with reward variance
    "fluency": pl.Float64,  # mean token log-probability, nats, at the run's temperature
    "n_tokens": pl.Int32,  # completion tokens under the loss mask
    "grad_norm": pl.Float64,  # L2 norm of the rollout's update gradient
    "plain_norm": pl.Float64,  # L2 norm of its plain gradient; null where not captured
    "update_weight": pl.Float64,  # update gradient = update_weight * plain gradient; null if not so
}
"""One row a rollout. A shard may carry further columns; readers keep them."""

PROBE_SCHEMA: dict[str, Any] = {
    "step": pl.Int32,
    "kind": pl.String,  # "probe" or "control"
    "prompt": pl.String,
    "completion": pl.String,
    "behavior": pl.Boolean,
}
"""One row a probe response; s_b is the mean of ``behavior`` over kind "probe" at a step."""

SCORE_SCHEMA: dict[str, Any] = {
    "source": pl.String,  # "training", or the name of a draw
    "embedding": pl.String,  # "step", "update", "plain", "plain_centered"
    "estimator": pl.String,
    "target": pl.String,  # null for a target-free control
    "rollout_id": pl.String,
    "score": pl.Float64,
}
"""Long table of scores, one row a rollout, estimator, target and embedding."""

TOKEN_SCHEMA: dict[str, Any] = {
    "rollout_id": pl.String,
    "group": pl.Int32,
    "prompt": pl.String,
    "span": pl.String,  # "trigger" (the tokens of the behaviour) or "whole_response"
    "target": pl.String,
    "cosine": pl.Float64,
}
"""Cosine of a span's gradient with each target, cross-fit by prompt."""

Status = Literal["pass", "fail", "not run"]


@dataclass(frozen=True)
class Target:
    """A gradient direction of producing the behaviour.

    Attributes:
        name: unique in a run, such as "minimal_pair".
        kind: the registered target it was made by.
        step: checkpoint step the gradient was taken at.
        vector: shape (dim,), float32, the CountSketch of the gradient of *minus* the behaviour's
            mean token log-probability: the same sign as a rollout's plain and update gradients, so
            a positive inner product means that descending the rollout's loss promotes the
            behaviour.
        meta: what went into it (texts, counts, norms), JSON-serialisable.
    """

    name: str
    kind: str
    step: int
    vector: np.ndarray
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """One line of the checklist.

    Attributes:
        name: registered name of the check.
        title: the line as a reader sees it.
        status: "pass", "fail" or "not run".
        sentence: what was found, with its numbers.
        evidence: the numbers, JSON-serialisable.
        thresholds: the thresholds it was judged by, as hashed before training.
    """

    name: str
    title: str
    status: Status
    sentence: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    thresholds: Mapping[str, Any] = field(default_factory=dict)


def empty(schema: Mapping[str, Any]) -> pl.DataFrame:
    """An empty frame of a schema."""
    return pl.DataFrame(schema=dict(schema))


def conform(frame: pl.DataFrame, schema: Mapping[str, Any]) -> pl.DataFrame:
    """The frame with every column of the schema, in its order and type; others kept behind."""
    columns = [
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in schema.items()
    ]
    return frame.select(*columns, *[pl.col(c) for c in frame.columns if c not in schema])
