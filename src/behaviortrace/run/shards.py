"""Sharded stores: a Parquet table and its row-aligned tensors, one pair a step and rank."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
import safetensors.numpy

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import atomic
from behaviortrace.run.copies import COPY, REMEDY
from behaviortrace.run.ledger import Ledger
from behaviortrace.run.manifest import FileEntry, Manifest, ShardEntry, check_store

SketchKind = Literal["update", "plain"]


def prepare(
    ledger: Ledger,
    store: str,
    step: int,
    rank: int,
    frame: pl.DataFrame,
    tensors: Mapping[str, np.ndarray] | None,
) -> ShardEntry:
    """Write a shard's files, both or neither; see :meth:`Run.prepare_shard`."""
    try:
        check_store(store)
    except ValueError as error:
        raise BehaviorTraceError(f"{error}; mend the name") from error
    if step < 0 or rank < 0:
        raise BehaviorTraceError(f"{store} step {step}, rank {rank}: neither may be negative")
    arrays = {name: np.ascontiguousarray(array) for name, array in (tensors or {}).items()}
    for name, array in arrays.items():
        if array.ndim == 0 or len(array) != frame.height:
            raise BehaviorTraceError(
                f"{store} step {step}: tensor {name!r} of shape {array.shape} does not have the "
                f"{frame.height} rows of its table"
            )
        if array.dtype.kind not in "biuf":
            raise BehaviorTraceError(
                f"{store} step {step}: tensor {name!r} is {array.dtype}; give numbers or booleans"
            )
    _refuse_listed(ledger.manifest, [(store, step, rank)])
    file = table_path(ledger.root, store, step, rank)
    files = {file: encode_table(frame)}
    if arrays:
        files[_tensor_path(ledger.root, store, step, rank)] = safetensors.numpy.save(arrays)
    entries = [ledger.describe(path, content) for path, content in files.items()]
    try:
        atomic.write(files)
    except BehaviorTraceError:
        atomic.remove(files)  # not listed, so not the run's
        raise
    return ShardEntry(
        store=store,
        step=step,
        rank=rank,
        rows=frame.height,
        table=entries[0],
        tensors=entries[1] if arrays else None,
        arrays=sorted(arrays),
    )


def commit(ledger: Ledger, entries: Iterable[ShardEntry]) -> None:
    """List prepared shards in the manifest, all in one rewrite; see :meth:`Run.commit`."""
    new = list(entries)
    for file in (file for entry in new for file in entry.files):
        path = ledger.locate(file)
        if not path.is_file() or path.stat().st_size != file.bytes:
            raise BehaviorTraceError(f"{path} is not as it was prepared; write the shard again")

    def add(manifest: Manifest) -> Manifest:
        _refuse_listed(manifest, [entry.key for entry in new])
        return manifest.model_copy(update={"shards": [*manifest.shards, *new]})

    ledger.rewrite_for([file.file for entry in new for file in entry.files], add)


def drop(ledger: Ledger, store: str) -> None:
    """List a store's shards no longer; their files become strays."""

    def without(manifest: Manifest) -> Manifest:
        kept = [shard for shard in manifest.shards if shard.store != store]
        return manifest.model_copy(update={"shards": kept})

    ledger.rewrite(without)


def encode_table(frame: pl.DataFrame) -> bytes:
    """A frame as Parquet."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd")
    return buffer.getvalue()


def read_file(ledger: Ledger, entry: FileEntry) -> bytes:
    """A listed file's content, its checksum compared on every read.

    Raises:
        BehaviorTraceError: missing or damaged.
    """
    path = ledger.locate(entry)
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise damaged(ledger, entry, "is missing") from error
    except OSError as error:
        raise damaged(ledger, entry, f"cannot be read ({error.strerror})") from error
    if len(content) != entry.bytes:
        what = f"has {len(content)} bytes instead of {entry.bytes}"
        raise damaged(ledger, entry, what)
    if atomic.sha256_bytes(content) != entry.sha256:
        raise damaged(ledger, entry, "does not match its checksum")
    return content


def read_table(ledger: Ledger, entry: FileEntry, rows: int) -> pl.DataFrame:
    """A listed Parquet file; its row count must be the manifest's."""
    content = read_file(ledger, entry)
    try:
        frame = pl.read_parquet(io.BytesIO(content))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise damaged(ledger, entry, "is not readable Parquet") from error
    if frame.height != rows:
        raise damaged(ledger, entry, f"has {frame.height} rows instead of {rows}")
    return frame


def read_tensors(
    ledger: Ledger, entry: FileEntry, rows: int | None = None
) -> dict[str, np.ndarray]:
    """A listed safetensors file; its row count must be the manifest's, where one is given."""
    content = read_file(ledger, entry)
    try:
        tensors = safetensors.numpy.load(content)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise damaged(ledger, entry, "is not readable safetensors") from error
    for name, array in tensors.items():
        if rows is not None and len(array) != rows:
            raise damaged(ledger, entry, f"has {len(array)} rows of {name!r} instead of {rows}")
    return tensors


def damaged(ledger: Ledger, entry: FileEntry, what: str) -> BehaviorTraceError:
    """The one line for a file that is not what the manifest says."""
    repair = f"'behaviortrace run RECIPE --out {ledger.root} --resume'"
    if ledger.manifest.recipe is None:
        repair = "Tracer(..., resume=True) and a trainer that resumes from a checkpoint before it"
    return BehaviorTraceError(
        f"{ledger.root / entry.file} {what}; list all damage with 'behaviortrace verify "
        f"{ledger.root}', then repair with {repair}"
    )


