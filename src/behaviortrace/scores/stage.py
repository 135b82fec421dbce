"""The score stage: every estimator, against every target, for every rollout of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from behaviortrace import estimators
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.estimators import Estimator, Inputs
from behaviortrace.estimators.tracincp import combined
from behaviortrace.records import SCORE_SCHEMA, Target, empty
from behaviortrace.scores.embeddings import PLAIN, STEP, UPDATE, Embedding, embeddings, step_means
from behaviortrace.scores.embeddings import embedding as take_embedding
from behaviortrace.scores.sketch_norms import FORMED_NEVER, NAME, squared_norm_errors, summarise

if TYPE_CHECKING:
    from behaviortrace.run import Run
    from behaviortrace.train.progress import Progress

TRAINING = "training"
"""Source of the training rollouts' scores; a draw's source is its name."""

AnyTarget = str | Target | Sequence[Target] | np.ndarray


@dataclass(frozen=True)
class Goal:
    """A target as estimators take it.

    Attributes:
        vector: (dim,), at the analysed checkpoint.
        over_checkpoints: (C, dim), in order of the checkpoints.
        learning_rates: (C,), at each of them.
    """

    vector: np.ndarray
    over_checkpoints: np.ndarray
    learning_rates: np.ndarray


def score(
    name: str,
    run: Run,
    target: AnyTarget | None = None,
    *,
    embedding: Literal["update", "plain", "plain_centered", "step"] | None = None,
    draw: str | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Score the rollouts of a run with one estimator.

    Args:
        name: of an estimator, one of ``estimators.names()``.
        run: the run.
        target: name of one of the run's targets, a :class:`Target`, one target at several
            checkpoints (for TracInCP), or a (dim,) vector; None for a target-free control.
        embedding: "update": what training minimised, the default in training; "plain": minus the
            mean log-probability of the completion, the default in a draw; "plain_centered": that
            minus its group's mean; "step": the sum of the step's update sketches, so that every
            rollout takes its step's score. A control that reads no sketches gives a rollout's own
            value, or for "step" the step's mean.
        draw: name of a draw; None for the training rollouts.
        seed: of the random control.

    Returns:
        (n,) float64, rows aligned with ``run.rollouts(draw)``; higher ranks first, NaN where
        undefined.

    Raises:
        BehaviorTraceError: unknown estimator, target, embedding or draw; shapes that disagree.

    Example:
        ``score("gas", run, "minimal_pair", embedding="plain_centered")``
    """
    unit = estimators.get(name)
    rollouts = run.rollouts(draw)
    goal = None if target is None else resolve(run, target)
    if not unit.target_free and goal is None:
        known = ", ".join(run.targets()) or "none yet"
        raise BehaviorTraceError(
            f"estimator {name!r} needs a target; give one of the run's ({known}) or a vector"
        )
    if _reads_rows_alone(unit):
        values = unit(Inputs(rows=rollouts, seed=seed))
        return step_means(rollouts["step"].to_numpy(), values) if embedding == STEP else values
    default = UPDATE if draw is None else PLAIN
    taken = take_embedding(run, rollouts, embedding or default, draw)
    inputs = taken.inputs(seed)
    if goal is not None:
        inputs = inputs.with_target(goal.vector, goal.over_checkpoints, goal.learning_rates)
    return taken.spread(unit(inputs))


def score_run(run: Run, *, progress: Progress | None = None) -> pl.DataFrame:
    """Score all rollouts of a run, training and draws, and store the table as ``scores/all``.

    Every estimator the recipe names (all where it names none) is taken on every embedding, against
    every target. A control that reads no sketches appears once with a null embedding and, in
    training, once with embedding "step" as the mean over the step's rollouts. TracInCP appears for
    the targets that were taken at two checkpoints or more.

    Beside it, ``results/sketch_norms``: how near the sketches' norms are to the exact ones.

    Args:
        run: a run with rollouts, and with targets where targeted estimators are wanted.
        progress: called with the stage "score", in embeddings.

    Returns:
        The long table, ``SCORE_SCHEMA``; ``target`` is null for target-free controls, a score NaN
        where it is undefined.

    Raises:
        BehaviorTraceError: no rollouts, or an unknown estimator.
    """
    from behaviortrace.train.progress import Clock

    wanted = run.recipe.evaluate.estimators if run.recipe is not None else None
    units = [estimators.get(name) for name in wanted or estimators.names()]
    goals = {name: resolve(run, name) for name in run.targets()}
    sources = [None, *run.draws()] if run.manifest.store(TRAINING) else run.draws()
    if not sources:
        raise BehaviorTraceError(f"{run.path} has no rollouts to score; train first")
    alone = [unit for unit in units if _reads_rows_alone(unit)]
    others = [unit for unit in units if not _reads_rows_alone(unit)]
    clock = Clock(progress, "score", sum(4 if source is None else 2 for source in sources))
    frames, done = [empty(SCORE_SCHEMA)], 0
    sketch = run.manifest.sketch or {}
    errors: dict[str, np.ndarray] = {}
    for source in sources:
        rollouts, label = run.rollouts(source), source or TRAINING
        frames += list(_control_frames(label, rollouts, alone))
        for rows in embeddings(run, rollouts, source):
            if rows.exact_norms is not None and sketch.get("hash") != FORMED_NEVER:
                # Plain sketches come first; updates are multiples of them, where there are both.
                errors.setdefault(label, squared_norm_errors(rows.sketches, rows.exact_norms))
            frames += list(_sketch_frames(label, rows, others, goals))
            done += 1
            clock.at(done)
            del rows  # its sketches may fill gigabytes, and the next ones are read now
    table = pl.concat(frames)
    run.save_table("scores/all", table)
    run.save_json(NAME, summarise(list(errors.values()), sketch))
    return table


