"""The leave-out stage: arms are made by processes, compared, and the tables kept in the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from behaviortrace.causes import removal
from behaviortrace.causes.arms import FOLDER, NOTHING, Arm, Outcome, load, place
from behaviortrace.causes.effects import (
    ARMS,
    CURVES,
    EFFECTS,
    LDS,
    LDS_SCHEMA,
    arm_table,
    curves,
    effects,
    merged,
    rank_correlation,
)
from behaviortrace.causes.jobs import shares
from behaviortrace.causes.planning import SUBSET, Wanted, plan_arms
from behaviortrace.causes.ranking import Ranking
from behaviortrace.draws.checkpoint import need_recipe
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.processes.executors import Standing, Watch, execute, make_executor
from behaviortrace.processes.locks import alone
from behaviortrace.run import Run, atomic

TRAINED = ("trained", "drawn", "scored", "evaluated", "complete")
_STATUS_REMEDY = "finish it with 'behaviortrace run ... --resume'"


@dataclass(frozen=True)
class LeaveOut:
    """What a leave-out found.

    Attributes:
        arms: rows of ``ARM_SCHEMA``.
        effects: rows of ``EFFECT_SCHEMA``.
        curves: s_b by number removed.
        lds: rows of ``LDS_SCHEMA``; empty without subsets.
    """

    arms: pl.DataFrame
    effects: pl.DataFrame
    curves: pl.DataFrame
    lds: pl.DataFrame


def nothing(standings: Sequence[Standing]) -> None:
    """The callback that shows nothing."""


def planned(run: Run, wanted: Wanted) -> list[Arm]:
    """The arms of a leave-out, after the run was found fit for one.

    Raises:
        BehaviorTraceError: the run is not trained to its end, is a copy, or a removal cannot be
            had.
    """
    if run.manifest.status not in TRAINED:
        raise BehaviorTraceError(
            f"{run.path} is not trained to its end (status {run.manifest.status!r}); "
            f"{_STATUS_REMEDY}"
        )
    run.refuse_copy("train again")
    return plan_arms(run, wanted)


def leave_out(
    run: Run,
    wanted: Wanted,
    *,
    executor: str = "local",
    workers: int = 1,
    threads: int = 1,
    watch: Watch = nothing,
) -> LeaveOut:
    """Train a run's counterfactuals, measure them, and keep what they say.

    Arms that have an outcome are not made again. The tables hold the arms of this call and those of
    earlier ones that were measured at the same checkpoint with as many samples.

    Args:
        run: a trained run with a recipe.
        wanted: what to try.
        executor: "local" or "ray".
        workers: processes at a time.
        threads: of each.
        watch: called with where they stand.

    Raises:
        BehaviorTraceError: the run is not fit, or a share of the arms failed.
    """
    arms = planned(run, wanted)
    home = run.path / FOLDER
    atomic.make_folder(home / "progress")
    with alone(home / ".lock", f"another leave-out is at work in {home}; wait for it"):
        jobs = shares(run, arms, workers, threads)
        if jobs:
            make = make_executor(executor, len(jobs), threads)
            ended = execute(make, jobs, len(jobs), changed=lambda job, told: None, watch=watch)
            failed = [told.reason for told in ended if told.state == "failed"]
            if failed:
                raise BehaviorTraceError(f"{failed[0]}; the arms that were made are kept")
        return summarise(run, arms, wanted)


def summarise(run: Run, arms: Sequence[Arm], wanted: Wanted) -> LeaveOut:
    """Compare arms that have been made, and store the tables in the run.

    Raises:
        BehaviorTraceError: an arm has no outcome, or the disk is full.
    """
    made = [(arm, _outcome(run, arm)) for arm in arms]
    table = arm_table(made)
    if run.has(ARMS):
        table = merged(run.table(ARMS), table)
    compared = [r.ranking for r in wanted.requests if r.ranking is not None]
    scores = lds(run, made, compared)
    if scores.is_empty() and run.has(LDS):
        scores = run.table(LDS)
    found = LeaveOut(table, effects(table), curves(table), scores)
    names = zip((ARMS, EFFECTS, CURVES, LDS), vars(found).values(), strict=True)
    for name, frame in names:
        run.save_table(name, frame)
    return found


def kept(run: Run) -> dict[str, pl.DataFrame]:
    """The tables of a run's leave-out: "effects", "curves" and "lds"."""
    return {"effects": run.table(EFFECTS), "curves": run.table(CURVES), "lds": run.table(LDS)}


