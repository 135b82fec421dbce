"""The interval that holds: Student's t over groups, on the logit scale.

Groups here are what is independent: all groups of a prompt together, where a prompt is repeated
(:mod:`behaviortrace.evaluate.clusters`).

Chosen by simulation (``behaviortrace bench intervals --others``). The percentile bootstrap and BCa
are too narrow with few groups, and near 1, where percentiles end at what was seen. So is t on the
AUC itself near 1, and the studentised bootstrap fails where many resamples lose no pair. Korn and
Graubard's exact interval holds but is wider than it need be. Wilson's, with as many trials as the
groups are worth, is the closest rival: a little narrower, and a little too narrow near 1 where
groups differ. On the logit scale the AUC is nearly symmetric and cannot leave [0, 1]; deleting one
group at a time gives a spread that few groups do not flatter; and the degrees of freedom count
groups by their weight.

Near 1, with two dozen groups whose effects differ widely, it covers 92%: the distribution of such
AUCs is skewed. Deleting groups on the logit scale itself would cover 93% to 96% there, but is
undefined where one group holds all losses (``--others`` shows both).

It holds more than 97% where a handful of groups have a pair or two each, as matched pairs near 1
do: few outcomes are possible there, and it errs on the safe side.

Source of the parts: the jackknife over clusters, Bell and McCaffrey 2002; groups counted by their
weight, Kish 1965; the logit scale for an AUC, Pepe 2003, section 5.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from behaviortrace.evaluate.bootstrap import LEVEL

METHOD = "logit-t"
_NO_SPREAD = 1e-12  # a standard error below this is rounding


@dataclass(frozen=True)
class Bounds:
    """Interval and test of AUCs, each of the shape given without its last axis; NaN if undefined.

    Attributes:
        lo: lower end of the 95% interval.
        hi: upper end.
        p: two-sided p-value of AUC = 0.5, of the same method.
    """

    lo: np.ndarray
    hi: np.ndarray
    p: np.ndarray


def logit_t(
    wins: np.ndarray, pairs: np.ndarray, shift: np.ndarray | float = 0.0, level: float = LEVEL
) -> Bounds:
    """Interval of ``wins.sum() / pairs.sum()`` from sums in independent groups.

    Where no group differs from the others (an AUC of exactly 1 among them) their spread says
    nothing, and each group counts as one trial of an exact binomial interval: of all values in
    [0, 1] with a given mean, those at the ends vary most.

    Args:
        wins: shape (..., groups), summed credit of each group's pairs.
        pairs: shape (..., groups), number of pairs; groups without any count for nothing.
        shift: shape (..., groups), what else a group moves the AUC by, such as through a slope
            fitted to it; see :meth:`behaviortrace.evaluate.fluency.Residual.shift`.
        level: coverage.

    Returns:
        The bounds; NaN for fewer than two groups with pairs.

    Example:
        >>> found = logit_t(np.array([3.0, 2.0, 4.0]), np.array([4.0, 4.0, 4.0]))
        >>> round(float(found.lo), 2), round(float(found.hi), 2)
        (0.29, 0.96)
    """
    wins, pairs = np.broadcast_arrays(np.asarray(wins, np.float64), np.asarray(pairs, np.float64))
    total, used = pairs.sum(axis=-1), np.count_nonzero(pairs, axis=-1)
    several = used > 1
    with np.errstate(divide="ignore", invalid="ignore"):
        auc = wins.sum(axis=-1) / total
        share = pairs / total[..., None]
        moved = ((wins - auc[..., None] * pairs) / total[..., None] + shift) / (1 - share)
        error = np.sqrt((1 - 1 / used) * (moved**2).sum(axis=-1))
        trials = np.where(several, 1 / (share**2).sum(axis=-1), np.nan)
        freedom = trials - 1
        center, scale = special.logit(auc), error / (auc * (1 - auc))
        reach = special.stdtrit(freedom, 0.5 + level / 2) * scale
        p = 2 * special.stdtr(freedom, -np.abs(center) / scale)
        flat = several & ((error < _NO_SPREAD) | (auc <= 0) | (auc >= 1))
        lo = np.where(flat, _exact_lower(auc, trials, level), special.expit(center - reach))
        hi = np.where(flat, 1 - _exact_lower(1 - auc, trials, level), special.expit(center + reach))
        p = np.where(flat, _exact_p(auc, trials), p)
    return Bounds(*(np.where(several, values, np.nan) for values in (lo, hi, p)))


def _exact_lower(share: np.ndarray, trials: np.ndarray, level: float) -> np.ndarray:
    """Lower end of Clopper and Pearson's interval; 0 where nothing was won."""
    won = share * trials
    found = special.betaincinv(np.maximum(won, 1e-300), trials - won + 1, (1 - level) / 2)
    return np.where(won <= 0, 0.0, found)


def _exact_p(share: np.ndarray, trials: np.ndarray) -> np.ndarray:
    """Two-sided binomial p-value of 0.5, twice the smaller tail."""
    more = np.maximum(share, 1 - share) * trials
    return np.minimum(1.0, 2 * special.betainc(more, trials - more + 1, 0.5))
