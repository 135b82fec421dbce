"""Estimators that rank rollouts, and the controls that must not beat them.

One small pure function a file: :class:`Inputs` in, (n,) scores out, higher ranks first.
"""

from behaviortrace.estimators.inputs import Inputs
from behaviortrace.estimators.registry import DEGREES, Estimator, estimator, get, names

# Importing a unit registers it; the order is that of the tables.
from behaviortrace.estimators import dot, gas, trak, tracincp  # noqa: F401  # isort: skip
from behaviortrace.estimators import norm, fluency, length, local_buffer  # noqa: F401  # isort: skip
from behaviortrace.estimators import random, string_match, advantage  # noqa: F401  # isort: skip
from behaviortrace.estimators import advantage_x_match  # noqa: F401  # isort: skip

__all__ = ["DEGREES", "Estimator", "Inputs", "estimator", "get", "names"]
