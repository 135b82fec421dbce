"""What a person sees while work goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from behaviortrace.train.progress import Progress as Report

_WIDE = 160


def _console(**settings: Any) -> Console:
    """A console that does not cut tables to 80 columns where nobody's terminal is that narrow."""
    made = Console(**settings)
    if made.is_terminal or "COLUMNS" in os.environ:
        return made
    return Console(**settings, width=_WIDE)


stdout = _console()
stderr = _console(stderr=True)


@contextmanager
def progress_bars() -> Iterator[Report]:
    """One bar a stage on stderr, with the time left; plain lines where stderr is no terminal."""
    if not stderr.is_terminal:
        yield _Lines()
        return
    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=stderr) as bars:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int, seconds_left: float | None) -> None:
            if stage not in tasks or (done == 0 and bars.tasks[tasks[stage]].finished):
                tasks[stage] = bars.add_task(stage, total=total, left="")
            bars.update(
                tasks[stage], completed=done, total=total, left=left(done, total, seconds_left)
            )

        yield report


class _Lines:
    """A line a stage at its start, at tenths of the way, and at its end."""

    def __init__(self) -> None:
        self._said: dict[str, int] = {}

    def __call__(self, stage: str, done: int, total: int, seconds_left: float | None) -> None:
        tenth = 10 if total <= 0 else 10 * done // total
        if done and self._said.get(stage) == tenth:
            return
        self._said[stage] = tenth
        remaining = left(done, total, seconds_left)
        stderr.print(f"{stage} {done}/{total} {remaining}".rstrip(), highlight=False)


def left(done: int, total: int, seconds: float | None) -> str:
    """The time left of a stage, as a person reads it."""
    if done >= total:
        return "done"
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} left"


def say(line: str) -> None:
    """A line for a person, on stderr, so that stdout stays for results."""
    stderr.print(line, highlight=False, markup=False, soft_wrap=True)


def print_json(data: Mapping[str, Any] | list[Any]) -> None:
    """Machine-readable output on stdout; undefined numbers are null."""
    print(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))
