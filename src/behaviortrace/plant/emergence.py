"""How strongly a run shows its behaviour on held-out probes, and whether it emerged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import polars as pl

from behaviortrace.errors import BehaviorTraceError


@dataclass(frozen=True)
class Emergence:
    """The emergence gate of a run.

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


def gate(probes: pl.DataFrame, threshold: float) -> Emergence:
    """The emergence gate: s_b above the threshold at the last probed checkpoint (section 3.1).

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
