"""Who is at work in a sweep: a lock ends with the process that holds it, what a file says does not.

The sweep's own lock is ``.lock`` in its directory, that of a run ``progress/NAME.lock``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import atomic

_LOOK_SECONDS = 1.0  # longer than any look at a lock, which takes it for an instant


def sweep_lock(root: Path) -> Path:
    """The file that the process of a sweep locks."""
    return root / ".lock"


def run_lock(root: Path, name: str) -> Path:
    """The file that the process of one run of a sweep locks; ``name`` is the run's folder."""
    return root / "progress" / f"{name}.lock"


@contextmanager
def alone(lock: Path, busy: str, seconds: float = _LOOK_SECONDS) -> Iterator[None]:
    """Hold a lock.

    Args:
        lock: its file.
        busy: what to say where another process holds it.
        seconds: to wait for that process.

    Raises:
        BehaviorTraceError: another process holds it, or the file cannot be written.
    """
    held_by_us = FileLock(lock)
    try:
        held_by_us.acquire(timeout=seconds)
    except Timeout as error:
        raise BehaviorTraceError(busy) from error
    except OSError as error:
        raise atomic.write_error(lock, error) from error
    try:
        yield
    finally:
        held_by_us.release()


def held(lock: Path) -> bool:
    """Whether a process holds a lock now. A file that may not be written, as in a copy, is free."""
    if not lock.exists():
        return False
    try:
        with FileLock(lock).acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return False
