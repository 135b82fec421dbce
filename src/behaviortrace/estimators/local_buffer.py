"""Control: what training saw last."""

from __future__ import annotations

import numpy as np

from behaviortrace.estimators.inputs import Inputs
from behaviortrace.estimators.registry import estimator

LAST_OF_TEN = 10
"""The buffer is one in this many of the steps, rounded up."""


@estimator(
    name="local_buffer",
    needs=frozenset({"step"}),
    target_free=True,
    scale="invariant",
    reference="after the local buffer of Hu et al. 2025 (the paper, section 3.3)",
)
def local_buffer(inputs: Inputs) -> np.ndarray:
    """1 in the last 10% of the steps present (rounded up), else 0. Returns (n,) float64."""
    step = inputs.column("step")
    present = np.unique(step)
    first = present[-(-len(present) // LAST_OF_TEN) * -1]
    return (step >= first).astype(np.float64)
