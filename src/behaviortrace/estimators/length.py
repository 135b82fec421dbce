"""Control: number of completion tokens."""

from __future__ import annotations

import numpy as np

from behaviortrace.estimators.inputs import Inputs
from behaviortrace.estimators.registry import estimator


@estimator(
    name="length",
    needs=frozenset({"n_tokens"}),
    target_free=True,
    scale="invariant",
    reference="a trivial control (longer completions average more token gradients)",
)
def length(inputs: Inputs) -> np.ndarray:
    """Completion tokens under the loss mask. Returns (n,) float64."""
    return inputs.column("n_tokens")