def resolve(run: Run, target: AnyTarget) -> Goal:
    """A target, however it is given, as estimators take it.

    Of several checkpoints the analysed one is the recipe's ``draw.checkpoint``, or the last. A
    single :class:`Target` stands for itself and for the run's stored targets of its name, where
    there are any.

    Raises:
        BehaviorTraceError: the run has no target of that name.
    """
    if isinstance(target, np.ndarray):
        return Goal(target, target[None, :] if target.ndim == 1 else target, np.ones(1))
    if isinstance(target, Target):
        others = [t for t in run.targets().get(target.name, []) if t.step != target.step]
        return _goal(target, sorted([*others, target], key=lambda t: t.step))
    if isinstance(target, str):
        known = run.targets()
        if target not in known:
            raise BehaviorTraceError(
                f"{run.path} has no target {target!r} (it has: {', '.join(known) or 'none'}); "
                f"make targets with 'behaviortrace target {run.path}'"
            )
        series: Sequence[Target] = known[target]
    else:
        series = list(target)
    if not series:
        raise BehaviorTraceError("the target is an empty sequence; give at least one Target")
    step = run.recipe.draw.checkpoint if run.recipe is not None else None
    analysed = next((t for t in series if t.step == step), series[-1])
    return _goal(analysed, series)


def _goal(analysed: Target, series: Sequence[Target]) -> Goal:
    rates = [t.meta.get("learning_rate") for t in series]
    # Without known learning rates they are taken as equal; their common size does not rank.
    known = [float(rate) for rate in rates if rate is not None]
    weights = np.array(known) if len(known) == len(series) else np.ones(len(series))
    return Goal(analysed.vector, np.stack([t.vector for t in series]), weights)


def _reads_rows_alone(unit: Estimator) -> bool:
    return unit.target_free and "sketches" not in unit.needs


def _control_frames(
    source: str, rollouts: pl.DataFrame, units: Sequence[Estimator]
) -> Iterator[pl.DataFrame]:
    """Controls that read no sketches: a rollout's own value and, in training, its step's mean."""
    for unit in units:
        values = unit(Inputs(rows=rollouts))
        yield _frame(source, rollouts, None, unit, None, values)
        if source == TRAINING:
            means = step_means(rollouts["step"].to_numpy(), values)
            yield _frame(source, rollouts, STEP, unit, None, means)


def _sketch_frames(
    source: str, rows: Embedding, units: Sequence[Estimator], goals: Mapping[str, Goal]
) -> Iterator[pl.DataFrame]:
    """Scores of one embedding: each estimator that can be taken on it, against each target."""
    inputs = rows.inputs()
    inputs.prepare(
        [g.vector for g in goals.values()]
        + [combined(g.over_checkpoints, g.learning_rates) for g in goals.values()]
    )
    for unit in units:
        if not unit.columns <= set(rows.table.columns):
            continue  # it reads a column of single rollouts, which a step does not have
        if unit.target_free:
            values = rows.spread(unit(inputs))
            yield _frame(source, rows.rollouts, rows.name, unit, None, values)
            continue
        for name, goal in goals.items():
            if "targets" in unit.needs and len(goal.learning_rates) < 2:
                continue
            against = inputs.with_target(goal.vector, goal.over_checkpoints, goal.learning_rates)
            values = rows.spread(unit(against))
            yield _frame(source, rows.rollouts, rows.name, unit, name, values)


def _frame(
    source: str,
    rollouts: pl.DataFrame,
    embedding: str | None,
    unit: Estimator,
    target: str | None,
    values: np.ndarray,
) -> pl.DataFrame:
    same = {"source": source, "embedding": embedding, "estimator": unit.name, "target": target}
    return rollouts.select(
        *[pl.lit(value, dtype=pl.String).alias(column) for column, value in same.items()],
        "rollout_id",
        pl.Series("score", values, dtype=pl.Float64),
    )
