"""`behaviortrace bench verdicts`: how often the rollout-level rule passes, by what is true.

Whole studies are simulated: rollouts with gradients, scored by the registered estimators, judged by
the tables and the checklist that judge real runs. Where nothing links the ranking to the behaviour
the rule should pass at most one study in twenty; where something does, most of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import polars as pl

from behaviortrace.bench.cases import Case
from behaviortrace.bench.counted import counted
from behaviortrace.bench.steps import bench_steps
from behaviortrace.checklist import rows
from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.fluency import fluency
from behaviortrace.estimators.gas import gas
from behaviortrace.estimators.inputs import Inputs
from behaviortrace.estimators.norm import norm
from behaviortrace.evaluate.auc import group_codes, within_group_pairs
from behaviortrace.evaluate.fluency import residualize
from behaviortrace.evaluate.levels import rollout_level
from behaviortrace.recipe import EvaluateSettings
from behaviortrace.records import ROLLOUT_SCHEMA, SCORE_SCHEMA, conform
from behaviortrace.scores.embeddings import center

DIM = 64
DRAW = "draw"
SETTINGS = EvaluateSettings(resamples=100)  # of the percentile interval, which decides nothing

PAPERS_DRAW = Case("draw", groups=156, rate=0.8, rate_spread=1.0)

Condition = Literal["permuted labels", "unrelated target", "bent fluency", "oracle"]
CONDITIONS = get_args(Condition)


@dataclass(frozen=True)
class World:
    """What rollouts' gradients are made of, in units of their noise along one direction.

    Attributes:
        case: labels and fluency; 156 groups of 8, most of which show the behaviour, as in the
            paper's draw.
        behavior: length along the behaviour's direction where a rollout shows it.
        fluency: length along the direction of fluency, a nat.
        leak: cosine of any target with the direction of fluency.
        shrink: how much the log norm falls, a nat of fluency: an unlikely text has a large
            gradient.
        bent: fluency turns the gradient in one steep step instead of evenly.
    """

    case: Case = PAPERS_DRAW
    behavior: float = 0.6
    fluency: float = 2.0
    leak: float = 0.3
    shrink: float = 0.5
    bent: bool = False


WORLD = World()
BENT = World(
    Case("bent", groups=156, sizes=(8, 8), lean=0.4), fluency=2.5, leak=0.9, shrink=0.0, bent=True
)
"""Fluent texts show the behaviour, and point where fluency does; a straight line misses how."""


@dataclass(frozen=True)
class Simulated:
    """A simulated draw.

    Attributes:
        rollouts: ``ROLLOUT_SCHEMA``.
        sketches: shape (n, DIM), float32, plain gradients.
        target: shape (DIM,), of the behaviour itself.
        unrelated: shape (DIM,), of another behaviour.
    """

    rollouts: pl.DataFrame
    sketches: np.ndarray
    target: np.ndarray
    unrelated: np.ndarray


def simulate(
    rng: np.random.Generator, world: World = WORLD, groups: int | None = None
) -> Simulated:
    """One draw of the world; ``groups`` overrides their number."""
    study = world.case.study(rng, groups)
    n = len(study.label)
    fluent, own, other = np.linalg.qr(rng.normal(size=(DIM, 3)))[0].T
    aside = np.sqrt(1 - world.leak**2)
    height = np.tanh(6 * (study.fluency + 0.8)) if world.bent else study.fluency
    signal = np.outer(world.fluency * height, fluent)
    signal += np.outer(world.behavior * study.label, own)
    signal += rng.normal(size=(study.group.max() + 1, DIM))[study.group]  # the prompt's own
    size = np.exp(-world.shrink * study.fluency)
    sketches = (signal + rng.normal(size=(n, DIM))) * size[:, None]
    frame = pl.DataFrame(
        {
            "rollout_id": np.arange(n).astype(str),
            "step": np.zeros(n, dtype=np.int32),
            "group": study.group,
            "prompt": study.prompt.astype(str),
            "behavior": study.label,
            "fluency": study.fluency,
        }
    )
    return Simulated(
        conform(frame, ROLLOUT_SCHEMA),
        sketches.astype(np.float32),
        (world.leak * fluent + aside * own).astype(np.float32),
        (world.leak * fluent + aside * other).astype(np.float32),
    )


def judged(draw: Simulated, condition: Condition, rng: np.random.Generator) -> pl.DataFrame:
    """The rollout-level table of a simulated draw, as ``results/rollout_level`` holds it."""
    rollouts = draw.rollouts
    if condition == "permuted labels":
        rollouts = rollouts.with_columns(behavior=_permuted(rollouts, rng))
    direction, size = _scores(draw, condition)
    scores = pl.concat(
        [
            _long(rollouts, direction, **rows.DIRECTION),
            _long(rollouts, size, embedding="plain", estimator="norm", target=None),
        ]
    )
    return rollout_level(rollouts, scores, SETTINGS, source=DRAW)


def true_auc(world: World = WORLD, groups: int = 20_000, seed: int = 0) -> float:
    """Fluency-residualised AUC of the oracle in a very large draw: the effect as it is stated."""
    draw = simulate(np.random.default_rng((seed, 1)), world, groups)
    code, n_groups = group_codes(draw.rollouts["group"].to_numpy())
    pairs = within_group_pairs(draw.rollouts["behavior"].to_numpy(), code, n_groups)
    direction, _ = _scores(draw, "oracle")
    left = residualize(direction, draw.rollouts["fluency"].to_numpy(), code, pairs)
    return float(left.credit().mean())


def verdicts(
    condition: Condition, studies: int = 200, *, seed: int = 0, world: World = WORLD
) -> dict[str, Any]:
    """How many of so many simulated studies the checklist's rollout-level rule passes.

    Args:
        condition: "permuted labels": the behaviour's labels are shuffled inside groups.
            "unrelated target": the target is another behaviour's, with the same leak of fluency.
            "bent fluency": the same in a world where fluency acts in a step, which the rule's
            linear control does not take out: here it may pass too often, and the spline tells.
            "oracle": the target is the behaviour's own direction.
        studies: how many.
        seed: of the studies.
        world: what gradients are made of; for "bent fluency" it is ``BENT``.

    Returns:
        ``condition``, ``studies``, ``passes``, ``share``, its exact 95% interval ``lo`` and
        ``hi``, and, the rest of the rule left out, the shares whose interval lies above 0.5:
        ``above`` with the rule's linear control of fluency, ``above_spline`` with a spline.
    """
    if condition == "bent fluency":
        world = BENT
    passes, above = 0, dict.fromkeys(("residualized", "residualized_spline"), 0)
    for number in range(studies):
        rng = np.random.default_rng((seed, 0, number))
        table = judged(simulate(rng, world), condition, rng)
        passes += fluency(Evidence(rollout_level=table)).status == "pass"
        for variant in above:
            found = rows.direction(table, DRAW, variant)
            lower = None if found is None else rows.finite(found["lo"])
            above[variant] += lower is not None and lower > 0.5
    return {
        "condition": condition,
        **counted(passes, studies),
        "above": above["residualized"] / studies,
        "above_spline": above["residualized_spline"] / studies,
    }


def bench_verdicts(
    studies: int = 200,
    *,
    seed: int = 0,
    conditions: Iterable[Condition] = CONDITIONS,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """:func:`verdicts` of every condition.

    Returns:
        ``oracle_auc``, the effect the oracle has, ``conditions``, a row each, and ``steps``, of
        :func:`~behaviortrace.bench.steps.bench_steps`.
    """
    every = list(conditions)
    total = len(every) + 1  # and the step level
    report = progress or _silent
    found = []
    for number, condition in enumerate(every):
        report("verdicts", number, total)
        found.append(verdicts(condition, studies, seed=seed))
    report("verdicts", len(every), total)
    steps = bench_steps(studies, seed=seed)
    report("verdicts", total, total)
    return {"oracle_auc": true_auc(seed=seed), "conditions": found, "steps": steps}


def _silent(stage: str, done: int, total: int) -> None:
    """The progress that shows nothing."""


def _scores(draw: Simulated, condition: Condition) -> tuple[np.ndarray, np.ndarray]:
    """The direction score and the norm of every rollout, by the registered estimators."""
    centered = draw.sketches.copy()
    center(draw.rollouts["group"].to_numpy(), centered)
    unrelated = condition in ("unrelated target", "bent fluency")
    target = draw.unrelated if unrelated else draw.target
    direction = gas(Inputs(draw.rollouts, sketches=centered, target=target))
    return direction, norm(Inputs(draw.rollouts, sketches=draw.sketches))


def _permuted(rollouts: pl.DataFrame, rng: np.random.Generator) -> pl.Series:
    """The labels, shuffled inside each group."""
    group, label = rollouts["group"].to_numpy(), rollouts["behavior"].to_numpy()
    shuffled = np.empty_like(label)
    # Both orders list the groups one after another; the second is random inside them.
    shuffled[np.argsort(group, kind="stable")] = label[np.lexsort((rng.random(len(group)), group))]
    return pl.Series("behavior", shuffled)


def _long(rollouts: pl.DataFrame, score: np.ndarray, **names: str | None) -> pl.DataFrame:
    columns = {name: pl.lit(value) for name, value in names.items()}
    frame = rollouts.select("rollout_id").with_columns(
        source=pl.lit(DRAW), score=pl.Series(score), **columns
    )
    return conform(frame, SCORE_SCHEMA)
