"""Control: chance."""

from __future__ import annotations

import hashlib

import numpy as np

from behaviortrace.estimators.inputs import Inputs
from behaviortrace.estimators.registry import estimator


@estimator(
    name="random",
    needs=frozenset({"rollout_id"}),
    target_free=True,
    scale="invariant",
    reference="the paper, section 3.3",
)
def random(inputs: Inputs) -> np.ndarray:
    """Uniform in [0, 1), a hash of the seed and the rollout's id. Returns (n,) float64."""
    return np.array([_uniform(f"{inputs.seed}:{name}") for name in inputs.rows["rollout_id"]])


def _uniform(text: str) -> float:
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2.0**53
