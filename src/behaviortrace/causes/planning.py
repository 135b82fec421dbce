"""Which arms a leave-out takes: the removals, their controls, and random subsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from behaviortrace.causes import matching, removal
from behaviortrace.causes.arms import NOTHING, Arm, Mode
from behaviortrace.causes.removal import Request
from behaviortrace.draws.checkpoint import need_recipe
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant.intervention import How
from behaviortrace.recipe import CauseSettings, Recipe
from behaviortrace.run import Run

SUBSET = "subset"
"""Removal of the arms that the linear datamodelling score is taken of."""

DEFAULT_HOW: dict[str, How] = {"replay": "zero", "rerun": "exclude"}
"""A replay takes a rollout's own gradient out and leaves everything else as it was, which is what
an estimator claims to know; a rerun is the training that never saw the rollout."""


@dataclass(frozen=True)
class Wanted:
    """What a leave-out is to try.

    Attributes:
        requests: removals, in order.
        sizes: of each, as shares of the ground truth; the last is the one that is compared with
            controls.
        size: number of rollouts instead.
        seeds: of control sets.
        mode: "replay" or "rerun".
        how: what removal does; that of the mode where None.
        until: checkpoint that is measured; see :func:`end_of_window` where None.
        samples: completions of each prompt.
        subsets: random subsets.
        keep: share of the rollouts that a subset keeps.
    """

    requests: tuple[Request, ...]
    sizes: tuple[float, ...] = (1.0,)
    size: int | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    mode: Mode = "replay"
    how: How | None = None
    until: int | None = None
    samples: int = 16
    subsets: int = 0
    keep: float = 0.5

    @classmethod
    def of(cls, recipe: Recipe) -> Wanted:
        """What a recipe's section ``causes`` asks for; its defaults where it has none."""
        settings = recipe.causes or CauseSettings()
        texts = ["ground-truth", "random", *(f"top:{name}" for name in settings.rankings)]
        return cls(
            requests=tuple(removal.parse(text) for text in texts),
            sizes=tuple(sorted(settings.sizes)),
            seeds=tuple(settings.seeds),
            how=settings.how,
            until=settings.until,
            samples=settings.samples,
            subsets=settings.subsets,
            keep=settings.keep,
        )


def end_of_window(run: Run) -> int:
    """The first checkpoint saved once the contamination window has closed, or the last.

    Raises:
        BehaviorTraceError: the run has no checkpoint to go to.
    """
    recipe = need_recipe(run)
    saved = [step for step in run.checkpoints() if step > 0]
    if not saved:
        run.refuse_copy("train again")
        raise BehaviorTraceError(f"{run.path} has no checkpoint of a trained policy; train first")
    return next((step for step in saved if step >= recipe.plant.cutoff_step), saved[-1])


def checked_until(run: Run, until: int | None) -> int:
    """The checkpoint to measure.

    Raises:
        BehaviorTraceError: it is not saved.
    """
    if until is None:
        return end_of_window(run)
    saved = [step for step in run.checkpoints() if step > 0]
    if until not in saved:
        shown = ", ".join(map(str, saved)) or "none"
        raise BehaviorTraceError(
            f"--until {until} is no checkpoint of {run.path} (saved: {shown}); choose one of them"
        )
    return until


def plan_arms(run: Run, wanted: Wanted) -> list[Arm]:
    """The arms, the one without any removal first.

    Raises:
        BehaviorTraceError: a removal that cannot be had.
    """
    until = checked_until(run, wanted.until)
    rollouts = run.rollouts().filter(pl.col("step") < until)
    base = Arm(
        NOTHING,
        mode=wanted.mode,
        how=wanted.how or DEFAULT_HOW[wanted.mode],
        until=until,
        samples=wanted.samples,
    )
    arms = [base]
    for request in wanted.requests:
        arms += _removal(run, rollouts, request, wanted, base)
    return arms + _subsets(rollouts, wanted, base)


def _removal(
    run: Run, rollouts: pl.DataFrame, request: Request, wanted: Wanted, base: Arm
) -> list[Arm]:
    if wanted.mode == "rerun" and request.kind in ("ground-truth", "random"):
        # Chosen as training goes: another training samples and boosts other rollouts.
        if wanted.size is not None:
            raise BehaviorTraceError(
                f"--size {wanted.size} cannot be had of {request.label} in a rerun, where all that "
                "is boosted goes, or as many others; leave it out, or use --mode replay"
            )
        arm = request.kind.replace("-", "_")
        return [replace(base, removal=request.label, arm=arm)]
    if request.kind == "random":
        sizes = _sizes(rollouts, wanted, request)
        return [
            replace(base, removal=request.label, draw=seed, ids=chosen.ids)
            for size in sizes
            for seed in wanted.seeds
            for chosen in [removal.choose(run, rollouts, request, size, seed)]
        ]
    arms = []
    for size in _sizes(rollouts, wanted, request):
        chosen = removal.choose(run, rollouts, request, size)
        arms.append(replace(base, removal=request.label, ids=chosen.ids))
    for seed in wanted.seeds:
        for name, make in (("random", matching.by_chance), ("matched", matching.matched)):
            control = make(rollouts, arms[-1].ids, seed)
            arms.append(
                replace(
                    arms[0],
                    control=name,
                    draw=seed,
                    ids=control.ids,
                    balance=control.balance,
                )
            )
    return arms


def _sizes(rollouts: pl.DataFrame, wanted: Wanted, request: Request) -> Sequence[int | None]:
    """How many to remove, ascending; None: all that the request names."""
    if wanted.size is not None:
        return [wanted.size]
    truth = len(removal.ground_truth(rollouts))
    if request.kind == "file" or truth == 0:
        return [None]
    whole = [max(1, round(share * truth)) for share in wanted.sizes]
    if request.kind == "ground-truth":
        whole = [min(size, truth) for size in whole]
    return sorted(set(whole))


def _subsets(rollouts: pl.DataFrame, wanted: Wanted, base: Arm) -> list[Arm]:
    """Random subsets of the rollouts, each kept with the same chance."""
    ids = rollouts["rollout_id"].to_numpy()
    arms = []
    for draw in range(wanted.subsets):
        out = np.random.default_rng([draw, 13]).random(len(ids)) >= wanted.keep
        arms.append(replace(base, removal=SUBSET, draw=draw, ids=tuple(sorted(ids[out].tolist()))))
    return arms
