"""Within-group AUC of several scores at once: raw, fluency-residualised and fluency-matched.

All scores are judged on the same pairs and the same resamples, so their intervals may be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate.auc import Pairs, credit, group_codes, within_group_pairs
from behaviortrace.evaluate.bootstrap import (
    ALONE,
    FEW_GROUPS,
    UNDEFINED,
    Interval,
    no_interval,
    percentile_interval,
    ratio,
    resample_counts,
)
from behaviortrace.evaluate.clusters import cluster_codes
from behaviortrace.evaluate.control import Control
from behaviortrace.evaluate.fluency import Residual, matched, residual_credit, residualize
from behaviortrace.evaluate.logit_t import logit_t
from behaviortrace.evaluate.power import detectable
from behaviortrace.evaluate.spline import spline_fit

MATCHED_POWERED = 100
"""Matched pairs from which on the paper calls the matched comparison powered."""

TIED = "every pair ties"


@dataclass(frozen=True)
class Judged(Interval):
    """An AUC with the paper's percentile interval, and with the one that holds.

    Attributes:
        logit_t: the same point with the interval of :mod:`behaviortrace.evaluate.logit_t`, which
            covers as often as it says also with few groups and near 1.
        p: two-sided p-value of AUC = 0.5 that goes with ``logit_t``.
    """

    logit_t: Interval = UNDEFINED
    p: float = float("nan")

    def by(self, interval: str) -> Interval:
        """The interval of a recipe's ``evaluate.interval``: "logit-t" or "percentile"."""
        return self if interval == "percentile" else self.logit_t


NO_PAIRS = Judged(float("nan"), float("nan"), float("nan"), reason=UNDEFINED.reason)


@dataclass(frozen=True)
class AucReport:
    """Within-group AUCs of several scores, each with its intervals.

    Attributes:
        pairs: number of (shows, does not show) pairs.
        groups: number of groups.
        groups_with_pairs: those that hold both labels.
        clusters: number of clusters of groups, all of which are resampled.
        clusters_with_pairs: those with a group that holds both labels.
        raw: by score name.
        residualized: by score name; None without fluency.
        matched: by score name, over the matched pairs only; None without fluency.
        matched_pairs: number of pairs matched; None without fluency.
        delta: largest fluency difference of a matched pair, nats.
        control: how fluency was regressed out.
        detectable: smallest AUC that all the pairs detect with 80% power; NaN where undefined.
        matched_detectable: the same of the matched pairs; None without fluency.
        warnings: one sentence each.
    """

    pairs: int
    groups: int
    groups_with_pairs: int
    clusters: int
    clusters_with_pairs: int
    raw: Mapping[str, Judged]
    residualized: Mapping[str, Judged] | None
    matched: Mapping[str, Judged] | None
    matched_pairs: int | None
    delta: float
    control: Control
    detectable: float
    matched_detectable: float | None
    warnings: tuple[str, ...]


