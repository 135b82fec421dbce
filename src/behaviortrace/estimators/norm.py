"""Control: size of the gradient."""

from __future__ import annotations

import numpy as np

from behaviortrace.estimators.inputs import Inputs
from behaviortrace.estimators.registry import estimator


@estimator(
    name="norm",
    needs=frozenset({"sketches"}),
    target_free=True,
    scale="sketch",
    reference="the paper, section 3.3 and pitfall P1",
)
def norm(inputs: Inputs) -> np.ndarray:
    """L2 norm: that of the gradient where it is known, else that of its sketch.

    Returns:
        (n,) float64.
    """
    return inputs.sketch_norms if inputs.exact_norms is None else inputs.exact_norms
