"""Control: the advantage training gave the rollout."""

from __future__ import annotations

import numpy as np

from behaviortrace.estimators.inputs import Inputs
from behaviortrace.estimators.registry import estimator


@estimator(
    name="advantage",
    needs=frozenset({"advantage"}),
    target_free=True,
    scale="invariant",
    reference="the paper, section 7",
)
def advantage(inputs: Inputs) -> np.ndarray:
    """The rollout's advantage. Returns (n,) float64; NaN where it had none, as in draws."""
    return inputs.column("advantage")