def judge(
    label: np.ndarray,
    group: np.ndarray,
    scores: Mapping[str, np.ndarray],
    fluency: np.ndarray | None = None,
    *,
    delta: float = 0.10,
    resamples: int = 5000,
    seed: int = 0,
    refit_slope: bool = False,
    control: Control = "linear",
    also: np.ndarray | None = None,
    cluster: np.ndarray | None = None,
) -> AucReport:
    """Judge scores by within-group AUC, with two intervals over clusters of groups.

    Each AUC has the paper's percentile bootstrap interval as its own, and beside it the logit-t
    interval, which is the one to decide by.

    Args:
        label: shape (n,), bool; the rollout shows the behaviour.
        group: shape (n,), group of each rollout.
        scores: each shape (n,), finite.
        fluency: shape (n,), finite, mean token log-probability in nats.
        delta: matched pairs differ in fluency by at most this many nats.
        resamples: number of bootstrap resamples, at least 100.
        seed: of the resampling, and of the spline's folds.
        refit_slope: refit the fluency slope in every resample, instead of resampling residuals
            taken once, as the published intervals were. The logit-t interval of a linear control
            always counts the slope's error.
        control: "linear" as in the paper, or "spline" against an effect of fluency that bends.
        also: shape (n,), finite, a second variable that the linear control regresses out at once,
            such as the logarithm of the gradient's norm.
        cluster: shape (n,), what is independent: the prompt of each rollout, where groups repeat
            one (see :mod:`behaviortrace.evaluate.clusters`). Groups are independent where None.

    Returns:
        The report. Everything is undefined (NaN) where no group holds both labels; intervals are
        undefined, with a reason, where only one cluster does, where every pair of a score ties, and
        the percentile interval also where no cluster differs from the others. The logit-t interval
        then counts each cluster as one trial, and still says something.

    Raises:
        BehaviorTraceError: a setting out of range, too many pairs, or a group in two clusters.
    """
    _check_settings(delta, resamples, seed, control, refit_slope, also)
    code, n_groups = group_codes(group)
    cluster_of = None if cluster is None else cluster_codes(group, cluster)
    pairs = within_group_pairs(label, code, n_groups, cluster_of)
    values = {name: np.asarray(score, dtype=np.float64) for name, score in scores.items()}
    raw = _judged(_credits(values, pairs), pairs, resamples, seed)
    residualized = near = near_auc = None
    warnings = _group_warnings(pairs)
    if fluency is not None:
        fluency = np.asarray(fluency, dtype=np.float64)
        near = matched(pairs, fluency, delta)
        warnings += _matched_warnings(near)
        if control == "linear":
            residuals = {
                name: residualize(v, fluency, code, pairs, also) for name, v in values.items()
            }
            residualized = _residualized(residuals, pairs, resamples, seed, refit_slope)
            warnings += _residual_warnings(residuals)
        else:
            curves = {
                name: spline_fit(v, fluency, code, n_groups, seed, pairs.cluster_of)
                for name, v in values.items()
            }
            bent = {name: residual_credit(v, curves[name], pairs) for name, v in values.items()}
            residualized = _judged(bent, pairs, resamples, seed)
        near_auc = _judged(_credits(values, near), near, resamples, seed)
    return AucReport(
        pairs=len(pairs),
        groups=n_groups,
        groups_with_pairs=int(np.count_nonzero(pairs.per_group())),
        clusters=pairs.n_clusters,
        clusters_with_pairs=_clusters_with_pairs(pairs),
        raw=raw,
        residualized=residualized,
        matched=near_auc,
        matched_pairs=None if near is None else len(near),
        delta=delta,
        control=control,
        detectable=detectable(pairs),
        matched_detectable=None if near is None else detectable(near),
        warnings=tuple(warnings),
    )


def _check_settings(
    delta: float,
    resamples: int,
    seed: int,
    control: str,
    refit_slope: bool,
    also: np.ndarray | None,
) -> None:
    if resamples < 100:
        raise BehaviorTraceError(
            f"resamples is {resamples}; a percentile interval needs at least 100 (5000 is usual)"
        )
    if not (np.isfinite(delta) and delta > 0):
        raise BehaviorTraceError(
            f"matched is {delta}; give a fluency difference above 0 in nats, such as 0.10"
        )
    if seed < 0:
        raise BehaviorTraceError(f"seed is {seed}; give an integer of 0 or more")
    if control not in ("linear", "spline"):
        raise BehaviorTraceError(f"residual is {control!r}; give linear or spline")
    if refit_slope and control != "linear":
        raise BehaviorTraceError("refit_slope is for the linear control; a spline has no slope")
    if also is not None and (refit_slope or control != "linear"):
        raise BehaviorTraceError("a second variable is for the linear control without refit_slope")


def _clusters_with_pairs(pairs: Pairs) -> int:
    return int(np.count_nonzero(pairs.per_cluster()))


def _credits(scores: Mapping[str, np.ndarray], pairs: Pairs) -> dict[str, np.ndarray]:
    return {name: credit(pairs.difference(score)) for name, score in scores.items()}


