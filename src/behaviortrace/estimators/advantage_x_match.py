"""Control: advantage of the rollouts that show the behaviour."""

from __future__ import annotations

import numpy as np

from behaviortrace.estimators.inputs import Inputs
from behaviortrace.estimators.registry import estimator


@estimator(
    name="advantage_x_match",
    needs=frozenset({"advantage", "behavior"}),
    target_free=True,
    scale="invariant",
    reference="the paper, section 7",
)
def advantage_x_match(inputs: Inputs) -> np.ndarray:
    """Advantage times 1 where the completion shows the behaviour, else 0. Returns (n,) float64."""
    return inputs.column("advantage") * inputs.column("behavior")
