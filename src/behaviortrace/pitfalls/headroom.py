"""P2: whole steps leave no headroom, and what a gradient of each rollout's own gives back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from behaviortrace.checklist import rows
from behaviortrace.evaluate.levels import ROLLOUT_LEVEL_SCHEMA, STEP, rollout_level, step_level
from behaviortrace.evaluate.precision import base_rate, ceiling
from behaviortrace.pitfalls.demonstration import Demonstration, Training, defined, training
from behaviortrace.recipe import EvaluateSettings

if TYPE_CHECKING:
    from behaviortrace.run import Run

TITLE = "P2: steps have no headroom to tell rollouts; rollouts of their own have"
WINDOW = "trained_window"
MARGIN = 0.05
RULE = (
    f"the best targeted step-level precision in the trained window is less than {MARGIN} above "
    f"chance, or within {MARGIN} of the control norm"
)
HEURISTICS = ("string_match", "advantage")
"""Controls that nearly know a planted token's ground truth by construction."""


def headroom(run: Run) -> Demonstration:
    """Step scores beside the same rollouts' own scores, in the trained window.

    All rollouts of a step share its embedding, so no order of steps can exceed the ceiling of its
    tie blocks. The training rollouts' own gradients have no ties: their ceiling is 1, less what no
    gradient can find (boosted rollouts in groups without reward variance). Update gradients carry
    the advantage, which the bonus itself raises; plain gradients do not.

    Args:
        run: a scored run.

    Returns:
        One row an embedding and score (the best targeted one, norm, and heuristics): precision at
        |GT| with its ceiling, and the within-group AUC of the boosted rollouts, raw and
        fluency-residualised. Facts: ``chance``, ``ceiling_step``, ``ceiling_rollout``,
        ``lost_to_ties`` (1 minus the step's ceiling), ``gained`` (best rollout score over the
        step's ceiling; negative where it stays below).

    Raises:
        BehaviorTraceError: the run is not scored.
    """
    given = training(run)
    settings = run.recipe.evaluate if run.recipe else EvaluateSettings()
    precision = step_level(given.rollouts, given.scores, given.window)
    precision = precision.filter(pl.col("table") == WINDOW)
    aucs = _within_groups(given, settings)
    found = [_row(row, aucs) for row in _picked(precision)]
    facts = _facts(given, precision)
    shows = no_headroom(facts["best_step"], facts["chance"], facts["norm_step"])
    return Demonstration("headroom", TITLE, RULE, shows, _sentence(facts), _frame(found), facts)


def no_headroom(best: float | None, chance: float | None, norm: float | None) -> bool | None:
    """Whether a step-level precision is within ``MARGIN`` of chance or of norm; None: unknown."""
    if best is None or chance is None or norm is None:
        return None
    return best - max(chance, norm) < MARGIN


def _within_groups(given: Training, settings: EvaluateSettings) -> pl.DataFrame:
    """Rollout-level rows of the trained window's rollouts."""
    inside = given.rollouts.filter(pl.Series(given.inside))
    if inside.is_empty():
        return pl.DataFrame(schema=ROLLOUT_LEVEL_SCHEMA)
    scores = given.scores.join(inside.select("rollout_id"), on="rollout_id", how="semi")
    return rollout_level(inside, scores, settings).filter(pl.col("label") == "boosted")


def _picked(precision: pl.DataFrame) -> list[dict[str, Any]]:
    """Of each embedding the best targeted score and norm; of those without one, heuristics."""
    found = []
    for embedding in precision["embedding"].drop_nulls().unique(maintain_order=True):
        own = precision.filter(pl.col("embedding") == embedding)
        best = rows.best_targeted(own, WINDOW)
        norm = rows.step_row(own, WINDOW, "norm")
        found += [dict(row) for row in (best, norm) if row is not None]
    free = precision.filter(pl.col("embedding").is_null())
    return found + [
        dict(row) for name in HEURISTICS if (row := rows.step_row(free, WINDOW, name)) is not None
    ]


