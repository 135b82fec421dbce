"""The pitfalls of a run as part of its results: what takes rows alone is shown for every run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.pitfalls.cliff import cliff
from behaviortrace.pitfalls.constructed import constructed
from behaviortrace.pitfalls.demonstration import Demonstration
from behaviortrace.pitfalls.fluency import fluency
from behaviortrace.pitfalls.headroom import headroom

if TYPE_CHECKING:
    from behaviortrace.run import Run

TABLE = "results/pitfalls"
SLICE = "results/pitfall_slice"
"""Stored by itself: it replays completions, and stays where rows are evaluated again."""

_OF_ROWS: dict[str, Callable[[Run], Demonstration]] = {
    "cliff": cliff,
    "headroom": headroom,
    "constructed": constructed,
    "fluency": fluency,
}


def demonstrate(run: Run) -> list[Demonstration]:
    """Show P1, P2, P4 and P5 on a run and store them as ``results/pitfalls``.

    One that the run has too little for is left out; the store names it with its reason.

    Args:
        run: an evaluated run.

    Raises:
        BehaviorTraceError: the run cannot be written.
    """
    found, stored = [], []
    for name, show in _OF_ROWS.items():
        try:
            shown = show(run)
        except BehaviorTraceError as error:
            stored.append({"name": name, "missing": str(error)})
            continue
        found.append(shown)
        stored.append(shown.as_json())
    run.save_json(TABLE, stored)
    return found


def keep(run: Run, shown: Demonstration) -> None:
    """Store the demonstration of the slice with the run."""
    run.save_json(SLICE, shown.as_json())


def load(run: Run) -> tuple[list[Demonstration], dict[str, str]]:
    """The demonstrations a run stores, in the paper's order, and why others are missing, by name.

    Raises:
        BehaviorTraceError: what it stores is damaged.
    """
    stored = run.json(TABLE) if run.has(TABLE) else []
    missing = {each["name"]: each["missing"] for each in stored if "missing" in each}
    found = [Demonstration.from_json(each) for each in stored if "missing" not in each]
    if run.has(SLICE):
        found.append(Demonstration.from_json(run.json(SLICE)))
    else:
        missing["slice"] = "it replays completions; `behaviortrace pitfall slice RUN` adds it"
    return sorted(found, key=lambda each: each.title), missing
