"""TRAK-style whitened inner product, solved in the dual."""

from __future__ import annotations

import numpy as np
from scipy import linalg

from behaviortrace.estimators import algebra
from behaviortrace.estimators.inputs import Inputs
from behaviortrace.estimators.registry import estimator

RIDGE = 0.1
"""lambda as a share of the mean diagonal of Phi^T Phi."""


@estimator(
    name="trak",
    needs=frozenset({"sketches", "target"}),
    scale="inverse",
    reference="Park et al. 2023, without ensembling or output weighting (the paper, section 3.3)",
)
def trak(inputs: Inputs) -> np.ndarray:
    """``(G + lambda I)^-1 Phi t`` with ``G = Phi Phi^T``.

    The same as ``Phi (Phi^T Phi + lambda I)^-1 t``, without the dim x dim matrix.
    ``lambda`` is 0.1 of the mean diagonal of ``Phi^T Phi``, that is of trace(G) / dim. The n x n
    solve takes 16 n^2 bytes. A rollout's score depends on which others are scored with it; rollouts
    without a sketch take no part.

    Returns:
        (n,) float64; NaN for a rollout without a sketch, and everywhere if all gradients are zero.
    """
    assert inputs.target is not None
    valid = np.isfinite(inputs.sketch_norms)
    scores = np.full(len(inputs), np.nan)
    factor = inputs.shared("trak", lambda sketches: _factor(sketches, valid))
    if factor is not None:
        scores[valid] = linalg.cho_solve(factor, inputs.dots(inputs.target)[valid])
    return scores


def _factor(sketches: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, bool] | None:
    dim = sketches.shape[1]
    gram = algebra.gram(sketches if valid.all() else sketches[valid])
    ridge = RIDGE * float(np.trace(gram)) / dim
    if not ridge > 0:
        return None
    gram[np.diag_indices_from(gram)] += ridge
    factor, lower = linalg.cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)
    return factor, lower
