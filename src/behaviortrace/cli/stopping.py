"""Long work that is stopped, by Ctrl-C or SIGTERM, ends with one line that says how to go on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from behaviortrace.cli import view

_BY_SIGNAL = 128  # a shell's exit code of a process that a signal ended, plus the signal's number


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised where Ctrl-C would be: what cleans up after one cleans up after both."""


@contextmanager
def told_how_to_go_on(remedy: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into a line on stderr, and exit code 130 or 143.

    Args:
        remedy: how to go on, asked once the work has been stopped.

    Raises:
        typer.Exit: stopped.
    """
    try:
        with _terminable():
            yield
    except KeyboardInterrupt as stopped:
        by_term = isinstance(stopped, Terminated)
        what = "stopped by SIGTERM" if by_term else "interrupted"
        view.say(f"behaviortrace: {what}; {remedy()}")
        number = signal.SIGTERM if by_term else signal.SIGINT
        raise typer.Exit(_BY_SIGNAL + number) from None


@contextmanager
def _terminable() -> Iterator[None]:
    """Have SIGTERM raise :class:`Terminated`; in a thread, which takes no signal, do nothing."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
