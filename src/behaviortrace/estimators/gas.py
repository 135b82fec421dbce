"""Cosine with the target, known as GAS (gradient aggregated similarity)."""

from __future__ import annotations

import numpy as np

from behaviortrace.estimators.inputs import Inputs
from behaviortrace.estimators.registry import estimator


@estimator(
    name="gas",
    needs=frozenset({"sketches", "target"}),
    scale="invariant",
    reference="Hammoudeh & Lowd 2022, renormalised TracInCP (the paper, section 3.3)",
)
def gas(inputs: Inputs) -> np.ndarray:
    """``phi . t / (|phi| |t|)``.

    Returns:
        (n,) float64; NaN where either vector is zero, since a zero vector has no direction.
    """
    assert inputs.target is not None
    target_norm = np.linalg.norm(np.asarray(inputs.target, dtype=np.float64))
    size = inputs.sketch_norms * target_norm
    undefined = np.full(len(inputs), np.nan)
    return np.divide(inputs.dots(inputs.target), size, out=undefined, where=size > 0)
