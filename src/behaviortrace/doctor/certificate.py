"""How far sketched inner products lie from exact ones, and how far theory lets them lie."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_DRAWS = 10_000
_PASS = 0.999  # share of certificates that pass where sketches are as theory has them


def certificate(gram: np.ndarray, sketches: np.ndarray) -> dict[str, Any]:
    """Compare sketched cosines and inner products with exact ones, and both with theory.

    Theory: the sketched inner product of unit vectors with cosine c has variance (1 + c^2) / dim
    (Charikar et al., 2002, less the few coordinates that cannot collide), and by the delta method
    the sketched cosine has standard deviation (1 - c^2) / sqrt(dim). Errors of pairs that share a
    rollout depend on one another; their means and covariances are those of a Wishart matrix with
    ``dim`` degrees of freedom, from which the range of the rms error is drawn.

    Args:
        gram: (n, n) exact inner products.
        sketches: (n, dim), of the same vectors.

    Returns:
        ``pairs``, ``dim``, ``theory`` (1 / sqrt(dim)), ``rms_cosine_error``, ``expected`` (its root
        mean square under theory), ``range`` (its central 95%), ``bar`` (99.9% lie below),
        ``rms_dot_error`` and ``expected_dot_error`` (errors over the product of the norms),
        ``worst`` (the pair furthest from its exact cosine in its own standard deviations) and
        ``passed`` (the rms error is at most ``bar``).
    """
    n, dim = sketches.shape
    found = sketches.astype(np.float64) @ sketches.astype(np.float64).T
    upper = np.triu_indices(n, 1)
    exact = cosines(gram)[upper]
    errors = cosine_errors(gram, sketches)
    size = np.sqrt(np.diag(gram))
    dots = ((found - gram) / np.outer(size, size))[upper]
    theory = rms_under_theory(cosines(gram), dim)
    low, high, bar = np.quantile(theory, [0.025, 0.975, _PASS])
    deviation = np.maximum(1 - exact**2, 1e-12) / math.sqrt(dim)
    worst = int(np.argmax(np.abs(errors) / deviation))
    return {
        "pairs": len(exact),
        "dim": dim,
        "theory": dim**-0.5,
        "rms_cosine_error": _rms(errors),
        "expected": _rms(theory),
        "range": [float(low), float(high)],
        "bar": float(bar),
        "rms_dot_error": _rms(dots),
        "expected_dot_error": math.sqrt(float(np.mean(1 + exact**2)) / dim),
        "worst": {
            "pair": [int(upper[0][worst]), int(upper[1][worst])],
            "exact": float(exact[worst]),
            "sketched": float(exact[worst] + errors[worst]),
            "deviations": float(errors[worst] / deviation[worst]),
        },
        "passed": _rms(errors) <= float(bar),
    }


def cosine_errors(gram: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Cosine of what is kept of two rollouts minus the exact one, for each pair, (pairs,).

    Args:
        gram: (n, n) exact inner products.
        kept: (n, numbers), sketches or what else stands for the vectors.
    """
    rows = kept.astype(np.float64)
    return (cosines(rows @ rows.T) - cosines(gram))[np.triu_indices(len(rows), 1)]


def cosines(gram: np.ndarray) -> np.ndarray:
    """(..., n, n) cosines of (..., n, n) inner products."""
    size = np.sqrt(np.diagonal(gram, axis1=-2, axis2=-1))
    return gram / (size[..., :, None] * size[..., None, :])


def rms_under_theory(exact: np.ndarray, dim: int, draws: int = _DRAWS) -> np.ndarray:
    """Rms errors of all pairwise cosines, (draws,), as often as sketches had been drawn anew.

    Sketched inner products are drawn as Wishart matrices by Bartlett's decomposition.

    Args:
        exact: (n, n) cosines, n at most ``dim``.
        dim: of the sketch.
        draws: how many.
    """
    n = len(exact)
    random = np.random.default_rng(0)
    values, vectors = np.linalg.eigh(exact)
    root = vectors * np.sqrt(values.clip(min=0))
    upper = np.triu_indices(n, 1)
    found = np.empty(draws)
    for at in range(0, draws, 1000):
        k = min(1000, draws - at)
        factor = np.tril(random.normal(size=(k, n, n)), -1)
        factor[:, range(n), range(n)] = np.sqrt(random.chisquare(dim - np.arange(n), (k, n)))
        moved = root @ factor
        error = cosines(moved @ moved.transpose(0, 2, 1)) - exact
        found[at : at + k] = np.sqrt(np.mean(error[:, *upper] ** 2, axis=1))
    return found


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
