"""How long work tells its caller where it stands."""

from __future__ import annotations

import time
from typing import Protocol


class Progress(Protocol):
    """Called with a stage, the units done, the units in all, and the seconds left.

    Stages: "download", "convert" (pulling a model), "tiny" (training the tiny model), "warm-up",
    "train", "probes". ``seconds_left`` is None while it cannot be estimated.
    """

    def __call__(self, stage: str, done: int, total: int, seconds_left: float | None) -> None:
        """Report one step of progress."""


def silent(stage: str, done: int, total: int, seconds_left: float | None) -> None:
    """The progress callback that says nothing."""


class Clock:
    """Reports one stage's progress and estimates its seconds left from the units done so far.

    Args:
        progress: where to report; None reports nowhere.
        stage: name of the stage.
        total: units in all.
        start: units already done when the stage begins, as after a resume.
    """

    def __init__(self, progress: Progress | None, stage: str, total: int, start: int = 0) -> None:
        self._progress = progress or silent
        self._stage = stage
        self._total = total
        self._start = start
        self._began = time.monotonic()
        self._progress(stage, start, total, None)

    def at(self, done: int) -> None:
        """Report that ``done`` units are complete."""
        here = done - self._start
        left = None
        if here > 0:
            left = (time.monotonic() - self._began) / here * (self._total - done)
        self._progress(self._stage, done, self._total, left)
