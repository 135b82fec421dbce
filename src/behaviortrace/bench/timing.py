"""Times that can be compared: arms take turns, medians are quoted, memory is watched."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psutil


def interleaved(
    arms: Mapping[str, Callable[[], Any]],
    rounds: int,
    progress: Callable[[int], None] | None = None,
) -> dict[str, list[float]]:
    """Wall seconds of each arm, one run of each a round after an untimed one.

    Args:
        arms: name -> what to run.
        rounds: timed runs of each.
        progress: called with the number of runs done, the untimed ones included.
    """
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    done = 0
    for turn in range(rounds + 1):
        for name, arm in arms.items():
            began = time.perf_counter()
            arm()
            if turn:
                seconds[name].append(time.perf_counter() - began)
            done += 1
            if progress is not None:
                progress(done)
    return seconds


def median_seconds(arms: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median wall seconds of each arm, interleaved."""
    return {n: statistics.median(s) for n, s in interleaved(arms, rounds).items()}


@contextmanager
def peak_memory() -> Iterator[list[float]]:
    """Watches the process's resident memory; the list holds the peak in bytes at the end."""
    process, peak, stop = psutil.Process(), [0.0], threading.Event()

    def watch() -> None:
        while not stop.is_set():
            peak[0] = max(peak[0], float(process.memory_info().rss))
            stop.wait(0.01)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        stop.set()
        watcher.join()
