"""The check stage: evidence of a run in, verdicts stored in the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from behaviortrace.checklist.collect import gather
from behaviortrace.checklist.evidence import Replicate
from behaviortrace.checklist.registry import judge
from behaviortrace.records import Verdict
from behaviortrace.run import Run

TABLE = "results/verdicts"


def check(run: Run, *, replicates: Iterable[Replicate] = ()) -> list[Verdict]:
    """Judge a run by every line of the checklist and store ``results/verdicts``.

    Each verdict's evidence says whether its thresholds are those hashed before training:
    ``"preregistered"`` is True, False (changed after the data existed) or None (unknown).

    Args:
        run: evaluated, or most lines are "not run".
        replicates: decisive results of the other runs of a sweep.

    Raises:
        BehaviorTraceError: the run cannot be read or written.
    """
    evidence = gather(run, replicates=replicates)
    known = evidence.preregistered is not None and evidence.recomputed is not None
    held = evidence.preregistered == evidence.recomputed if known else None
    verdicts = [
        dataclasses.replace(verdict, evidence={**verdict.evidence, "preregistered": held})
        for verdict in judge(evidence)
    ]
    run.save_json(TABLE, [dataclasses.asdict(verdict) for verdict in verdicts])
    return verdicts


def load(run: Run) -> list[Verdict]:
    """The verdicts a run stores.

    Raises:
        BehaviorTraceError: the run was not checked.
    """
    return [Verdict(**stored) for stored in run.json(TABLE)]