def told_again(run: Run) -> None:
    """Judge a run again by its checklist and write its page, where it was evaluated before."""
    from behaviortrace.checklist.stage import check
    from behaviortrace.report.stage import report

    if run.has("results/summary"):
        check(run)
        report(run)


def lds(run: Run, made: Sequence[tuple[Arm, Outcome]], rankings: Sequence[Ranking]) -> pl.DataFrame:
    """Linear datamodelling scores: do summed scores tell what subsets of the rollouts teach?

    For every random subset, a ranking predicts the sum of the scores of the rollouts it keeps; the
    score is the rank correlation of that with what the policy does that was trained on the subset.
    Source: Park et al. 2023 (TRAK), section 2, with replays in place of supervised trainings. The
    number of kept rollouts that are ground truth is a prediction too ("ground-truth").

    Args:
        run: the run.
        made: arms with outcomes; those of subsets are used.
        rankings: to be judged.

    Returns:
        Rows of ``LDS_SCHEMA``.
    """
    subsets = [(arm, outcome) for arm, outcome in made if arm.removal == SUBSET]
    if not subsets:
        return pl.DataFrame(schema=LDS_SCHEMA)
    until = subsets[0][0].until
    rollouts = run.rollouts().filter(pl.col("step") < until)
    ids = rollouts["rollout_id"]
    kept = np.stack([~ids.is_in(list(arm.ids)).to_numpy() for arm, _ in subsets]).astype(float)
    measures = {
        "rate": [outcome.measurement.rate() for _, outcome in subsets],
        "margin": [outcome.measurement.margin for _, outcome in subsets],
    }
    truth = ids.is_in(removal.ground_truth(rollouts)).to_numpy().astype(float)
    claims: list[tuple[str, bool, np.ndarray]] = [("ground-truth", True, truth)]
    for ranking in rankings:
        values = np.nan_to_num(removal.aligned(run, rollouts, ranking))
        claims.append((ranking.label, ranking.target_free, values))
    rows: list[dict[str, Any]] = []
    for name, target_free, values in claims:
        for measure, measured in measures.items():
            if any(value is None for value in measured):
                continue
            found = rank_correlation(kept @ values, np.array(measured, dtype=float))
            rows.append(
                {
                    "ranking": name,
                    "target_free": target_free,
                    "measure": measure,
                    "subsets": len(subsets),
                    "lds": _defined(found.point),
                    "lo": _defined(found.lo),
                    "hi": _defined(found.hi),
                }
            )
    return pl.DataFrame(rows, schema=LDS_SCHEMA)


def exactness(run: Run, until: int) -> float:
    """Largest difference of any weight between a replay of everything and what training saved.

    Raises:
        BehaviorTraceError: a training that cannot be replayed.
    """
    from behaviortrace.causes.learning import Log, begin, learn
    from behaviortrace.train.policy import load_policy

    log = Log(run, until)
    learner = begin(log, 0)
    for _ in learn(log, learner, frozenset()):
        pass
    saved, _ = load_policy(run.checkpoints()[until], behavior=log.recipe.behavior)
    pairs = zip(learner.model.parameters(), saved.parameters(), strict=True)
    return max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs)


def wanted_by(run: Run, removals: Sequence[str], changes: dict[str, Any]) -> Wanted:
    """What a call asks for, over what the run's recipe says.

    Args:
        run: the run.
        removals: texts of ``--remove``; what the recipe tries, subsets included, where empty.
        changes: fields of :class:`Wanted` that the call sets.
    """
    base = Wanted.of(need_recipe(run))
    if removals:
        requests = tuple(removal.parse(text) for text in removals)
        base = replace(base, requests=requests, subsets=0)
    if changes.get("mode") == "rerun":
        base = replace(base, how=None, subsets=0)
    return replace(base, **changes)


def _outcome(run: Run, arm: Arm) -> Outcome:
    found = load(place(run, arm))
    if found is None:
        what = arm.removal if arm.removal != NOTHING else "nothing removed"
        raise BehaviorTraceError(f"{run.path}: the arm {what!r} has not been made; run it again")
    return found


def _defined(value: float) -> float | None:
    return None if np.isnan(value) else value
