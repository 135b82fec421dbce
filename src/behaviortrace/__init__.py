"""BehaviorTrace: which rollouts taught a model its behaviour, and how to know the answer is real.

The names below are the public interface; they load on first use, so that the command line starts
without waiting for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from behaviortrace import estimators
    from behaviortrace.capture import CountSketch, Tracer, replay
    from behaviortrace.capture.directional import token_scores
    from behaviortrace.errors import BehaviorTraceError
    from behaviortrace.records import Target, Verdict
    from behaviortrace.run import Run
    from behaviortrace.scores import score

__version__ = "0.1.0"

__all__ = [
    "BehaviorTraceError",
    "CountSketch",
    "Run",
    "Target",
    "Tracer",
    "Verdict",
    "estimators",
    "replay",
    "score",
    "token_scores",
]

_HOMES = {
    "BehaviorTraceError": "behaviortrace.errors",
    "CountSketch": "behaviortrace.capture",
    "Run": "behaviortrace.run",
    "Target": "behaviortrace.records",
    "Tracer": "behaviortrace.capture",
    "Verdict": "behaviortrace.records",
    "replay": "behaviortrace.capture",
    "score": "behaviortrace.scores",
    "token_scores": "behaviortrace.capture.directional",
}


def __getattr__(name: str) -> Any:
    if name == "estimators":
        return importlib.import_module("behaviortrace.estimators")
    if name not in _HOMES:
        raise AttributeError(f"module 'behaviortrace' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
