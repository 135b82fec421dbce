"""A copy of a sweep without weights and sketches."""

from __future__ import annotations

from pathlib import Path

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import Run, atomic
from behaviortrace.sweep.manifest import Book, RunEntry, SweepManifest, read_sweep
from behaviortrace.sweep.stage import Sweep, merge_again


def _states(manifest: SweepManifest) -> list[RunEntry]:
    """The runs as they stand in a copy, where none is at work."""
    missing = {"state": "waiting", "note": "not finished when this copy was made"}
    return [
        run if run.state == "finished" else run.model_copy(update=missing) for run in manifest.runs
    ]


def export(root: Path, path: Path) -> Sweep:
    """Copy the finished runs of a sweep without weights and sketches, and merge the copies.

    Args:
        root: directory of a sweep.
        path: a directory that does not exist or is empty. The runs are copied all or none.

    Returns:
        The copy.

    Raises:
        BehaviorTraceError: not a sweep, no run of it is finished, one is damaged, the directory is
            not empty, or it cannot be written.
    """
    manifest = read_sweep(root)
    finished = [entry for entry in manifest.runs if entry.state == "finished"]
    if not finished:
        raise BehaviorTraceError(
            f"{root} has no finished run to copy; go on with the sweep's own command first"
        )
    with atomic.whole_folder(path) as aside:
        for entry in finished:
            Run.open(root / entry.folder).export(aside / entry.folder)
        Book(aside).write(manifest.model_copy(update={"results": {}, "runs": _states(manifest)}))
    merged = merge_again(path)
    atomic.remove(list(path.rglob(".lock")))
    return merged
