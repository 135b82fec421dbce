"""P5: where nearly every response shows the behaviour, fluency stands in for the label."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from behaviortrace.checklist import rows
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate.clusters import by_prompt
from behaviortrace.evaluate.scores import aligned
from behaviortrace.evaluate.within_group import NO_PAIRS, judge
from behaviortrace.pitfalls.demonstration import Demonstration, defined
from behaviortrace.recipe import EvaluateSettings

if TYPE_CHECKING:
    from behaviortrace.run import Run

TITLE = "P5: fluency stands in for a saturated label"
SCORES = ("fluency", "direction", "norm")
"""Fluency itself; GAS, group-centred, with the minimal-pair target; the plain gradient's norm."""

STRETCHES = 4
RULE = "fluency alone has a within-group AUC whose 95% interval lies above 0.5, in some draw"


def fluency(run: Run, *, stretches: int = STRETCHES) -> Demonstration:
    """Fluency as a ranking, beside direction and magnitude, where the label is more or less common.

    The rows are the run's draws, and the training rollouts cut into stretches of equally many
    steps, over which the behaviour rate moves: the mechanism says that fluency ranks the better the
    more saturated the label is.

    Args:
        run: a scored run.
        stretches: of training; fewer where there are fewer steps.

    Returns:
        One row a draw or stretch: behaviour rate, groups and those of them with both labels, the
        clusters (prompts) that intervals are over, pairs, mean fluency gap inside pairs (nats), and
        the within-group AUC of each score, raw and with fluency regressed out. Facts: in how many
        rows fluency is at or above both gradient scores.

    Raises:
        BehaviorTraceError: the run is not scored, or ``stretches`` is below 1.
    """
    if stretches < 1:
        raise BehaviorTraceError(f"stretches is {stretches}; give 1 or more")
    settings = run.recipe.evaluate if run.recipe else EvaluateSettings()
    scores = run.table("scores/all")
    parts = list(_parts(run, stretches))
    found = [_row(label, frame, scores, source, settings) for label, source, frame in parts]
    of_draws = [
        row["fluency_raw_lo"]
        for row, (_, source, _) in zip(found, parts, strict=True)
        if source != rows.TRAINING and row["fluency_raw_lo"] is not None
    ]
    shows = max(of_draws) > 0.5 if of_draws else None
    facts = _facts(found)
    return Demonstration(
        "fluency", TITLE, RULE, shows, _sentence(found, facts), _frame(found), facts
    )


def _parts(run: Run, stretches: int) -> Iterator[tuple[str, str, pl.DataFrame]]:
    """(label, source of its scores, rollouts) of each row."""
    for name in run.draws():
        yield name, name, run.rollouts(name)
    training = run.rollouts()
    steps = training["step"].unique().sort().to_numpy()
    for part in np.array_split(steps, min(stretches, len(steps))):
        inside = pl.col("step").is_between(int(part[0]), int(part[-1]))
        label = f"training, steps {part[0]} to {part[-1]}"
        yield label, rows.TRAINING, training.filter(inside)


def _row(
    label: str,
    frame: pl.DataFrame,
    scores: pl.DataFrame,
    source: str,
    settings: EvaluateSettings,
) -> dict[str, Any]:
    values = _values(frame, scores, source)
    judged = frame["behavior"].is_not_null().to_numpy().copy()
    for each in (*values.values(), frame["fluency"].fill_null(math.nan).to_numpy()):
        judged &= np.isfinite(each)
    label_of = frame["behavior"].fill_null(False).to_numpy().astype(bool)[judged]
    fluent = frame["fluency"].fill_null(math.nan).to_numpy()[judged]
    report = judge(
        label_of,
        frame["group"].to_numpy()[judged],
        {name: score[judged] for name, score in values.items()},
        fluent,
        delta=settings.matched,
        resamples=settings.resamples,
        seed=settings.seed,
        cluster=by_prompt(frame)[judged],
    )
    found: dict[str, Any] = {
        "rollouts": label,
        "behavior_rate": defined(float(label_of.mean())) if len(label_of) else None,
        **_mixed(label_of, frame["group"].to_numpy()[judged]),
        "clusters": report.clusters,
        "pairs": report.pairs,
        "fluency_gap": _gap(label_of, frame["group"].to_numpy()[judged], fluent),
    }
    for name in SCORES:
        variants = {"raw": report.raw, "residualized": report.residualized or {}}
        for variant, intervals in variants.items():
            interval = intervals.get(name, NO_PAIRS).by(settings.interval)
            if name == "fluency" and variant == "residualized":
                continue
            found |= {
                f"{name}_{variant}": defined(interval.point),
                f"{name}_{variant}_lo": defined(interval.lo),
                f"{name}_{variant}_hi": defined(interval.hi),
            }
    return found


