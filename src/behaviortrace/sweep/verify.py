"""Integrity of a whole sweep: what is damaged, and, as another finding, what is missing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from behaviortrace.draws.stage import draw_name
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.processes.locks import held, run_lock, sweep_lock
from behaviortrace.run import Run
from behaviortrace.run.inventory import damage
from behaviortrace.run.ledger import Ledger
from behaviortrace.run.manifest import NAME
from behaviortrace.run.verify import leftovers
from behaviortrace.sweep.manifest import INTERRUPTED, RunEntry, SweepManifest, read_sweep
from behaviortrace.sweep.standing import mistaken, undone


@dataclass(frozen=True)
class Verified:
    """What was found of a sweep.

    Attributes:
        damaged: a line for everything that is there and not what it should be, files relative to
            the sweep.
        incomplete: a line for every run that is not finished, and for merged tables that lack one.
        states: how many runs are "finished", "damaged", "failed", "at work", "interrupted",
            "unfinished" or "not started", as they are found.
    """

    damaged: list[str]
    incomplete: list[str]
    states: dict[str, int]

    @property
    def problems(self) -> list[str]:
        """Every line; empty where the sweep is whole and sound."""
        return [*self.damaged, *self.incomplete]

    def sentence(self) -> str:
        """Both findings in a clause, such as "is incomplete: 1 of 2 runs finished, 1 failed"."""
        total = sum(self.states.values())
        others = [f"{n} {state}" for state, n in self.states.items() if state != "finished"]
        counted = ", ".join([f"{self.states.get('finished', 0)} of {total} runs finished", *others])
        if not self.problems:
            return f"is sound: {total} runs finished"
        missing = f"is incomplete: {counted}" if self.incomplete else f"lacks nothing: {counted}"
        number = len(self.damaged)
        wrong = f"{number} problem{'' if number == 1 else 's'} of" if number else "no damage to"
        return f"{missing}; {wrong} what is there"


def verify(root: Path) -> Verified:
    """Look into the merged tables of a sweep, and into every run that is not being worked at.

    Whether a run is at work is told by the locks, not by ``sweep.json``, in which a process that
    was killed leaves what it last wrote.

    Args:
        root: directory of a sweep, or of an exported copy.

    Raises:
        BehaviorTraceError: not a sweep, or its manifest cannot be read.
    """
    manifest = read_sweep(root)
    if not held(sweep_lock(root)):
        manifest = manifest.stopped()
    damaged = [
        f"{entry.file} {what}"
        for entry in manifest.results.values()
        if (what := damage(root, entry)) is not None
    ]
    incomplete, states = [], Counter[str]()
    for entry in manifest.runs:
        found = _run(root, manifest, entry)
        damaged += [f"{entry.folder}: {problem}" for problem in found.damage]
        if found.lack:
            incomplete.append(f"{entry.folder}: {found.lack}")
        states[found.state] += 1
    if states["finished"] and not manifest.results:
        incomplete.append(f"results: not merged; make them with behaviortrace merge {root}")
    return Verified(damaged, incomplete, dict(states))


@dataclass(frozen=True)
class _Found:
    """A run as it is found; ``lack`` is None where nothing is left to do."""

    state: str
    lack: str | None = None
    damage: tuple[str, ...] = ()


def _run(root: Path, manifest: SweepManifest, entry: RunEntry) -> _Found:
    if entry.state == "running" or held(run_lock(root, Path(entry.folder).name)):
        return _Found("at work", "at work, and not looked into")
    failed = f"failed: {entry.note}" if entry.state == "failed" else None
    if not (root / entry.folder / NAME).exists():
        if entry.state == "finished":
            return _Found("damaged", None, (f"is finished by sweep.json and has no {NAME}",))
        return _Found("failed", failed) if failed else _Found("not started", "not started")
    harm, lack = _looked_into(root, manifest, entry)
    if failed:
        return _Found("failed", failed, harm)
    if lack:
        state = INTERRUPTED if entry.note == INTERRUPTED else "unfinished"
        return _Found(state, f"{state}: {lack}", harm)
    if harm:
        return _Found("damaged", None, harm)
    if entry.state != "finished":
        return _Found("unfinished", "finished, but not merged; the sweep's own command does it")
    return _Found("finished")


def _looked_into(
    root: Path, manifest: SweepManifest, entry: RunEntry
) -> tuple[tuple[str, ...], str | None]:
    """What is wrong with a run that has a manifest, and what it lacks."""
    try:
        run = Run.open(root / entry.folder)
        wrong = mistaken(manifest, entry, run)
        found = run.verify()
        if run.manifest.status != "complete":
            # What a process leaves that was stopped is no damage: going on removes it.
            left = leftovers(Ledger(run.path))
            harm = [*([wrong] if wrong else []), *(p for p in found if p not in left)]
            return tuple(harm), f"status {run.manifest.status!r}"
        harm = [*([wrong] if wrong else []), *found]
        names = [draw_name(seed) for seed in manifest.draws]
        return tuple(harm), None if harm else undone(run, names)
    except BehaviorTraceError as error:
        return (" ".join(str(error).split()),), None
