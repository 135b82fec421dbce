"""What a person sees of jobs that are worked at side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.live import Live
from rich.table import Table

from behaviortrace.cli import view

if TYPE_CHECKING:
    from behaviortrace.processes.executors import Standing, Watch


@contextmanager
def standings(word: str) -> Iterator[Watch]:
    """One line a worker on stderr; where stderr is no terminal, a line whenever one moves on.

    Args:
        word: what a job's key numbers, such as "seed".
    """
    if not view.stderr.is_terminal:
        yield _Told(word)
        return
    with Live(console=view.stderr, refresh_per_second=4, transient=True) as live:
        lost = _Lost(word)

        def watch(found: Sequence[Standing]) -> None:
            lost(found)
            live.update(_table(word, found))

        yield watch


def _table(word: str, found: Sequence[Standing]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for standing in found:
        if standing.state == "running":
            done = f"{standing.done}/{standing.total}"
            left = view.left(standing.done, standing.total, standing.seconds_left)
            table.add_row(f"{word} {standing.key}", standing.stage, done, left)
    states = [standing.state for standing in found]
    counts = {state: states.count(state) for state in ("waiting", "finished", "failed")}
    over = counts["finished"] + counts["failed"] == len(states)
    table.add_row("merging" if over else "", *(f"{n} {state}" for state, n in counts.items()))
    return table


class _Lost:
    """Says which process was lost, once."""

    def __init__(self, word: str) -> None:
        self._word = word
        self._said: set[tuple[int, int]] = set()

    def __call__(self, found: Sequence[Standing]) -> None:
        for standing in found:
            key = (standing.key, standing.attempts)
            if standing.state == "waiting" and standing.reason and key not in self._said:
                self._said.add(key)
                view.say(f"{self._word} {standing.key}: {standing.reason}; going on where it was")


class _Told:
    """Plain lines: each run's stages, at their start, at tenths of the way, and at their end."""

    def __init__(self, word: str) -> None:
        self._word = word
        self._lost = _Lost(word)
        self._said: dict[int, tuple[str, int, str]] = {}

    def __call__(self, found: Sequence[Standing]) -> None:
        self._lost(found)
        for s in found:
            if s.state == "waiting":
                continue
            tenth = 10 if s.total <= 0 else 10 * s.done // s.total
            key = (s.state, tenth, s.stage)
            if self._said.get(s.key) == key:
                continue
            self._said[s.key] = key
            if s.state == "running":
                left = view.left(s.done, s.total, s.seconds_left)
                view.say(f"{self._word} {s.key}: {s.stage} {s.done}/{s.total} {left}".rstrip())
            else:
                view.say(f"{self._word} {s.key}: {s.state}")
