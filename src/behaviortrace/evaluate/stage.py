"""The evaluate stage: a run's rollouts, scores and probes in, its result tables out."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
import polars as pl

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate.levels import (
    ROLLOUT_LEVEL_SCHEMA,
    STEP,
    rollout_level,
    step_level,
    trained_window,
)
from behaviortrace.evaluate.precision import base_rate, ceiling
from behaviortrace.evaluate.rise import rise
from behaviortrace.evaluate.step_null import step_margin
from behaviortrace.evaluate.token import token_level
from behaviortrace.plant.emergence import responses, s_b
from behaviortrace.recipe import EvaluateSettings
from behaviortrace.run import Run

TRAINING = "training"


def evaluate(run: Run) -> dict[str, Any]:
    """Evaluate a scored run and store its results.

    Stored are the tables ``results/step_level`` (embedding "step"), ``results/rollout_precision``
    (the same precision of per-rollout scores), ``results/rollout_level`` and, beside every
    ``token_rows`` there are, ``token_level``; and the JSON ``results/summary``.

    Args:
        run: a run with scores; settings come from its recipe, or are the defaults without one.

    Returns:
        The summary: that of :func:`summarise`; ``s_b_rise``, of
        :class:`~behaviortrace.evaluate.rise.Rise`; and ``step_margin``, of
        :class:`~behaviortrace.evaluate.step_null.StepMargin`. An undefined number is None.

    Raises:
        BehaviorTraceError: the run has no rollouts or no scores.
    """
    recipe = run.recipe
    settings = recipe.evaluate if recipe else EvaluateSettings()
    cutoff = recipe.plant.cutoff_step if recipe else None
    scores = run.table("scores/all")
    rollouts = {TRAINING: run.rollouts()} | {name: run.rollouts(name) for name in run.draws()}
    _refuse_unknown_sources(scores, rollouts)

    training = rollouts[TRAINING]
    window = trained_window(step_norms(run, training, scores), cutoff)
    precision = step_level(training, scores, window)
    run.save_table("results/step_level", precision.filter(pl.col("embedding") == STEP))
    run.save_table(
        "results/rollout_precision", precision.filter(pl.col("embedding").ne_missing(STEP))
    )
    levels = [
        rollout_level(frame, scores, settings, source=name) for name, frame in rollouts.items()
    ]
    run.save_table("results/rollout_level", pl.concat(levels).select(*ROLLOUT_LEVEL_SCHEMA))
    for name in [name for name in run.manifest.tables if name.endswith("/token_rows")]:
        tokens = run.table(name)
        summarised = token_level(tokens, settings)
        run.save_table(name.replace("token_rows", "token_level"), summarised)
    by_luck = step_margin(training, scores, window, seed=settings.seed)
    probes = _probes(run)
    risen = None if probes is None else rise(probes, seed=settings.seed)
    summary = summarise(rollouts, probes, window)
    summary["s_b_rise"] = None if risen is None else dataclasses.asdict(risen)
    summary["step_margin"] = None if by_luck is None else dataclasses.asdict(by_luck)
    run.save_json("results/summary", summary)
    return summary


def step_norms(run: Run, rollouts: pl.DataFrame, scores: pl.DataFrame) -> dict[int, float]:
    """Norm of every step's embedding, by step.

    The score stage has taken it as control "norm"; only where that was not asked for are the
    sketches read again.
    """
    norms = scores.filter(
        (pl.col("source") == TRAINING)
        & (pl.col("embedding") == STEP)
        & (pl.col("estimator") == "norm")
    )
    if norms.height:
        known = rollouts.select("rollout_id", "step").join(norms, on="rollout_id")
        return dict(known.group_by("step").agg(pl.col("score").first()).iter_rows())
    sketches, step = run.sketches("update"), rollouts["step"].to_numpy()
    found = {}
    for each in np.unique(step):
        total = np.asarray(sketches[step == each], dtype=np.float64).sum(axis=0)
        found[int(each)] = float(np.linalg.norm(total))
    return found


def summarise(
    rollouts: dict[str, pl.DataFrame], probes: pl.DataFrame | None, window: list[int]
) -> dict[str, Any]:
    """The summary of a run: counts, rates and the headroom of step-level precision.

    Args:
        rollouts: by source; "training" among them.
        probes: ``PROBE_SCHEMA``, or None where nothing was probed.
        window: steps of the trained window.

    Returns:
        ``behavior_rate`` by source; ``s_b``, ``s_b_controls`` and ``s_b_responses`` (how many
        responses s_b rests on) by checkpoint step; the counts
        ``n_rollouts``, ``n_boosted``, ``n_findable``, ``steps``, ``trained_window_steps``;
        ``chance`` and ``ceiling`` of step-level precision over all rollouts, and of the trained
        window; ``ceiling_findable``, the same ceiling with only the findable rollouts as ground
        truth; ``findable_share``, the most of |GT| any gradient could find. None where undefined.
    """
    training = rollouts[TRAINING]
    step = training["step"].to_numpy()
    boosted, findable = (_flag(training, name) for name in ("boosted", "findable"))
    inside = np.isin(step, np.asarray(window, dtype=np.int64))
    n_boosted = None if boosted is None else int(boosted.sum())
    n_findable = None if findable is None else int(findable.sum())
    share = n_findable / n_boosted if n_boosted and n_findable is not None else None
    return {
        "behavior_rate": {name: frame["behavior"].mean() for name, frame in rollouts.items()},
        "s_b": _by_step(probes, "probe"),
        "s_b_controls": _by_step(probes, "control"),
        "s_b_responses": {} if probes is None else _keyed(responses(probes)),
        "n_rollouts": training.height,
        "n_boosted": n_boosted,
        "n_findable": n_findable,
        "findable_share": share,
        "steps": training["step"].n_unique(),
        "trained_window_steps": len(window),
        "chance": None if boosted is None else _defined(base_rate(boosted)),
        "ceiling": None if boosted is None else _defined(ceiling(boosted, step)),
        "chance_trained_window": None if boosted is None else _defined(base_rate(boosted[inside])),
        "ceiling_trained_window": (
            None if boosted is None else _defined(ceiling(boosted[inside], step[inside]))
        ),
        "ceiling_findable": None if findable is None else _defined(ceiling(findable, step)),
    }


def _flag(frame: pl.DataFrame, name: str) -> np.ndarray | None:
    """A Boolean column as shape (n,) bool, null as False; None where it is null throughout."""
    if frame[name].null_count() == frame.height:
        return None
    return frame[name].fill_null(False).to_numpy().astype(bool)


def _defined(value: float) -> float | None:
    return None if np.isnan(value) else value


def _by_step(probes: pl.DataFrame | None, kind: Literal["probe", "control"]) -> dict[str, float]:
    """Share of responses that show the behaviour, by checkpoint step."""
    return {} if probes is None else _keyed(s_b(probes, kind))


def _keyed(by_step: dict[int, Any]) -> dict[str, Any]:
    """The keys as JSON has them."""
    return {str(step): value for step, value in by_step.items()}


def _probes(run: Run) -> pl.DataFrame | None:
    """The probes, or None where a run has none (one imported from another engine)."""
    if not any(shard.store == "probes" for shard in run.manifest.shards):
        return None
    return run.read("probes")


def _refuse_unknown_sources(scores: pl.DataFrame, rollouts: dict[str, pl.DataFrame]) -> None:
    stray = sorted(set(scores["source"].unique()) - set(rollouts))
    if stray:
        raise BehaviorTraceError(
            f"scores/all has source {stray[0]!r}, which the run lacks; score the run again"
        )
