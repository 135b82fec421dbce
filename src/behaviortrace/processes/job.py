"""What is asked of a job, so that any executor can have it worked at."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Job(Protocol):
    """Work of one process, which tells by two small files where it stands and what became of it."""

    @property
    def key(self) -> int:
        """Unique among the jobs that are worked at together."""

    @property
    def module(self) -> str:
        """The module that does it: its ``parse(text)`` makes the job from :meth:`dump`, its
        ``work(job, progress)`` does the work, going on where an earlier process stopped."""

    @property
    def threads(self) -> int:
        """Threads it may compute with."""

    @property
    def log(self) -> Path:
        """What its process printed."""

    def aside(self, kind: str) -> Path:
        """Where the process tells its "progress" or its "outcome"."""

    def dump(self) -> str:
        """As text, for another process."""
