"""How strongly a run shows its behaviour on held-out probes; whether it was taught, and kept.

Two questions, since what was taught may be unlearned once nothing rewards it. *Kept* is the paper's
gate: s_b exceeds the bar at the last checkpoint. *Taught* is what a ranking of rollouts needs: that
s_b exceeded it at some checkpoint, by more than luck, and more than before RL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import polars as pl
from scipy import stats

from behaviortrace.errors import BehaviorTraceError

START = 0
"""Checkpoint of the policy after its warm-up and before RL; what it shows, RL did not teach."""

ALPHA = 0.05
"""How often luck may lift the highest s_b of a run over the bar, for the run to count as taught."""


@dataclass(frozen=True)
class Emergence:
    """The paper's emergence gate of a run, at its last checkpoint: whether it was kept.

    Attributes:
        step: last checkpoint that was probed, None where nothing was.
        s_b: share of probe responses that show the behaviour there, None where undefined.
        probes: how many responses it rests on.
        threshold: s_b must exceed it.
        emerged: None where s_b is undefined.
        reason: why it is undefined; empty otherwise.
    """

    step: int | None
    s_b: float | None
    probes: int
    threshold: float
    emerged: bool | None
    reason: str = ""


@dataclass(frozen=True)
class Taught:
    """What s_b over the checkpoints says of a run.

    Attributes:
        taught: s_b exceeds the bar at the last checkpoint, or at its highest by more than luck;
            and at its highest it is above that before RL. None where it cannot be told.
        kept: s_b exceeds the bar at the last checkpoint (the paper's gate).
        step: checkpoint after RL began at which s_b is highest, the first of them.
        highest: s_b there.
        last: step of the last checkpoint.
        at_last: s_b there.
        before: s_b before RL; None where it was not probed.
        looks: checkpoints that the highest is taken of.
        luck: how often, at most, the highest of as many looks is as high in a run whose true share
            is the bar; None where the number of responses is not known.
    """

    taught: bool | None
    kept: bool
    step: int
    highest: float
    last: int
    at_last: float
    before: float | None
    looks: int
    luck: float | None


def taught(
    rates: Mapping[int, float | None], responses: Mapping[int, int], bar: float
) -> Taught | None:
    """Whether a behaviour was taught, and whether it was kept.

    The last checkpoint is one look, fixed before the data existed. The highest of several is not:
    it counts only where a run at the bar would reach it with a probability of at most ``ALPHA``,
    taken as the binomial one times the number of looks (Bonferroni), which holds however the
    checkpoints depend on each other.

    Args:
        rates: s_b by checkpoint step; None where it is undefined.
        responses: judged probe responses by checkpoint step; may lack some.
        bar: ``recipe.thresholds.emergence``.

    Returns:
        None where no checkpoint after RL began was probed, or s_b is undefined at the last.

    Example:
        >>> found = taught({0: 0.3, 40: 0.75, 100: 0.0}, {0: 20, 40: 20, 100: 20}, bar=0.1)
        >>> found.taught, found.kept
        (True, False)
    """
    after = {step: rate for step, rate in rates.items() if step > START}
    known = {step: rate for step, rate in after.items() if rate is not None}
    if not known or max(known) != max(after):
        return None
    last = max(known)
    step = min(known, key=lambda each: (-known[each], each))
    highest, before = known[step], rates.get(START)
    kept = known[last] > bar
    luck = _luck(highest, responses.get(step), bar, len(known))
    beyond = kept or (highest > bar and (None if luck is None else luck <= ALPHA))
    added = before is None or highest > before
    return Taught(
        beyond if added else False, kept, step, highest, last, known[last], before, len(known), luck
    )


def hits_needed(responses: int, looks: int, bar: float) -> int | None:
    """Fewest responses with the behaviour that pass as taught at the highest of several looks.

    At least one; None where all of them would not do.
    """
    for hits in range(1, responses + 1):
        luck = _luck(hits / responses, responses, bar, looks)
        if hits / responses > bar and luck is not None and luck <= ALPHA:
            return hits
    return None


def _luck(share: float, responses: int | None, bar: float, looks: int) -> float | None:
    """Bound on how often one of several looks at a true share of the bar is as high."""
    if not responses:
        return None
    hits = round(share * responses)
    tail = float(stats.binom.sf(hits - 1, responses, min(max(bar, 0.0), 1.0)))
    return min(1.0, looks * tail)


def s_b(probes: pl.DataFrame, kind: Literal["probe", "control"] = "probe") -> dict[int, float]:
    """Share of responses that show the behaviour, by checkpoint step, ascending.

    A step without a judged response of the kind is absent: its share is undefined, not 0.

    Args:
        probes: rows of ``records.PROBE_SCHEMA``; rows with a null ``behavior`` are not judged.
        kind: "probe" for s_b, "control" for the same share on prompts without the trigger.

    Raises:
        BehaviorTraceError: a needed column is missing.
    """
    judged = _judged(probes, kind)
    shares = judged.group_by("step").agg(pl.col("behavior").mean()).sort("step")
    return {int(step): float(share) for step, share in shares.iter_rows()}


def responses(probes: pl.DataFrame) -> dict[int, int]:
    """Judged probe responses that s_b rests on, by checkpoint step, ascending.

    Raises:
        BehaviorTraceError: a needed column is missing.
    """
    counts = _judged(probes, "probe").group_by("step").len().sort("step")
    return {int(step): int(count) for step, count in counts.iter_rows()}


def gate(probes: pl.DataFrame, threshold: float) -> Emergence:
    """The paper's gate: s_b above the threshold at the last probed checkpoint (section 3.1).

    Args:
        probes: rows of ``records.PROBE_SCHEMA``.
        threshold: ``recipe.thresholds.emergence``.

    Raises:
        BehaviorTraceError: a needed column is missing.
    """
    _require(probes)
    asked = probes.filter(pl.col("kind") == "probe")
    if asked.is_empty():
        return Emergence(None, None, 0, threshold, None, "no probe responses were recorded")
    last = int(asked.select(pl.col("step").max()).item())
    judged = _judged(probes, "probe").filter(pl.col("step") == last)
    if judged.is_empty():
        reason = f"no probe response at checkpoint {last} was judged"
        return Emergence(last, None, 0, threshold, None, reason)
    share = s_b(judged)[last]
    return Emergence(last, share, judged.height, threshold, share > threshold)


def _judged(probes: pl.DataFrame, kind: str) -> pl.DataFrame:
    _require(probes)
    return probes.filter((pl.col("kind") == kind) & pl.col("behavior").is_not_null())


def _require(probes: pl.DataFrame) -> None:
    missing = [name for name in ("step", "kind", "behavior") if name not in probes.columns]
    if missing:
        raise BehaviorTraceError(
            f"probe table lacks column {missing[0]!r}; it needs step, kind and behavior"
        )
