"""Control: does the completion show the behaviour?"""

from __future__ import annotations

import numpy as np

from behaviortrace.estimators.inputs import Inputs
from behaviortrace.estimators.registry import estimator


@estimator(
    name="string_match",
    needs=frozenset({"behavior"}),
    target_free=True,
    scale="invariant",
    reference="the paper, section 7",
)
def string_match(inputs: Inputs) -> np.ndarray:
    """1 where the completion shows the behaviour, else 0. Returns (n,) float64."""
    return inputs.column("behavior")
