"""What removals did: effects against controls, curves, and linear datamodelling scores.

Pure functions of the table of arms, one row an arm (:data:`ARM_SCHEMA`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from scipy import special, stats

from behaviortrace.causes.arms import NOTHING, Arm, Outcome
from behaviortrace.causes.measure import KINDS
from behaviortrace.causes.planning import SUBSET
from behaviortrace.causes.ranking import parse
from behaviortrace.evaluate.bootstrap import LEVEL, Interval

ARMS, EFFECTS, CURVES, LDS = (
    "results/leave_out_arms",
    "results/leave_out_effects",
    "results/leave_out_curves",
    "results/leave_out_lds",
)
"""Tables of a run."""

ARM_SCHEMA: dict[str, Any] = {
    "mode": pl.String,
    "how": pl.String,
    "removal": pl.String,
    "control": pl.String,  # null for the removal itself
    "draw": pl.Int32,  # seed of a control, a random set or a subset
    "size": pl.Int32,  # rollouts taken out
    "until": pl.Int32,  # checkpoint measured
    "samples": pl.Int32,  # completions of each prompt
    **{f"rate_{kind}": pl.Float64 for kind in KINDS},
    **{f"greedy_{kind}": pl.Float64 for kind in KINDS},
    "margin": pl.Float64,  # nats
    "held_out_loss": pl.Float64,  # nats
    "reward": pl.Float64,
    "off_norm": pl.Float64,  # of a control: standardised differences from what it controls for
    "off_fluency": pl.Float64,
    "off_step": pl.Float64,
    "seconds": pl.Float64,
    "probe_rates": pl.List(pl.Float64),  # one a probe
}
"""One row an arm."""

EFFECT_SCHEMA: dict[str, Any] = {
    "mode": pl.String,
    "how": pl.String,
    "removal": pl.String,
    "targeted": pl.Boolean,  # an estimator's claim about the behaviour; null for other removals
    "control": pl.String,
    "size": pl.Int32,
    "sets": pl.Int32,  # control sets
    "rate": pl.Float64,  # s_b with the removal
    "rate_nothing": pl.Float64,
    "rate_control": pl.Float64,  # mean over the control sets
    "effect": pl.Float64,  # rate_control - rate
    "lo": pl.Float64,
    "hi": pl.Float64,
    "p": pl.Float64,  # one-sided, of no effect
    "effect_paraphrase": pl.Float64,
    "effect_margin": pl.Float64,  # nats
    "loss_change": pl.Float64,  # held-out loss with the removal minus without any, nats
    "loss_change_control": pl.Float64,
    "closure": pl.Float64,  # drop of s_b as a share of the drop without ground truth
}
"""One row a removal and control: does it do more than taking out as many others?"""

LDS_SCHEMA: dict[str, Any] = {
    "ranking": pl.String,
    "target_free": pl.Boolean,
    "measure": pl.String,  # "rate" or "margin"
    "subsets": pl.Int32,
    "lds": pl.Float64,
    "lo": pl.Float64,
    "hi": pl.Float64,
}
"""One row a ranking and measure."""

_KEYS = ("mode", "how", "removal")
_ROUNDING = 1e-24  # a variance of rates that is nothing but rounding
_FEWEST = 10  # subsets that a rank correlation needs


def arm_table(arms: Sequence[tuple[Arm, Outcome]]) -> pl.DataFrame:
    """The table of arms, in their order."""
    rows = []
    for arm, outcome in arms:
        found = outcome.measurement
        rows.append(
            {
                "mode": arm.mode,
                "how": arm.how,
                "removal": arm.removal,
                "control": arm.control,
                "draw": arm.draw,
                "size": outcome.removed,
                "until": arm.until,
                "samples": arm.samples,
                **{f"rate_{kind}": found.rate(kind) for kind in KINDS},
                **{f"greedy_{kind}": found.greedy.get(kind) for kind in KINDS},
                "margin": found.margin,
                "held_out_loss": found.held_out_loss,
                "reward": found.reward,
                "off_norm": arm.balance.get("log_norm"),
                "off_fluency": arm.balance.get("fluency"),
                "off_step": arm.balance.get("step"),
                "seconds": outcome.seconds,
                "probe_rates": list(found.rates.get("probe") or []),
            }
        )
    return pl.DataFrame(rows, schema=ARM_SCHEMA)


def against(removed: np.ndarray, controls: np.ndarray) -> tuple[Interval, float]:
    """How much lower s_b is with a removal than with control sets, and a one-sided p-value.

    The error has two parts: between prompts, of the difference that each shows, and between control
    sets. Student's t with Satterthwaite's degrees of freedom.

    Args:
        removed: (P,) rates of the prompts with the removal.
        controls: (M, P) the same with each control set.

    Returns:
        The difference with its 95% interval; bounds and p are NaN where fewer than two prompts were
        asked or nothing varies.

    Example:
        >>> found, p = against(np.array([0.1, 0.2, 0.0]), np.array([[0.8, 0.7, 0.9]] * 2))
        >>> round(found.point, 2), found.lo > 0.4, p < 0.05
        (0.7, True, True)
    """
    difference = controls.mean(0) - removed
    effect, prompts, sets = float(difference.mean()), len(removed), len(controls)
    parts = []
    if prompts > 1:
        parts.append((float(difference.var(ddof=1)) / prompts, prompts - 1))
    if sets > 1:
        parts.append((float(controls.mean(1).var(ddof=1)) / sets, sets - 1))
    total = sum(part for part, _ in parts)
    if prompts < 2 or total <= _ROUNDING:
        return Interval(effect, float("nan"), float("nan")), float("nan")
    freedom = total**2 / sum(part**2 / df for part, df in parts)
    error = np.sqrt(total)
    reach = float(special.stdtrit(freedom, 0.5 + LEVEL / 2) * error)
    p = float(special.stdtr(freedom, -effect / error))
    return Interval(effect, effect - reach, effect + reach), p


def effects(table: pl.DataFrame) -> pl.DataFrame:
    """Every removal that has controls, against each kind of them.

    Args:
        table: of :func:`arm_table`.

    Returns:
        Rows of ``EFFECT_SCHEMA``.
    """
    rows = []
    for key, arms in table.group_by(*_KEYS, maintain_order=True):
        named = dict(zip(_KEYS, key, strict=True))
        nothing = _nothing(table, named["mode"])
        truth = _drop(table, nothing, "ground-truth")
        controls = arms.filter(pl.col("control").is_not_null())
        for (control, size), sets in controls.group_by("control", "size", maintain_order=True):
            same = pl.col("control").is_null() & (pl.col("size") == size)
            removed = arms.filter(same).row(0, named=True)
            rows.append(_effect(named, str(control), removed, sets, nothing, truth))
    return pl.DataFrame(rows, schema=EFFECT_SCHEMA)


def _effect(
    named: Mapping[str, Any],
    control: str,
    removed: Mapping[str, Any],
    sets: pl.DataFrame,
    nothing: Mapping[str, Any],
    truth: float | None,
) -> dict[str, Any]:
    found, p = against(np.array(removed["probe_rates"]), np.array(sets["probe_rates"].to_list()))
    mean = {
        name: sets[name].mean()
        for name in ("rate_probe", "rate_paraphrase", "margin", "held_out_loss")
    }
    drop = nothing["rate_probe"] - removed["rate_probe"]
    return {
        **named,
        "targeted": _targeted(str(named["removal"])),
        "control": control,
        "size": removed["size"],
        "sets": sets.height,
        "rate": removed["rate_probe"],
        "rate_nothing": nothing["rate_probe"],
        "rate_control": mean["rate_probe"],
        "effect": found.point,
        "lo": None if np.isnan(found.lo) else found.lo,
        "hi": None if np.isnan(found.hi) else found.hi,
        "p": None if np.isnan(p) else p,
        "effect_paraphrase": _minus(mean["rate_paraphrase"], removed["rate_paraphrase"]),
        "effect_margin": _minus(mean["margin"], removed["margin"]),
        "loss_change": _minus(removed["held_out_loss"], nothing["held_out_loss"]),
        "loss_change_control": _minus(mean["held_out_loss"], nothing["held_out_loss"]),
        "closure": drop / truth if truth else None,
    }


def curves(table: pl.DataFrame) -> pl.DataFrame:
    """s_b by the number of rollouts removed, for every removal.

    Returns:
        Columns mode, how, removal, size, rate, share (of s_b without removal); size 0 first.
    """
    rows = []
    removals = table.filter(
        pl.col("control").is_null() & ~pl.col("removal").is_in([NOTHING, SUBSET])
    )
    for (mode, how, removal), arms in removals.group_by(*_KEYS, maintain_order=True):
        start = _nothing(table, str(mode))["rate_probe"]
        means = arms.group_by("size").agg(pl.col("rate_probe").mean()).sort("size")
        for size, rate in [(0, start), *means.iter_rows()]:
            share = rate / start if start else None
            rows.append((mode, how, removal, size, rate, share))
    columns = {"mode": pl.String, "how": pl.String, "removal": pl.String, "size": pl.Int32}
    return pl.DataFrame(
        rows, schema={**columns, "rate": pl.Float64, "share": pl.Float64}, orient="row"
    )


def halving(curve: pl.DataFrame) -> float | None:
    """How many rollouts must go to halve s_b, between sizes by a straight line; None if never.

    Args:
        curve: rows of one removal of :func:`curves`.
    """
    sizes, shares = curve["size"].to_list(), curve["share"].to_list()
    for at in range(1, len(sizes)):
        before, after = shares[at - 1], shares[at]
        if before is None or after is None:
            return None
        if after <= 0.5 < before:
            part = (before - 0.5) / (before - after)
            return float(sizes[at - 1] + part * (sizes[at] - sizes[at - 1]))
    return None


def rank_correlation(predicted: np.ndarray, measured: np.ndarray) -> Interval:
    """Spearman's rank correlation with a 95% interval.

    The interval is Fisher's with the variance of Bonett and Wright (2000).

    Args:
        predicted, measured: (n,) finite.

    Returns:
        NaN everywhere where one of them does not vary or there are fewer than ten.
    """
    undefined = Interval(float("nan"), float("nan"), float("nan"))
    if len(predicted) < _FEWEST or np.ptp(predicted) == 0 or np.ptp(measured) == 0:
        return undefined
    rho = float(stats.spearmanr(predicted, measured).statistic)
    if abs(rho) >= 1:
        return Interval(rho, float("nan"), float("nan"))
    error = np.sqrt((1 + rho**2 / 2) / (len(predicted) - 3))
    reach = float(stats.norm.ppf(0.5 + LEVEL / 2)) * error
    return Interval(
        rho, float(np.tanh(np.arctanh(rho) - reach)), float(np.tanh(np.arctanh(rho) + reach))
    )


def _targeted(removal: str) -> bool | None:
    """Whether a removal follows a ranking that has a target; None where it follows none."""
    kind, _, ranking = removal.partition(":")
    return not parse(ranking).target_free if kind in ("top", "bottom") else None


def merged(before: pl.DataFrame, now: pl.DataFrame) -> pl.DataFrame:
    """The arms of earlier calls beside those of this one, where they were measured alike.

    Args:
        before, now: rows of ``ARM_SCHEMA``; of an arm in both, the row of ``now`` stays.
    """
    if now.is_empty() or before.is_empty():
        return now
    exam = ("until", "samples")
    alike = before.filter(*(pl.col(name) == now[name][0] for name in exam))
    key = ["mode", "how", "removal", "control", "draw", "size"]
    kept = alike.join(now.select(key), on=key, how="anti", nulls_equal=True)
    return pl.concat([kept, now])


def _nothing(table: pl.DataFrame, mode: str) -> dict[str, Any]:
    rows = table.filter((pl.col("removal") == NOTHING) & (pl.col("mode") == mode))
    return rows.row(0, named=True)


def _drop(table: pl.DataFrame, nothing: Mapping[str, Any], removal: str) -> float | None:
    """How far s_b falls without the ground truth: by full retraining where that was done."""
    rows = table.filter((pl.col("removal") == removal) & pl.col("control").is_null())
    if rows.is_empty():
        return None
    rerun = rows.filter(pl.col("mode") == "rerun")
    rate = (rows if rerun.is_empty() else rerun).sort("size")["rate_probe"][-1]
    return float(nothing["rate_probe"] - rate)


def _minus(left: Any, right: Any) -> float | None:
    return None if left is None or right is None else float(left) - float(right)
