"""A copy of a run without weights and sketches: small, and enough for all that takes rows alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import atomic
from behaviortrace.run.ledger import Ledger
from behaviortrace.run.manifest import FileEntry, Manifest, ShardEntry, TargetEntry
from behaviortrace.run.shards import encode_table, read_file, read_table, read_tensors, table_path

_PAGE = Path("report", "index.html")


def export(ledger: Ledger, path: Path) -> None:
    """Write a copy without weights and sketches; see :meth:`Run.export`."""
    manifest = ledger.manifest
    if manifest.status not in ("evaluated", "complete"):
        raise BehaviorTraceError(
            f"{ledger.root} is not evaluated (status {manifest.status!r}), so a copy without its "
            f"sketches could never be; finish it with 'behaviortrace run RECIPE --out "
            f"{ledger.root} --resume'"
        )
    with atomic.whole_folder(path) as aside:
        copy = Ledger(aside)
        copy.create(_copied(ledger, copy))
        page = ledger.root / _PAGE
        if page.is_file():
            atomic.write({aside / _PAGE: page.read_bytes()})
        atomic.remove([aside / ".lock"])


def _copied(ledger: Ledger, copy: Ledger) -> Manifest:
    """Write the files of the copy; its manifest."""
    manifest = ledger.manifest
    shards = [shard for of_store in _stores(manifest) for shard in _packed(ledger, copy, of_store)]
    for entry in (*(table.file for table in manifest.tables.values()), *manifest.jsons.values()):
        _write(copy, entry.file, read_file(ledger, entry))
    targets = [_target(ledger, copy, entry) for entry in manifest.targets]
    kept = manifest.model_copy(
        update={"shards": shards, "checkpoints": [], "targets": targets, "left_out": []}
    )
    held = {entry.file for entry in kept.files()}
    held |= {shard.table.file for of_store in _stores(manifest) for shard in of_store}
    left = [entry for entry in manifest.files() if entry.file not in held]
    return kept.model_copy(update={"left_out": [*manifest.left_out, *left]})


def _stores(manifest: Manifest) -> Iterator[list[ShardEntry]]:
    for store in dict.fromkeys(shard.store for shard in manifest.shards):
        if store != "optimizer":
            yield manifest.store(store)


def _packed(ledger: Ledger, copy: Ledger, shards: list[ShardEntry]) -> Iterator[ShardEntry]:
    """The tables of a store: in one file where their order allows it, else one by one."""
    first = shards[0]
    draw = first.store.startswith("draws/")
    in_a_row = [shard.step for shard in shards] == list(range(first.step, first.step + len(shards)))
    one_rank = all(shard.rank == 0 and shard.steps == 1 for shard in shards)
    if not draw and not (in_a_row and one_rank):
        for shard in shards:
            content = read_file(ledger, shard.table)
            _write(copy, shard.table.file, content)
            yield shard.model_copy(update={"tensors": None, "arrays": []})
        return
    frame = pl.concat(
        [read_table(ledger, shard.table, shard.rows) for shard in shards], how="diagonal_relaxed"
    )
    file = table_path(copy.root, first.store, first.step, 0)
    entry = _write(copy, copy.relative(file), encode_table(frame))
    yield ShardEntry(
        store=first.store,
        step=first.step,
        rank=0,
        steps=1 if draw else len(shards),
        rows=frame.height,
        table=entry,
    )


def _target(ledger: Ledger, copy: Ledger, entry: TargetEntry) -> TargetEntry:
    _write(copy, entry.description.file, read_file(ledger, entry.description))
    norm = entry.norm
    if norm is None and entry.vector is not None:
        norm = float(np.linalg.norm(read_tensors(ledger, entry.vector)["vector"]))
    return entry.model_copy(update={"vector": None, "norm": norm})


def _write(copy: Ledger, file: str, content: bytes) -> FileEntry:
    path = copy.root / file
    atomic.write({path: content})
    return copy.describe(path, content)