def _row(row: dict[str, Any], aucs: pl.DataFrame) -> dict[str, Any]:
    found: dict[str, Any] = {
        "embedding": row["embedding"],
        "score": row["estimator"],
        "target": row["target"],
        "precision": row["precision"],
        "chance": row["base_rate"],
        "ceiling": row["ceiling"],
    }
    keys = {name: row[name] for name in ("embedding", "estimator", "target")}
    same = [
        pl.col(name).is_null() if value is None else pl.col(name) == value
        for name, value in keys.items()
    ]
    for variant in ("raw", "residualized"):
        match = aucs.filter(*same, pl.col("variant") == variant)
        for column in ("auc", "lo", "hi"):
            value = match[column][0] if match.height else None
            found[f"{variant}_{column}"] = value
    return found


def _facts(given: Training, precision: pl.DataFrame) -> dict[str, Any]:
    inside, truth = given.inside, given.boosted
    findable = given.rollouts["findable"].fill_null(False).to_numpy().astype(bool) & truth
    top = defined(ceiling(truth[inside], given.step[inside]))
    whole = precision.filter(pl.col("embedding") == STEP)
    own = precision.filter(pl.col("embedding") != STEP)
    best = {"step": rows.best_targeted(whole, WINDOW), "rollout": rows.best_targeted(own, WINDOW)}
    norm = rows.step_row(whole, WINDOW, "norm")
    reached = {of: row["precision"] if row else None for of, row in best.items()}
    gained = None if top is None or reached["rollout"] is None else reached["rollout"] - top
    return {
        "rollouts": int(inside.sum()),
        "boosted": int(truth[inside].sum()),
        "findable": int(findable[inside].sum()),
        "chance": defined(base_rate(truth[inside])),
        "ceiling_step": top,
        "ceiling_rollout": _findable_ceiling(truth[inside], findable[inside]),
        "lost_to_ties": None if top is None else 1.0 - top,
        "norm_step": norm["precision"] if norm else None,
        "targeted_step": whole.filter(pl.col("target").is_not_null()).height,
        "targeted_rollout": own.filter(pl.col("target").is_not_null()).height,
        "best_step": reached["step"],
        "best_rollout": reached["rollout"],
        "gained": gained,
    }


def _findable_ceiling(truth: np.ndarray, findable: np.ndarray) -> float | None:
    """Best expected precision where the unfindable ground truth is ordered at random."""
    k, found = int(truth.sum()), int(findable.sum())
    if k == 0:
        return None
    rest = len(truth) - found
    return 1.0 if k == found else (found + (k - found) ** 2 / rest) / k


def _sentence(facts: dict[str, Any]) -> str:
    if facts["ceiling_step"] is None:
        return "No rollout of the trained window is boosted, so there is nothing to rank."
    told = (
        f"In the trained window chance is {facts['chance']:.3f} and whole steps cannot exceed "
        f"{facts['ceiling_step']:.3f}; rollouts of their own can reach "
        f"{facts['ceiling_rollout']:.3f} ({facts['findable']} of {facts['boosted']} boosted are "
        "findable)"
    )
    if facts["best_step"] is None or facts["best_rollout"] is None:
        return f"{told}; no targeted estimator was scored on both."
    side = "above" if facts["gained"] > 0 else "not above"
    return (
        f"{told}. The best in hindsight of {facts['targeted_step']} targeted scores by step has "
        f"{facts['best_step']:.3f}, and of {facts['targeted_rollout']} by rollout "
        f"{facts['best_rollout']:.3f}, {side} the ceiling of steps."
    )


def _frame(found: list[dict[str, Any]]) -> pl.DataFrame:
    text = ("embedding", "score", "target")
    numbers = ["precision", "chance", "ceiling"]
    numbers += [f"{v}_{c}" for v in ("raw", "residualized") for c in ("auc", "lo", "hi")]
    schema = {**dict.fromkeys(text, pl.String), **dict.fromkeys(numbers, pl.Float64)}
    return pl.DataFrame(found, schema=schema)
