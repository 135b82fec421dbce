"""Tie-aware precision at |GT|, with the base rate below it and the ceiling above it.

Source: the paper's section 3.5 and pitfall P2. Scores of one step are often tied (all rollouts of
a step share its embedding), so precision is the expectation over a uniformly random order inside
each tie block: a block cut by k earns its share.
"""

from __future__ import annotations

import numpy as np


def precision_at_ground_truth(score: np.ndarray, label: np.ndarray) -> float:
    """Expected precision of the k best-scored rows, k being the number of positives.

    Args:
        score: shape (n,), any order-comparable floats; higher ranks first. ``-inf`` ranks last.
        label: shape (n,), bool; True for ground truth.

    Returns:
        A value in [0, 1], or NaN where there is no positive (k = 0 is undefined).

    Raises:
        ValueError: a score is NaN, or the shapes differ.

    Example:
        >>> precision_at_ground_truth(np.array([2.0, 1.0, 1.0]), np.array([True, True, False]))
        0.75
    """
    score, label = np.asarray(score, dtype=np.float64), np.asarray(label, dtype=bool)
    if score.shape != label.shape or score.ndim != 1:
        raise ValueError(f"score has shape {score.shape}, label {label.shape}; both must be (n,)")
    if np.isnan(score).any():
        raise ValueError(f"{int(np.isnan(score).sum())} scores are NaN; a NaN has no rank")
    k = int(label.sum())
    if k == 0:
        return float("nan")
    threshold = np.partition(score, len(score) - k)[len(score) - k]
    above, tied = score > threshold, score == threshold
    places = k - int(above.sum())
    hits = float(label[above].sum()) + places * float(label[tied].mean())
    return hits / k


def base_rate(label: np.ndarray) -> float:
    """Share of positives, |GT| / N: the precision of a random order. NaN for no rows."""
    label = np.asarray(label, dtype=bool)
    return float(label.mean()) if len(label) else float("nan")


def ceiling(label: np.ndarray, block: np.ndarray | None = None) -> float:
    """Best precision at |GT| any score can reach that is constant in each tie block.

    It is reached by ordering the blocks by their ground-truth density.

    Args:
        label: shape (n,), bool; True for ground truth.
        block: shape (n,), any hashable sortable values; rows with the same value are tied. None
            for no ties: every row is its own block, and the ceiling is 1.

    Returns:
        A value in [base rate, 1], or NaN where there is no positive.

    Example:
        >>> ceiling(np.array([True, True, False, False]), np.array([0, 0, 0, 1]))
        0.6666666666666666
    """
    label = np.asarray(label, dtype=bool)
    if block is None:
        return 1.0 if label.any() else float("nan")
    _, code = np.unique(np.asarray(block), return_inverse=True)
    density = np.bincount(code, weights=label) / np.bincount(code)
    return precision_at_ground_truth(density[code], label)


def lift(precision: float, rate: float) -> float:
    """Precision over base rate: how many times better than chance. NaN where undefined."""
    return precision / rate if rate > 0 else float("nan")
