"""TracInCP: the target followed over the checkpoints."""

from __future__ import annotations

import numpy as np

from behaviortrace.estimators.inputs import Inputs
from behaviortrace.estimators.registry import estimator


@estimator(
    name="tracincp",
    needs=frozenset({"sketches", "targets"}),
    scale="linear",
    reference="Pruthi et al. 2020 (the paper, section 3.3)",
)
def tracincp(inputs: Inputs) -> np.ndarray:
    """``sum_c lr_c phi . t_c`` over checkpoints c, taken as one product by linearity.

    Returns:
        (n,) float64.
    """
    assert inputs.targets is not None and inputs.learning_rates is not None
    return inputs.dots(combined(inputs.targets, inputs.learning_rates))


def combined(targets: np.ndarray, learning_rates: np.ndarray) -> np.ndarray:
    """``sum_c lr_c t_c``, (dim,) float64."""
    rates = np.asarray(learning_rates, dtype=np.float64)
    return rates @ np.asarray(targets, dtype=np.float64)
