"""Control: how probable the completion is under the model."""

from __future__ import annotations

import numpy as np

from behaviortrace.estimators.inputs import Inputs
from behaviortrace.estimators.registry import estimator


@estimator(
    name="fluency",
    needs=frozenset({"fluency"}),
    target_free=True,
    scale="invariant",
    reference="the paper, section 3.5 and pitfall P5",
)
def fluency(inputs: Inputs) -> np.ndarray:
    """Mean token log-probability, nats. Returns (n,) float64."""
    return inputs.column("fluency")
