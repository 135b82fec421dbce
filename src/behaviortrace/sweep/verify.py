"""Integrity of a whole sweep, one line a problem."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import Run
from behaviortrace.run.inventory import damage
from behaviortrace.run.manifest import NAME
from behaviortrace.sweep.manifest import RunEntry, SweepManifest, read_sweep
from behaviortrace.sweep.standing import mistaken


def verify(root: Path) -> list[str]:
    """Every problem of a sweep: of its merged tables and of every run that was begun.

    Args:
        root: directory of a sweep, or of an exported copy.

    Returns:
        A line each, files relative to the sweep; empty where it is sound. A run that waits and was
        never begun is no problem.

    Raises:
        BehaviorTraceError: not a sweep, or its manifest cannot be read.
    """
    manifest = read_sweep(root)
    found = [
        f"{entry.file} {what}"
        for entry in manifest.results.values()
        if (what := damage(root, entry)) is not None
    ]
    for run in manifest.runs:
        found += (f"{run.folder}: {problem}" for problem in _run_problems(root, manifest, run))
    return found


def _run_problems(root: Path, manifest: SweepManifest, entry: RunEntry) -> Iterator[str]:
    if not (root / entry.folder / NAME).exists():
        if entry.state == "finished":
            yield f"is finished by sweep.json and has no {NAME}"
        return
    try:
        run = Run.open(root / entry.folder)
        if wrong := mistaken(manifest, entry, run):
            yield wrong
        yield from run.verify()
    except BehaviorTraceError as error:
        yield " ".join(str(error).split())