def _judged(
    credits: Mapping[str, np.ndarray],
    pairs: Pairs,
    resamples: int,
    seed: int,
    shifts: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Judged]:
    """AUC of each score from its pairs' credits; sums in clusters carry both intervals."""
    if len(pairs) == 0:
        return dict.fromkeys(credits, NO_PAIRS)
    points = {name: float(won.mean()) for name, won in credits.items()}
    if _clusters_with_pairs(pairs) < 2:
        why = ALONE.format(unit=_unit(pairs), what="pairs")
        return {name: _no_interval(point, why) for name, point in points.items()}
    number, wins = pairs.per_cluster(), {n: pairs.per_cluster(won) for n, won in credits.items()}
    columns = np.column_stack([number, *wins.values()])
    totals = np.concatenate(
        [counts @ columns for counts in resample_counts(pairs.n_clusters, resamples, seed)]
    )
    resampled = ratio(totals[:, 1:], totals[:, :1])
    found = {}
    for column, (name, won) in enumerate(credits.items()):
        if (won == 0.5).all():
            found[name] = _no_interval(points[name], TIED, p=1.0)
            continue
        paper = percentile_interval(points[name], resampled[:, column], _unit(pairs))
        bounds = logit_t(wins[name], number, 0.0 if shifts is None else shifts[name])
        holds = Interval(points[name], float(bounds.lo), float(bounds.hi))
        found[name] = _with_logit_t(paper, holds, float(bounds.p))
    return found


def _with_logit_t(paper: Interval, holds: Interval, p: float) -> Judged:
    return Judged(paper.point, paper.lo, paper.hi, holds, p, reason=paper.reason)


def _no_interval(point: float, reason: str, p: float = float("nan")) -> Judged:
    none = no_interval(point, reason)
    return _with_logit_t(none, none, p)


def _residualized(
    residuals: Mapping[str, Residual], pairs: Pairs, resamples: int, seed: int, refit: bool
) -> dict[str, Judged]:
    own = {name: residual.credit() for name, residual in residuals.items()}
    shifts = {name: residual.shift(pairs) for name, residual in residuals.items()}
    fixed = _judged(own, pairs, resamples, seed, shifts)
    if not refit or _clusters_with_pairs(pairs) < 2:
        return fixed
    return {
        name: _refitted(fixed[name], residual, pairs, resamples, seed)
        for name, residual in residuals.items()
    }


def _refitted(fixed: Judged, residual: Residual, pairs: Pairs, resamples: int, seed: int) -> Judged:
    """The AUC with a percentile interval whose slope is refitted in every resample."""
    n_pairs = pairs.per_cluster()
    resampled = [
        ratio(residual.resampled_wins(counts, pairs), counts @ n_pairs)
        for counts in resample_counts(pairs.n_clusters, resamples, seed)
    ]
    paper = percentile_interval(fixed.point, np.concatenate(resampled), _unit(pairs))
    return _with_logit_t(paper, fixed.logit_t, fixed.p)


def _unit(pairs: Pairs) -> str:
    """What is resampled, in words."""
    return "group" if pairs.n_clusters == pairs.n_groups else "cluster"


def _group_warnings(pairs: Pairs) -> list[str]:
    units = _clusters_with_pairs(pairs)
    unit = _unit(pairs)
    if units == 1:
        return [f"only 1 {unit} has pairs: there is nothing to resample, so no interval is given"]
    if 1 < units < FEW_GROUPS:
        return [
            f"only {units} {unit}s have pairs: percentile intervals from fewer than {FEW_GROUPS} "
            f"{unit}s are too narrow to be relied on; go by the logit-t interval"
        ]
    return []


def _matched_warnings(near: Pairs) -> list[str]:
    if len(near) >= MATCHED_POWERED:
        return []
    smallest = detectable(near)
    seen = "" if np.isnan(smallest) else f"; at 80% power they detect AUCs from {smallest:.3f} on"
    return [
        f"only {len(near)} fluency-matched pairs: below {MATCHED_POWERED} the matched comparison "
        f"is not powered{seen}"
    ]


def _residual_warnings(residuals: Mapping[str, Residual]) -> list[str]:
    if any(residual.constant for residual in residuals.values()):
        return ["fluency varies inside no group: nothing is controlled for"]
    return [
        f"score {name!r} is a linear function of fluency: its residuals all tie"
        for name, residual in residuals.items()
        if residual.by_score.any() and (residual.credit() == 0.5).all()
    ]
