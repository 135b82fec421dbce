"""Inner product with the target."""

from __future__ import annotations

import numpy as np

from behaviortrace.estimators.inputs import Inputs
from behaviortrace.estimators.registry import estimator


@estimator(
    name="dot",
    needs=frozenset({"sketches", "target"}),
    scale="linear",
    reference="Pruthi et al. 2020, at one checkpoint (the paper, section 3.3)",
)
def dot(inputs: Inputs) -> np.ndarray:
    """``phi . t``: how much a step along the rollout's gradient lowers the target's loss.

    Returns:
        (n,) float64.
    """
    assert inputs.target is not None
    return inputs.dots(inputs.target)
