"""The command line: one thin command per stage.

Commands import what computes inside their functions, so that help and completion come at once.
"""

from behaviortrace.cli.app import main

__all__ = ["main"]
