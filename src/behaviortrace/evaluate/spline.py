"""Fluency control that need not be linear: a spline, cross-fit by cluster of groups.

An effect of fluency that bends survives a straight line (the paper's section 7). Here the score is
regressed on a natural cubic spline of fluency, with an intercept a group.
"""

from __future__ import annotations

import numpy as np

from behaviortrace.evaluate.fluency import center, to_unit

FOLDS = 5
KNOTS = (0.05, 0.275, 0.5, 0.725, 0.95)
"""Quantiles of fluency, as Harrell 2015, section 2.4.6, places five knots."""


def basis(fluency: np.ndarray) -> np.ndarray:
    """Natural cubic spline of fluency: cubic between the knots, straight beyond them.

    Args:
        fluency: shape (n,), finite.

    Returns:
        Shape (n, k), k at most 5: one column a distinct knot, 1 there and 0 at the others; no
        columns where fluency is constant.
    """
    from scipy.interpolate import CubicSpline  # slow to import, and seldom needed

    knots = np.unique(np.quantile(fluency, KNOTS)) if len(fluency) else np.zeros(0)
    if len(knots) < 2:
        return np.zeros((len(fluency), 0))
    curve = CubicSpline(knots, np.eye(len(knots)), bc_type="natural")
    inside = np.clip(fluency, knots[0], knots[-1])
    return curve(inside) + curve(inside, 1) * (fluency - inside)[:, None]


def spline_fit(
    score: np.ndarray,
    fluency: np.ndarray,
    code: np.ndarray,
    n_groups: int,
    seed: int = 0,
    cluster_of: np.ndarray | None = None,
) -> np.ndarray:
    """What fluency explains of a score inside groups, by a curve fitted to other clusters of them.

    The clusters are dealt into folds at random, and the curve of each fold comes from the rest; a
    curve fitted to the very rollouts it is taken from would follow their noise too.

    Args:
        score: shape (n,), finite.
        fluency: shape (n,), finite, nats.
        code: shape (n,), group codes in ``range(n_groups)``.
        n_groups: number of groups; with fewer than two clusters of them there is nothing to fit
            on, and nothing is explained.
        seed: of the folds.
        cluster_of: shape (n_groups,), cluster code of each group, from 0 on; each its own where
            None.

    Returns:
        Shape (n,); compare it inside a group only, since its level is arbitrary.
    """
    curve = basis(to_unit(fluency))
    own = np.arange(n_groups) if cluster_of is None else cluster_of
    n_clusters = int(own.max(initial=-1)) + 1
    if not curve.shape[1] or n_clusters < 2:
        return np.zeros(len(score))
    centered = np.column_stack([center(column, code, n_groups) for column in curve.T])
    unit = np.frexp(np.abs(score).max(initial=0.0))[1]
    left = center(np.ldexp(score, -unit), code, n_groups)
    folds = min(FOLDS, n_clusters)
    fold = np.random.default_rng(seed).permutation(n_clusters)[own[code]] % folds
    fitted = np.empty(len(score))
    for each in range(folds):
        own = fold == each
        weights = np.linalg.lstsq(centered[~own], left[~own], rcond=None)[0]
        fitted[own] = curve[own] @ weights
    return np.ldexp(fitted, unit)
