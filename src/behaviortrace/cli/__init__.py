"""The command line: one thin command per stage."""

from behaviortrace.cli.app import main

__all__ = ["main"]
