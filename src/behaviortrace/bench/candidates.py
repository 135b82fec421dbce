"""Intervals that were considered beside the percentile bootstrap and logit-t, for comparison.

Each takes the groups' wins and pairs, shape (groups,), of one study, and gives the ends of a 95%
interval. None counts the error of a fitted slope, so they are for raw and matched AUCs.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from behaviortrace.evaluate.bootstrap import ratio, resample_counts

Ends = tuple[float, float]
TAILS = (0.025, 0.975)
NORMAL = float(special.ndtri(TAILS[1]))


def candidates(wins: np.ndarray, pairs: np.ndarray, resamples: int, seed: int) -> dict[str, Ends]:
    """All of them, by name, of a study with at least two groups that have pairs."""
    used = pairs > 0
    wins, pairs = wins[used], pairs[used]
    counts = np.concatenate(list(resample_counts(len(pairs), resamples, seed)))
    auc, error, freedom = _jackknife(wins, pairs)
    return {
        "BCa": _bca(wins, pairs, counts, auc),
        "studentised": _studentised(wins, pairs, counts, auc, error),
        "t": _t(auc, error, freedom),
        "Korn-Graubard": _korn_graubard(auc, error, freedom),
        "Wilson": _wilson(auc, error, freedom),
        "logit jackknife": _logit_jackknife(wins, pairs, freedom),
    }


def _jackknife(wins: np.ndarray, pairs: np.ndarray) -> tuple[float, float, float]:
    """AUC, its standard error by deleting groups, and the degrees of freedom."""
    auc, share = wins.sum() / pairs.sum(), pairs / pairs.sum()
    moved = (wins - auc * pairs) / pairs.sum() / (1 - share)
    error = np.sqrt((1 - 1 / len(pairs)) * (moved**2).sum())
    return float(auc), float(error), float(1 / (share**2).sum() - 1)


def _bca(wins: np.ndarray, pairs: np.ndarray, counts: np.ndarray, auc: float) -> Ends:
    """Bias-corrected and accelerated, Efron 1987."""
    resampled = ratio(counts @ wins, counts @ pairs)
    below = (resampled < auc).mean() + 0.5 * (resampled == auc).mean()
    bias = special.ndtri(np.clip(below, 1e-6, 1 - 1e-6))
    left = (wins.sum() - wins) / (pairs.sum() - pairs)
    skew = left.mean() - left
    spread = (skew**2).sum() ** 1.5
    bend = (skew**3).sum() / (6 * spread) if spread else 0.0
    at = [bias + special.ndtri(tail) for tail in TAILS]
    lo, hi = np.quantile(resampled, [special.ndtr(bias + z / (1 - bend * z)) for z in at])
    return float(lo), float(hi)


def _studentised(
    wins: np.ndarray, pairs: np.ndarray, counts: np.ndarray, auc: float, error: float
) -> Ends:
    """Bootstrap of t, on the logit scale; resamples without spread are left out."""
    if not error or auc in (0.0, 1.0):
        return auc, auc
    number = counts @ pairs
    found = ratio(counts @ wins, number)
    square = counts @ wins**2 - 2 * found * (counts @ (wins * pairs))
    own = np.sqrt(np.maximum(square + found**2 * (counts @ pairs**2), 0)) / number
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (special.logit(found) - special.logit(auc)) / (own / (found * (1 - found)))
    t = t[np.isfinite(t)]
    if not len(t):
        return auc, auc
    scale = error / (auc * (1 - auc))
    hi, lo = (special.expit(special.logit(auc) - np.quantile(t, tail) * scale) for tail in TAILS)
    return float(lo), float(hi)


def _t(auc: float, error: float, freedom: float) -> Ends:
    """Student's t on the AUC itself."""
    reach = special.stdtrit(freedom, TAILS[1]) * error
    return float(auc - reach), float(auc + reach)


def _korn_graubard(auc: float, error: float, freedom: float) -> Ends:
    """Clopper and Pearson's interval with an effective number of trials, Korn and Graubard 1998."""
    shrink = (NORMAL / special.stdtrit(freedom, TAILS[1])) ** 2
    trials = shrink * auc * (1 - auc) / error**2 if error else freedom + 1
    won, lost = auc * trials, (1 - auc) * trials
    lo = special.betaincinv(won, lost + 1, TAILS[0]) if won else 0.0
    hi = special.betaincinv(won + 1, lost, TAILS[1]) if lost else 1.0
    return float(lo), float(hi)


def _wilson(auc: float, error: float, freedom: float) -> Ends:
    """Wilson's score interval with an effective number of trials and t's quantile."""
    trials = auc * (1 - auc) / error**2 if error else freedom + 1
    square = special.stdtrit(freedom, TAILS[1]) ** 2 / trials
    middle = (auc + square / 2) / (1 + square)
    reach = np.sqrt(square * auc * (1 - auc) + square**2 / 4) / (1 + square)
    return float(middle - reach), float(middle + reach)


def _logit_jackknife(wins: np.ndarray, pairs: np.ndarray, freedom: float) -> Ends:
    """As logit-t, but groups are deleted on the logit scale; NaN where an AUC then is 0 or 1."""
    auc, left = wins.sum() / pairs.sum(), (wins.sum() - wins) / (pairs.sum() - pairs)
    if min(auc, left.min()) <= 0 or max(auc, left.max()) >= 1:
        return float("nan"), float("nan")
    square = ((special.logit(left) - special.logit(auc)) ** 2).sum()
    reach = special.stdtrit(freedom, TAILS[1]) * np.sqrt((1 - 1 / len(pairs)) * square)
    lo, hi = special.expit(special.logit(auc) + np.array([-reach, reach]))
    return float(lo), float(hi)
