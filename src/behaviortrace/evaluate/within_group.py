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
    FEW_GROUPS,
    UNDEFINED,
    Interval,
    percentile_interval,
    ratio,
    resample_counts,
)
from behaviortrace.evaluate.fluency import Residual, matched, residualize

MATCHED_POWERED = 100
"""Matched pairs from which on the paper calls the matched comparison powered."""


@dataclass(frozen=True)
class AucReport:
    """Within-group AUCs of several scores, each with its interval.

    Attributes:
        pairs: number of (shows, does not show) pairs.
        groups: number of groups, all of which are resampled.
        groups_with_pairs: those that hold both labels.
        raw: by score name.
        residualized: by score name; None without fluency.
        matched: by score name, over the matched pairs only; None without fluency.
        matched_pairs: number of pairs matched; None without fluency.
        delta: largest fluency difference of a matched pair, nats.
        warnings: one sentence each.
    """

    pairs: int
    groups: int
    groups_with_pairs: int
    raw: Mapping[str, Interval]
    residualized: Mapping[str, Interval] | None
    matched: Mapping[str, Interval] | None
    matched_pairs: int | None
    delta: float
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
) -> AucReport:
    """Judge scores by within-group AUC, with percentile bootstrap intervals over groups.

    Args:
        label: shape (n,), bool; the rollout shows the behaviour.
        group: shape (n,), group of each rollout.
        scores: each shape (n,), finite.
        fluency: shape (n,), finite, mean token log-probability in nats.
        delta: matched pairs differ in fluency by at most this many nats.
        resamples: number of bootstrap resamples, at least 100.
        seed: of the resampling.
        refit_slope: refit the fluency slope in every resample, instead of resampling residuals
            taken once. Fixed residuals agree with the published intervals; both ways cover alike.

    Returns:
        The report. Everything is undefined (NaN) where no group holds both labels; intervals are
        undefined where only one group does, since there is nothing to resample.

    Raises:
        BehaviorTraceError: a setting out of range, or too many pairs.
    """
    _check_settings(delta, resamples, seed)
    code, n_groups = group_codes(group)
    pairs = within_group_pairs(label, code, n_groups)
    values = {name: np.asarray(score, dtype=np.float64) for name, score in scores.items()}
    raw = _intervals(_credits(values, pairs), pairs, resamples, seed)
    residuals: dict[str, Residual] = {}
    residualized = near = near_auc = None
    if fluency is not None:
        fluency = np.asarray(fluency, dtype=np.float64)
        residuals = {name: residualize(v, fluency, code, pairs) for name, v in values.items()}
        residualized = _residualized(residuals, pairs, resamples, seed, refit_slope)
        near = matched(pairs, fluency, delta)
        near_auc = _intervals(_credits(values, near), near, resamples, seed)
    return AucReport(
        pairs=len(pairs),
        groups=n_groups,
        groups_with_pairs=_groups_with_pairs(pairs),
        raw=raw,
        residualized=residualized,
        matched=near_auc,
        matched_pairs=None if near is None else len(near),
        delta=delta,
        warnings=(*_group_warnings(pairs), *_fluency_warnings(residuals, near)),
    )


def _check_settings(delta: float, resamples: int, seed: int) -> None:
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


def _groups_with_pairs(pairs: Pairs) -> int:
    return int(np.count_nonzero(pairs.per_group()))


def _credits(scores: Mapping[str, np.ndarray], pairs: Pairs) -> dict[str, np.ndarray]:
    return {name: credit(pairs.difference(score)) for name, score in scores.items()}


def _intervals(
    credits: Mapping[str, np.ndarray], pairs: Pairs, resamples: int, seed: int
) -> dict[str, Interval]:
    """AUC of each score from its pairs' credits; per-group sums carry the bootstrap."""
    if len(pairs) == 0:
        return dict.fromkeys(credits, UNDEFINED)
    points = {name: float(won.mean()) for name, won in credits.items()}
    if _groups_with_pairs(pairs) < 2:
        return {name: Interval(point, np.nan, np.nan) for name, point in points.items()}
    columns = np.column_stack([pairs.per_group(), *map(pairs.per_group, credits.values())])
    totals = np.concatenate(
        [counts @ columns for counts in resample_counts(pairs.n_groups, resamples, seed)]
    )
    resampled = ratio(totals[:, 1:], totals[:, :1])
    return {
        name: percentile_interval(points[name], resampled[:, column])
        for column, name in enumerate(credits)
    }


def _residualized(
    residuals: Mapping[str, Residual], pairs: Pairs, resamples: int, seed: int, refit: bool
) -> dict[str, Interval]:
    own = {name: residual.credit() for name, residual in residuals.items()}
    fixed = _intervals(own, pairs, resamples, seed)
    if not refit:
        return fixed
    return {
        name: _refitted(fixed[name].point, residual, pairs, resamples, seed)
        for name, residual in residuals.items()
    }


def _refitted(
    point: float, residual: Residual, pairs: Pairs, resamples: int, seed: int
) -> Interval:
    """Interval of a residualised AUC, its pooled slope refitted in every resample."""
    if _groups_with_pairs(pairs) < 2:
        return Interval(point, np.nan, np.nan)
    n_pairs = pairs.per_group()
    resampled = [
        ratio(residual.resampled_wins(counts, pairs), counts @ n_pairs)
        for counts in resample_counts(pairs.n_groups, resamples, seed)
    ]
    return percentile_interval(point, np.concatenate(resampled))


def _group_warnings(pairs: Pairs) -> list[str]:
    groups = _groups_with_pairs(pairs)
    if groups == 1:
        return ["only 1 group has pairs: there is nothing to resample, so no interval is given"]
    if 1 < groups < FEW_GROUPS:
        return [
            f"only {groups} groups have pairs: percentile intervals from fewer than {FEW_GROUPS} "
            "groups are too narrow to be relied on"
        ]
    return []


def _fluency_warnings(residuals: Mapping[str, Residual], near: Pairs | None) -> list[str]:
    found = []
    if near is not None and len(near) < MATCHED_POWERED:
        found.append(
            f"only {len(near)} fluency-matched pairs: below {MATCHED_POWERED} the matched "
            "comparison is not powered"
        )
    if any(residual.square.sum() == 0 for residual in residuals.values()):
        found.append("fluency varies inside no group: nothing is controlled for")
        return found
    for name, residual in residuals.items():
        if residual.by_score.any() and (residual.credit() == 0.5).all():
            found.append(f"score {name!r} is a linear function of fluency: its residuals all tie")
    return found
