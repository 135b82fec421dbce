"""How often the step-level rule passes in a trained window of so many steps, by what is true."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import polars as pl

from behaviortrace.bench.counted import counted
from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.norm_control import WINDOW, norm_control
from behaviortrace.evaluate.planned_power import Showing
from behaviortrace.evaluate.precision import precision_at_ground_truth
from behaviortrace.evaluate.step_null import margin_of

StepCondition = Literal["unrelated", "oracle"]
STEPS = (20, 30, 60)
RANKINGS = 11
GROUPS, SIZE = 3, 4
SHOWING = Showing(0.6, 0.2, fraction=0.5)
"""Steps of 3 groups of 4, three in ten rollouts boosted: as in recipe ``smollm2``."""
PERMUTATIONS = 1000
NOISE = 0.05
"""Of the oracle, which is a step's share of ground truth with this error."""


def step_verdicts(
    condition: StepCondition, steps: int, studies: int = 200, *, seed: int = 0
) -> dict[str, Any]:
    """How many of so many simulated studies the checklist's norm control passes.

    Args:
        condition: "unrelated": no ranking knows anything of the ground truth; "oracle": one of
            them is each step's share of it, with some error.
        steps: of the trained window.
        studies: how many.
        seed: of the studies.

    Returns:
        ``condition``, ``steps``, ``studies``, ``passes``, ``share``, its exact 95% interval ``lo``
        and ``hi``; and ``margin_alone``, the share whose margin reaches the bar, by luck or not.
    """
    passes = wide = 0
    for number in range(studies):
        rng = np.random.default_rng((seed, steps, number))
        evidence = _study(condition, steps, rng)
        found = norm_control(evidence)
        passes += found.status == "pass"
        wide += found.evidence["margin"] >= evidence.thresholds.step_margin
    return {
        "condition": condition,
        "steps": steps,
        **counted(passes, studies),
        "margin_alone": wide / studies,
    }


def bench_steps(studies: int = 200, *, seed: int = 0) -> list[dict[str, Any]]:
    """:func:`step_verdicts` of every condition and number of steps."""
    return [
        step_verdicts(condition, steps, studies, seed=seed)
        for condition in get_args(StepCondition)
        for steps in STEPS
    ]


def _study(condition: StepCondition, steps: int, rng: np.random.Generator) -> Evidence:
    chances = SHOWING.counts(SIZE)
    labelled = rng.choice(SIZE + 1, (steps, GROUPS), p=chances).sum(axis=1)
    labelled[0] = max(labelled[0], 1)  # some ground truth
    n = GROUPS * SIZE
    truth = (np.arange(n) < labelled[:, None]).ravel()
    scores = rng.normal(size=(RANKINGS + 1, steps))
    if condition == "oracle":
        scores[0] = labelled / n + NOISE * rng.normal(size=steps)
    rankings = np.repeat(scores, n, axis=1)
    luck = margin_of(list(rankings), truth, np.repeat(np.arange(steps), n), PERMUTATIONS)
    precision = [precision_at_ground_truth(each, truth) for each in rankings]
    table = pl.DataFrame(
        {
            "table": [WINDOW] * len(precision),
            "estimator": [f"e{i}" for i in range(RANKINGS)] + ["norm"],
            "target": ["t"] * RANKINGS + [None],
            "target_free": [False] * RANKINGS + [True],
            "precision": precision,
        }
    )
    summary = {"p": luck.p, "rankings": luck.rankings, "permutations": luck.permutations}
    return Evidence(step_level=table, summary={"step_margin": summary})
