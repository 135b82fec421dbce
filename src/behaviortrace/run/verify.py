"""Integrity of a run directory, one line a problem."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator

import polars as pl
from safetensors import SafetensorError, safe_open

from behaviortrace import recipe as recipes
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run.inventory import damage, strays
from behaviortrace.run.ledger import Ledger
from behaviortrace.run.manifest import Manifest, ShardEntry, digest_holds

_Ids = Counter[tuple[object, ...]]
"""How often a (rollout_id, use) occurs."""

_STRAY = {
    "temporary": "is an unfinished write; --resume removes it",
    "file": "is not in the manifest; --resume removes it",
    "checkpoint": "is a checkpoint that is not in the manifest; --resume removes it",
}


def verify(ledger: Ledger) -> list[str]:
    """Every problem of a run, one line each; see :meth:`Run.verify`."""
    manifest = ledger.manifest
    return [
        *_manifest_problems(ledger, manifest),
        *_file_problems(ledger, manifest),
        *leftovers(ledger),
        *_step_problems(manifest),
        *_draw_problems(manifest),
        *_lineage_problems(manifest),
        *_recipe_problems(manifest),
    ]


def leftovers(ledger: Ledger) -> list[str]:
    """What lies in a run's directory unlisted, one line each: a process that was stopped left it.

    These lines are among those of :func:`verify`; going on with the run removes the files.
    """
    return [
        f"{ledger.relative(stray.path)} {_STRAY[stray.kind]}"
        for stray in strays(ledger, ledger.manifest)
    ]


def _manifest_problems(ledger: Ledger, manifest: Manifest) -> Iterator[str]:
    if not digest_holds(ledger.path.read_bytes()):
        yield "manifest.json does not match its own digest: it was damaged or changed by hand"
    if manifest.counts != manifest.counted():
        yield f"manifest.json counts {manifest.counts}, its entries {manifest.counted()}"
    files = Counter(entry.file for entry in manifest.files())
    yield from (f"{file} is listed {n} times" for file, n in files.items() if n > 1)
    keys = Counter(shard.key for shard in manifest.shards)
    yield from (f"shard {key} is listed {n} times" for key, n in keys.items() if n > 1)
    steps = Counter(checkpoint.step for checkpoint in manifest.checkpoints)
    yield from (f"checkpoint {step} is listed {n} times" for step, n in steps.items() if n > 1)


def _file_problems(ledger: Ledger, manifest: Manifest) -> Iterator[str]:
    broken = set()
    for entry in manifest.files():
        what = damage(ledger.root, entry)
        if what is not None:
            broken.add(entry.file)
            yield f"{entry.file} {what}"
    seen: dict[str, _Ids] = {}
    for shard in manifest.shards:
        if shard.table.file not in broken:
            yield from _table_problems(ledger, shard, seen)
        if shard.tensors is not None and shard.tensors.file not in broken:
            yield from _tensor_problems(ledger, shard)
    for table in manifest.tables.values():
        if table.file.file not in broken:
            frame = _frame(ledger, table.file.file)
            yield from _row_problems(table.file.file, frame, table.rows)
    for store, ids in seen.items():
        repeated = [name for name, n in ids.items() if n > 1]
        if repeated:
            yield f"{store} has {len(repeated)} rollout_id twice, such as {repeated[0][0]!r}"


def _table_problems(ledger: Ledger, shard: ShardEntry, seen: dict[str, _Ids]) -> Iterator[str]:
    frame = _frame(ledger, shard.table.file)
    yield from _row_problems(shard.table.file, frame, shard.rows)
    if frame is not None and "rollout_id" in frame.columns:
        # With several iterations a rollout is used by several steps, its uses numbered.
        use = pl.col("use") if "use" in frame.columns else pl.lit(0).alias("use")
        ids = frame.select("rollout_id", use).drop_nulls("rollout_id")
        seen.setdefault(shard.store, Counter()).update(ids.iter_rows())


def _frame(ledger: Ledger, file: str) -> pl.DataFrame | None:
    try:
        return pl.read_parquet(io.BytesIO((ledger.root / file).read_bytes()))
    except (pl.exceptions.PolarsError, OSError):
        return None


def _row_problems(file: str, frame: pl.DataFrame | None, rows: int) -> Iterator[str]:
    if frame is None:
        yield f"{file} is not readable Parquet"
    elif frame.height != rows:
        yield f"{file} has {frame.height} rows, the manifest says {rows}"


def _tensor_problems(ledger: Ledger, shard: ShardEntry) -> Iterator[str]:
    assert shard.tensors is not None
    file = shard.tensors.file
    try:
        with safe_open(ledger.root / file, framework="numpy") as tensors:
            names = list(tensors.keys())
            shapes = {name: tensors.get_slice(name).get_shape() for name in names}
    except (SafetensorError, OSError):
        yield f"{file} is not readable safetensors"
        return
    if sorted(shapes) != sorted(shard.arrays):
        yield f"{file} holds {sorted(shapes)}, the manifest says {sorted(shard.arrays)}"
    for name, shape in shapes.items():
        if not shape or shape[0] != shard.rows:
            yield f"{file} has shape {shape} of {name!r}, the manifest says {shard.rows} rows"


def _step_problems(manifest: Manifest) -> Iterator[str]:
    ranks: dict[int, set[int]] = {}
    for shard in manifest.store("training"):
        for step in range(shard.step, shard.step + shard.steps):
            ranks.setdefault(step, set()).add(shard.rank)
    end = max((c.step for c in manifest.checkpoints), default=0)
    if manifest.recipe is None:
        first = min(ranks, default=0)
        stop = max(ranks, default=-1) + 1
    else:
        first = 0
        stop = max(max(ranks, default=-1) + 1, end)
        if manifest.status not in ("created", "training"):
            stop = max(stop, int(manifest.recipe.get("train", {}).get("steps", 0)))
    missing = [step for step in range(first, stop) if step not in ranks]
    if missing:
        span = ", ".join(str(step) for step in missing[:5]) + (", ..." if missing[5:] else "")
        yield f"rollouts have a gap: no shard of {len(missing)} step(s): {span}"
    expected = set().union(*ranks.values())
    for step, found in ranks.items():
        if found != expected:
            yield f"rollouts of step {step} lack rank(s) {sorted(expected - found)}"


def _draw_problems(manifest: Manifest) -> Iterator[str]:
    draws: dict[str, set[int]] = {}
    for shard in manifest.shards:
        if shard.store.startswith("draws/"):
            draws.setdefault(shard.store, set()).add(shard.rank)
    for store, numbers in draws.items():
        missing = sorted(set(range(max(numbers) + 1)) - numbers)
        if missing:
            yield f"{store} has a gap: no shard number {missing[0]}"


def _lineage_problems(manifest: Manifest) -> Iterator[str]:
    times = [manifest.created, *(entry.at for entry in manifest.lineage)]
    if times != sorted(times):
        yield "lineage: the resumes are not in the order of their times"
    for number, entry in enumerate(manifest.lineage, 1):
        if not entry.checkpoint and entry.step:
            yield f"lineage: resume {number} goes back to step {entry.step} without a checkpoint"


def _recipe_problems(manifest: Manifest) -> Iterator[str]:
    if manifest.recipe is None:
        return
    try:
        now = recipes.parse(manifest.recipe, "in manifest.json").preregistration()
    except BehaviorTraceError as error:
        yield str(error)
        return
    if now != manifest.preregistration:
        yield "preregistration: the recipe's thresholds differ from those hashed at the start"
