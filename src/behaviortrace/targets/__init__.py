"""Targets: gradient directions of producing the behaviour, one kind a file."""

from behaviortrace.targets.registry import (
    Context,
    TargetKind,
    TargetUnavailable,
    get,
    names,
    target,
)
from behaviortrace.targets.stage import learning_rate, make_targets

# Importing a kind registers it.
from behaviortrace.targets import constructed, in_context, minimal_pair  # noqa: F401  # isort: skip

__all__ = [
    "Context",
    "TargetKind",
    "TargetUnavailable",
    "get",
    "learning_rate",
    "make_targets",
    "names",
    "target",
]
