"""The rollout level over seeds and draws: a sweep's own verdict on the direction.

A run's checklist asks each of its draws alone. A draw of a few groups can hardly answer, and what
it says holds for that draw. Here the same rule is asked of the mean over seeds, whose interval
holds the variation between seeds and between draws.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from behaviortrace.checklist import rows
from behaviortrace.checklist.evidence import Replicate
from behaviortrace.checklist.fluency import shortfalls
from behaviortrace.checklist.replication import components_of, needed
from behaviortrace.recipe import Thresholds
from behaviortrace.records import Status


@dataclass(frozen=True)
class Effect:
    """The verdict.

    Attributes:
        status: "pass" where the rule is met, "fail" where it is not, "not run" where there are too
            few seeds or draws.
        sentence: what it rests on.
        mean: over seeds, of the decisive AUC; None where not run.
        lo: lower end of its 95% interval.
        hi: upper end.
        norm: mean over seeds of norm's AUC under the same control.
    """

    status: Status
    sentence: str
    mean: float | None = None
    lo: float | None = None
    hi: float | None = None
    norm: float | None = None


def effect(
    replicates: Sequence[Replicate], controls: pl.DataFrame, thresholds: Thresholds
) -> Effect:
    """Ask the pre-registered rollout-level rule (Section 3.5) of the mean over seeds.

    It is met where the interval of the mean lies above 0.5 and is no wider than
    ``thresholds.rollout_width``, and the mean is above norm's.

    Args:
        replicates: the decisive results of all runs.
        controls: ``CONTROL_SCHEMA``, of the same runs.
        thresholds: the recipe's.
    """
    draws = Counter(replicate.seed for replicate in replicates)
    seeds, fewest = needed(thresholds)
    if len(draws) < seeds or min(draws.values()) < fewest:
        held = f"{min(draws.values(), default=0)} draws of each of {len(draws)} seeds"
        return Effect("not run", f"{held}, where {fewest} of {seeds} are needed")
    found = components_of(replicates).mean
    norm = _norm(controls)
    against = "undefined" if norm is None else f"{norm:.3f}"
    ends = f"[{found.lo:.3f}, {found.hi:.3f}]"
    said = f"its mean over seeds is {found.point:.3f} {ends}, norm's {against}"
    numbers = (found.point, found.lo, found.hi, norm)
    if norm is None:
        return Effect("not run", said, *numbers)
    short = shortfalls(
        {"auc": found.point, "lo": found.lo, "hi": found.hi, "norm": norm}, thresholds
    )
    if short:
        return Effect("fail", f"{said}: {' and '.join(short)}", *numbers)
    return Effect("pass", said, *numbers)


def _norm(controls: pl.DataFrame) -> float | None:
    part = rows.where(controls, ranking="norm", variant="residualized")
    return None if part is None else rows.finite(part["mean"][0])