def _values(frame: pl.DataFrame, scores: pl.DataFrame, source: str) -> dict[str, np.ndarray]:
    """The three scores of these rollouts, as far as they were taken."""
    wanted = {
        ("fluency", None, None): "fluency",
        (rows.DIRECTION["estimator"], rows.DIRECTION["embedding"], rows.DIRECTION["target"]): (
            "direction"
        ),
        ("norm", "plain", None): "norm",
    }
    own = scores.join(frame.select("rollout_id"), on="rollout_id", how="semi")
    found = {
        wanted[key]: scored.values
        for scored in aligned(frame, own, source)
        if (key := (scored.estimator, scored.embedding, scored.target)) in wanted
    }
    return {name: found[name] for name in SCORES if name in found}


def _mixed(label: np.ndarray, group: np.ndarray) -> dict[str, int]:
    """Groups, and those of them that hold both labels: a saturated label leaves few."""
    rates = [label[group == one].mean() for one in np.unique(group)]
    return {"groups": len(rates), "mixed": sum(0 < rate < 1 for rate in rates)}


def _gap(label: np.ndarray, group: np.ndarray, fluent: np.ndarray) -> float | None:
    """Mean fluency of rollouts that show the behaviour minus their siblings', over pairs."""
    from behaviortrace.evaluate.auc import group_codes, within_group_pairs

    pairs = within_group_pairs(label, *group_codes(group))
    return defined(float(pairs.difference(fluent).mean())) if len(pairs) else None


def _facts(found: list[dict[str, Any]]) -> dict[str, Any]:
    told = [row for row in found if row["fluency_raw"] is not None]
    gradient = [
        [row[f"{name}_raw"] for name in ("direction", "norm") if row[f"{name}_raw"] is not None]
        for row in told
    ]
    above = sum(
        row["fluency_raw"] >= max(others)
        for row, others in zip(told, gradient, strict=True)
        if others
    )
    return {"rows": len(told), "fluency_at_or_above_gradients": above}


def _sentence(found: list[dict[str, Any]], facts: dict[str, Any]) -> str:
    told = [row for row in found if row["fluency_raw"] is not None]
    if not told:
        return "No group holds rollouts both with and without the behaviour, so nothing is ranked."
    most = max(told, key=lambda row: row["behavior_rate"])
    least = min(told, key=lambda row: row["behavior_rate"])
    return (
        f"Fluency alone ranks at {most['fluency_raw']:.3f} where {most['behavior_rate']:.0%} of "
        f"the rollouts show the behaviour ({most['rollouts']}) and at {least['fluency_raw']:.3f} "
        f"where {least['behavior_rate']:.0%} do ({least['rollouts']}); it is at or above every "
        f"gradient score in {facts['fluency_at_or_above_gradients']} of {facts['rows']} rows."
    )


def _frame(found: list[dict[str, Any]]) -> pl.DataFrame:
    schema: dict[str, Any] = {
        "rollouts": pl.String,
        "behavior_rate": pl.Float64,
        "groups": pl.Int64,
        "mixed": pl.Int64,
        "clusters": pl.Int64,
        "pairs": pl.Int64,
        "fluency_gap": pl.Float64,
    }
    for name in SCORES:
        for variant in ("raw", "residualized"):
            if (name, variant) != ("fluency", "residualized"):
                schema |= {f"{name}_{variant}{end}": pl.Float64 for end in ("", "_lo", "_hi")}
    return pl.DataFrame(found, schema=schema)