def read_store(ledger: Ledger, store: str) -> pl.DataFrame:
    """All rows of a store, ordered by (step, rank); see :meth:`Run.read`."""
    shards = _shards(ledger, store)
    frames = [read_table(ledger, shard.table, shard.rows) for shard in shards]
    return pl.concat(frames, how="diagonal_relaxed")


def tensor(ledger: Ledger, store: str, name: str) -> np.ndarray:
    """One tensor of all rows of a store; see :meth:`Run.tensor`."""

    def load(shard: ShardEntry) -> np.ndarray | None:
        return _array(ledger, shard, name)

    reason = f"{ledger.root}: {store} has no {name!r} tensor"
    return _assemble(_shards(ledger, store), load, reason, _remedy(ledger))


def sketches(ledger: Ledger, store: str, kind: SketchKind) -> np.ndarray:
    """Sketches of all rows of a store; see :meth:`Run.sketches`."""
    if kind == "plain":
        return tensor(ledger, store, "plain").astype(np.float32, copy=False)
    if kind != "update":
        raise BehaviorTraceError(f"sketch kind {kind!r} is not 'update' or 'plain'; choose one")
    reason = f"{ledger.root}: {store} has neither 'update' sketches nor 'plain' with update_weight"

    def load(shard: ShardEntry) -> np.ndarray | None:
        return _update(ledger, shard)

    found = _assemble(_shards(ledger, store), load, reason, _remedy(ledger))
    return found.astype(np.float32, copy=False)


def _remedy(ledger: Ledger) -> str:
    if ledger.manifest.left_out:
        return f"this is {COPY}; {REMEDY}"
    return "capture it in training or draw again"


def _update(ledger: Ledger, shard: ShardEntry) -> np.ndarray | None:
    if "update" in shard.arrays:
        return _array(ledger, shard, "update")
    if "plain" not in shard.arrays:
        return None
    frame = read_table(ledger, shard.table, shard.rows)
    if "update_weight" not in frame.columns or frame["update_weight"].null_count() == len(frame):
        return None
    weights = frame["update_weight"].cast(pl.Float32).to_numpy()
    plain = _array(ledger, shard, "plain")
    if plain is None:
        return None
    # A rollout whose every token is masked has no plain gradient, and an update of zero.
    return np.where(weights[:, None] == 0, np.float32(0), weights[:, None] * plain)


def _array(ledger: Ledger, shard: ShardEntry, name: str) -> np.ndarray | None:
    if shard.tensors is None or name not in shard.arrays:
        return None
    arrays = read_tensors(ledger, shard.tensors, shard.rows)
    if name not in arrays:
        raise damaged(ledger, shard.tensors, f"lacks the tensor {name!r}")
    return arrays[name]


def _assemble(
    shards: list[ShardEntry],
    load: Callable[[ShardEntry], np.ndarray | None],
    reason: str,
    remedy: str,
) -> np.ndarray:
    """Rows of all shards in one array, filled shard by shard; NaN where a shard has none."""
    out: np.ndarray | None = None
    missing: list[slice] = []
    at = 0
    for shard in shards:
        rows = slice(at, at + shard.rows)
        at += shard.rows
        part = load(shard)
        if part is None:
            missing.append(rows)
            continue
        if out is None:
            out = np.empty((sum(s.rows for s in shards), *part.shape[1:]), part.dtype)
        if part.shape[1:] != out.shape[1:] or part.dtype != out.dtype:
            raise BehaviorTraceError(
                f"{shard.store} step {shard.step}: rows of {part.dtype} {part.shape[1:]} do not "
                f"fit the {out.dtype} {out.shape[1:]} before; use one sketch for the whole run"
            )
        out[rows] = part
    if out is None:
        raise BehaviorTraceError(f"{reason}; {remedy}")
    if any(rows.stop > rows.start for rows in missing) and out.dtype.kind != "f":
        raise BehaviorTraceError(
            f"{reason} in every shard, and {out.dtype} has no NaN; store it in all or as float"
        )
    for rows in missing:
        out[rows] = np.nan
    return out


def _shards(ledger: Ledger, store: str) -> list[ShardEntry]:
    shards = ledger.manifest.store(store)
    if not any(shard.rows for shard in shards):
        stage = "draw" if store.startswith("draws/") else "train"
        raise BehaviorTraceError(f"{ledger.root} has no {store} rows yet; {stage} first")
    return shards


def table_path(root: Path, store: str, step: int, rank: int) -> Path:
    """Where the table of a shard lies."""
    named = {"training": "rollouts", "optimizer": "optimizer", "probes": "probes"}
    return root / named.get(store, f"{store}/rollouts") / f"{_name(step, rank)}.parquet"


def _tensor_path(root: Path, store: str, step: int, rank: int) -> Path:
    named = {"training": "sketches", "optimizer": "optimizer", "probes": "probes"}
    return root / named.get(store, f"{store}/sketches") / f"{_name(step, rank)}.safetensors"


def _name(step: int, rank: int) -> str:
    return f"step-{step:06d}-rank-{rank:04d}"


def _refuse_listed(manifest: Manifest, keys: list[tuple[str, int, int]]) -> None:
    listed = {shard.key for shard in manifest.shards}
    for key in keys:
        if key in listed:
            store, step, rank = key
            raise BehaviorTraceError(
                f"{store} already has a shard for step {step}, rank {rank}; resume the run, or "
                "drop the draw before drawing again"
            )
        listed.add(key)
