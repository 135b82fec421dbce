"""What a comparison can see: the smallest AUC its pairs detect."""

from __future__ import annotations

import numpy as np
from scipy import special

from behaviortrace.evaluate.auc import Pairs
from behaviortrace.evaluate.bootstrap import LEVEL

POWER = 0.80


def chance_error(pairs: Pairs) -> float:
    """Standard error of the AUC of a score that knows nothing; NaN without pairs.

    A pair's credit then varies by 1/4, and two pairs that share a rollout vary together by 1/12;
    others do not. Where a group has all its m x n pairs, that is Mann and Whitney's variance.
    """
    if not len(pairs):
        return float("nan")
    met = sum(_meetings(member) for member in (pairs.shows, pairs.lacks))
    return float(np.sqrt(len(pairs) / 4 + met / 12) / len(pairs))


def detectable(pairs: Pairs, power: float = POWER) -> float:
    """Smallest AUC above 0.5 whose 95% interval excludes 0.5 with the given power.

    The interval is that of :func:`behaviortrace.evaluate.logit_t.logit_t`. Groups whose AUCs differ
    by more than chance need a larger effect than this. Its degrees of freedom are the clusters'.

    Args:
        pairs: the pairs at hand, such as those matched by fluency.
        power: chance of finding the effect.

    Returns:
        An AUC in (0.5, 1), or NaN where fewer than two clusters have pairs.
    """
    number = pairs.per_cluster()
    if np.count_nonzero(number) < 2:
        return float("nan")
    freedom = number.sum() ** 2 / (number**2).sum() - 1
    reach = special.stdtrit(freedom, 0.5 + LEVEL / 2) + special.stdtrit(freedom, power)
    return float(special.expit(reach * 4 * chance_error(pairs)))  # logit has slope 4 at 0.5


def _meetings(member: np.ndarray) -> float:
    """Ordered couples of pairs that share this member."""
    times = np.unique(member, return_counts=True)[1].astype(np.float64)
    return float((times * (times - 1)).sum())
