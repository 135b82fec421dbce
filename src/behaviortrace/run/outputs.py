"""Tables, JSON documents and targets that later stages derive; each may be written again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import safetensors.numpy

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.records import Target
from behaviortrace.run import atomic
from behaviortrace.run.copies import COPY, REMEDY
from behaviortrace.run.jsonable import jsonable
from behaviortrace.run.ledger import Ledger
from behaviortrace.run.manifest import (
    FileEntry,
    Manifest,
    TableEntry,
    TargetEntry,
    check_output,
    check_target,
)
from behaviortrace.run.shards import damaged, encode_table, read_file, read_table, read_tensors

_MAKERS = {
    "scores": "score",
    "results/verdicts": "check",
    **{f"results/leave_out_{name}": "leave-out" for name in ("arms", "effects", "curves", "lds")},
    "results": "evaluate",
}


def save_table(ledger: Ledger, name: str, frame: pl.DataFrame) -> None:
    """Store a table; see :meth:`Run.save_table`."""
    path = ledger.root / f"{_checked(check_output, name)}.parquet"
    content = encode_table(frame)
    entry = TableEntry(file=ledger.describe(path, content), rows=frame.height)

    def listed(manifest: Manifest, tables: dict[str, TableEntry]) -> Manifest:
        kept = {key: value for key, value in manifest.tables.items() if key != name}
        return manifest.model_copy(update={"tables": {**kept, **tables}})

    _replace(ledger, {path: content}, lambda m: listed(m, {}), lambda m: listed(m, {name: entry}))


def read_saved_table(ledger: Ledger, name: str) -> pl.DataFrame:
    """Read a stored table; see :meth:`Run.table`."""
    entry = ledger.manifest.tables.get(name)
    if entry is None:
        raise _absent(ledger, name, "table")
    return read_table(ledger, entry.file, entry.rows)


def save_json(ledger: Ledger, name: str, data: Any) -> None:
    """Store a JSON document; see :meth:`Run.save_json`."""
    path = ledger.root / f"{_checked(check_output, name)}.json"
    content = _encode_json(jsonable(data, name))
    entry = ledger.describe(path, content)

    def listed(manifest: Manifest, jsons: dict[str, FileEntry]) -> Manifest:
        kept = {key: value for key, value in manifest.jsons.items() if key != name}
        return manifest.model_copy(update={"jsons": {**kept, **jsons}})

    _replace(ledger, {path: content}, lambda m: listed(m, {}), lambda m: listed(m, {name: entry}))


def read_json(ledger: Ledger, name: str) -> Any:
    """Read a stored JSON document; see :meth:`Run.json`."""
    entry = ledger.manifest.jsons.get(name)
    if entry is None:
        raise _absent(ledger, name, "document")
    return _decode_json(ledger, entry)


def save_target(ledger: Ledger, target: Target) -> None:
    """Store a target; see :meth:`Run.save_target`."""
    name = _checked(check_target, target.name)
    vector = np.ascontiguousarray(target.vector, dtype=np.float32)
    if vector.ndim != 1:
        raise BehaviorTraceError(f"target {name!r} has shape {vector.shape}; it must be (dim,)")
    stem = ledger.root / "targets" / f"{name}-step-{target.step:06d}"
    description = {
        "name": name,
        "kind": target.kind,
        "step": target.step,
        "meta": jsonable(target.meta, f"target {name}"),
    }
    files = {
        stem.with_name(f"{stem.name}.safetensors"): safetensors.numpy.save({"vector": vector}),
        stem.with_name(f"{stem.name}.json"): _encode_json(description),
    }
    first, second = (ledger.describe(path, content) for path, content in files.items())
    entry = TargetEntry(
        name=name,
        step=target.step,
        vector=first,
        norm=float(np.linalg.norm(vector)),
        description=second,
    )

    def listed(manifest: Manifest, targets: list[TargetEntry]) -> Manifest:
        kept = [t for t in manifest.targets if (t.name, t.step) != (name, target.step)]
        return manifest.model_copy(update={"targets": [*kept, *targets]})

    _replace(ledger, files, lambda m: listed(m, []), lambda m: listed(m, [entry]))


def read_target_notes(ledger: Ledger) -> dict[str, dict[int, dict[str, Any]]]:
    """What is known of every stored target; see :meth:`Run.target_notes`."""
    notes: dict[str, dict[int, dict[str, Any]]] = {}
    for entry in sorted(ledger.manifest.targets, key=lambda t: (t.name, t.step)):
        about = _decode_json(ledger, entry.description)
        if not isinstance(about, dict) or not isinstance(about.get("meta"), dict):
            raise damaged(ledger, entry.description, "does not describe a target")
        notes.setdefault(entry.name, {})[entry.step] = about["meta"]
    return notes


def read_targets(ledger: Ledger) -> dict[str, list[Target]]:
    """Read every stored target; see :meth:`Run.targets`."""
    targets: dict[str, list[Target]] = {}
    for entry in sorted(ledger.manifest.targets, key=lambda t: (t.name, t.step)):
        if entry.vector is None:
            raise BehaviorTraceError(f"{ledger.root} is {COPY}; {REMEDY}")
        tensors = read_tensors(ledger, entry.vector)
        about = _decode_json(ledger, entry.description)
        try:
            target = Target(
                name=entry.name,
                kind=about["kind"],
                step=entry.step,
                vector=tensors["vector"],
                meta=about["meta"],
            )
        except (KeyError, TypeError) as error:
            raise damaged(ledger, entry.description, "does not describe a target") from error
        targets.setdefault(entry.name, []).append(target)
    return targets


def _replace(
    ledger: Ledger,
    files: Mapping[Path, bytes],
    unlist: Callable[[Manifest], Manifest],
    relist: Callable[[Manifest], Manifest],
) -> None:
    """Write files that may be listed already.

    They are unlisted while the old ones are being replaced, so that the manifest never lists a
    checksum that its file does not have.
    """
    staged = atomic.stage(files)
    names = {ledger.relative(path) for path in files}
    try:
        if any(entry.file in names for entry in ledger.manifest.files()):
            ledger.rewrite_for(names, unlist)
    except BehaviorTraceError:
        atomic.discard(staged)
        raise
    try:
        atomic.place(staged)
    except BehaviorTraceError:
        atomic.remove(files)  # no longer listed, so not the run's
        raise
    ledger.rewrite_for(names, relist)


def _encode_json(data: Any) -> bytes:
    return (json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _decode_json(ledger: Ledger, entry: FileEntry) -> Any:
    try:
        return json.loads(read_file(ledger, entry))
    except ValueError as error:
        raise damaged(ledger, entry, "is not valid JSON") from error


def _checked(check: Callable[[str], str], name: str) -> str:
    try:
        return check(name)
    except ValueError as error:
        raise BehaviorTraceError(f"{error}; mend the name") from error


def _absent(ledger: Ledger, name: str, what: str) -> BehaviorTraceError:
    stage = _MAKERS.get(name) or _MAKERS.get(name.split("/")[0], "evaluate")
    return BehaviorTraceError(
        f"{ledger.root} has no {what} {name!r}; make it with 'behaviortrace {stage} {ledger.root}'"
    )
