"""Times that can be compared: arms take turns and medians are quoted."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def interleaved(
    arms: Mapping[str, Callable[[], Any]],
    rounds: int,
    progress: Callable[[int], None] | None = None,
) -> dict[str, list[float]]:
    """Wall seconds of each arm, one run of each a round after an untimed one.

    Args:
        arms: name -> what to run; methods ``prepare`` and ``finish`` of an arm are called before
            and after each run, untimed.
        rounds: timed runs of each.
        progress: called with the number of runs done, the untimed ones included.
    """
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    done = 0
    for turn in range(rounds + 1):
        for name, arm in arms.items():
            _aside(arm, "prepare")
            began = time.perf_counter()
            arm()
            took = time.perf_counter() - began
            _aside(arm, "finish")
            if turn:
                seconds[name].append(took)
            done += 1
            if progress is not None:
                progress(done)
    return seconds


def _aside(arm: Callable[[], Any], name: str) -> None:
    method = getattr(arm, name, None)
    if method is not None:
        method()


def median_seconds(arms: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median wall seconds of each arm, interleaved."""
    return {n: statistics.median(s) for n, s in interleaved(arms, rounds).items()}


def paired_ratio(seconds: Sequence[float], of: Sequence[float]) -> float:
    """Median over rounds of one arm's seconds over another's in the same round.

    On a machine whose speed drifts, neighbours in time are alike where medians of either are not.
    """
    return statistics.median(a / b for a, b in zip(seconds, of, strict=True))


def peak_memory() -> float:
    """Largest resident memory this process has had, bytes.

    On Linux from ``VmHWM``, which starts anew with the program: ``ru_maxrss`` is handed down from
    the process that started it.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return float(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)
