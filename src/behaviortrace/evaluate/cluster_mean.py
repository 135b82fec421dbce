"""A mean over rows that come in clusters, with the interval that holds and the paper's.

Chosen by simulation (``behaviortrace bench intervals``, statistic "mean"): percentiles are too
narrow with few clusters, t over clusters is not. A cosine far from its ends needs no other scale.

Source of the parts: the jackknife over clusters, Bell and McCaffrey 2002; clusters counted by their
weight, Kish 1965.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from behaviortrace.evaluate.bootstrap import (
    ALIKE,
    ALONE,
    LEVEL,
    UNDEFINED,
    Interval,
    no_interval,
    percentile_interval,
    ratio,
    resample_counts,
)

_NO_SPREAD = 1e-12  # a standard error below this share of the values is rounding


def cluster_t(values: np.ndarray, cluster: np.ndarray) -> Interval:
    """Mean over rows, with a 95% interval by Student's t over clusters.

    Args:
        values: shape (n,), finite.
        cluster: shape (n,), what is independent, such as a rollout's prompt.

    Returns:
        The interval; its bounds are NaN, with a reason, for fewer than two clusters and where no
        cluster's mean differs from the others, all is NaN for no rows.

    Example:
        >>> found = cluster_t(np.array([0.1, 0.3, 0.2, 0.4]), np.array([0, 0, 1, 2]))
        >>> round(found.point, 2), round(found.lo, 2), round(found.hi, 2)
        (0.25, -0.06, 0.56)
    """
    total, size = _sums(values, cluster)
    if len(size) < 2:
        return _pointless(values)
    share = size / size.sum()
    mean = total.sum() / size.sum()
    moved = (total - mean * size) / size.sum() / (1 - share)
    error = np.sqrt((1 - 1 / len(size)) * (moved**2).sum())
    if error <= _NO_SPREAD * np.abs(values).max():
        return no_interval(float(mean), ALIKE.format(unit="cluster"))
    reach = special.stdtrit(1 / (share**2).sum() - 1, 0.5 + LEVEL / 2) * error
    return Interval(float(mean), float(mean - reach), float(mean + reach))


def cluster_percentile(
    values: np.ndarray, cluster: np.ndarray, resamples: int, seed: int
) -> Interval:
    """Mean over rows, with the paper's interval: percentiles over resampled clusters.

    Args:
        values: shape (n,), finite.
        cluster: shape (n,), the unit drawn, such as a rollout's prompt.
        resamples: number of bootstrap resamples.
        seed: of the resampling.

    Returns:
        The interval; its bounds are NaN, with a reason, for fewer than two clusters and where no
        cluster's mean differs from the others, all is NaN for no rows.
    """
    total, size = _sums(values, cluster)
    if len(size) < 2:
        return _pointless(values)
    means = [
        ratio(counts @ total, counts @ size)
        for counts in resample_counts(len(size), resamples, seed)
    ]
    return percentile_interval(float(np.mean(values)), np.concatenate(means), "cluster")


def _sums(values: np.ndarray, cluster: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sum and number of each cluster's values."""
    if not len(values):
        return np.empty(0), np.empty(0)
    _, code = np.unique(np.asarray(cluster), return_inverse=True)
    return np.bincount(code, weights=values), np.bincount(code).astype(np.float64)


def _pointless(values: np.ndarray) -> Interval:
    """Without a second cluster there is a mean, and nothing to say of its error."""
    if not len(values):
        return UNDEFINED
    return no_interval(float(np.mean(values)), ALONE.format(unit="cluster", what="rows"))
