"""The results of all finished runs as one table, with the replicates the verdict rests on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from behaviortrace.causes.pooling import pooled
from behaviortrace.checklist import rows
from behaviortrace.checklist.collect import gather, own_replicates
from behaviortrace.checklist.evidence import Evidence, Replicate
from behaviortrace.pitfalls.stage import load as stored_pitfalls
from behaviortrace.recipe import Thresholds
from behaviortrace.records import Verdict
from behaviortrace.run import FileEntry, Run, atomic
from behaviortrace.run.jsonable import jsonable
from behaviortrace.run.shards import encode_table
from behaviortrace.sweep.controls import control_rows
from behaviortrace.sweep.effect import Effect, effect
from behaviortrace.sweep.standing import further_draws

KEYS: dict[str, Any] = {
    "level": pl.String,  # the result table a row comes from: step_level, rollout_level, ...
    "seed": pl.Int64,  # of the training
    "draw": pl.String,  # null where a row is about the training rollouts
    "run": pl.String,  # folder of the run
}
"""The first columns of the merged rows; those of the result tables follow, null where absent."""

PITFALL_SCHEMA: dict[str, Any] = {
    "pitfall": pl.String,
    "title": pl.String,
    "seed": pl.Int64,
    "shows": pl.Boolean,  # null: undecided
    "sentence": pl.String,
    "facts": pl.String,  # JSON
}
"""One row a pitfall and seed, of those that a run was tried for."""

EMERGENCE_SCHEMA: dict[str, Any] = {
    "seed": pl.Int64,
    "step": pl.Int64,
    "s_b": pl.Float64,
    "s_b_controls": pl.Float64,
}
"""One row a seed and checkpoint."""


@dataclass(frozen=True)
class Member:
    """A finished run of the sweep.

    Attributes:
        seed: of its training.
        folder: relative to the sweep's directory.
        run: the run.
        evidence: what the checklist judges it by, the replicates of all runs among it.
        verdicts: the checklist of the run, its replication line judged over all replicates.
    """

    seed: int
    folder: str
    run: Run
    evidence: Evidence
    verdicts: Sequence[Verdict] = ()


@dataclass(frozen=True)
class Merged:
    """What all finished runs hold together.

    Attributes:
        members: the runs, by seed.
        rows: every step-level, rollout-level and token-level row; ``KEYS``, then their columns.
        replicates: the decisive rollout-level result of every draw of every run.
        emergence: ``EMERGENCE_SCHEMA``.
        pitfalls: ``PITFALL_SCHEMA``.
        controls: ``CONTROL_SCHEMA``.
        effect: the verdict on the direction over seeds and draws.
        causes: tables of the runs' leave-outs together, by name; empty where there was none.
    """

    members: Sequence[Member]
    rows: pl.DataFrame
    replicates: Sequence[Replicate]
    emergence: pl.DataFrame
    pitfalls: pl.DataFrame
    controls: pl.DataFrame
    effect: Effect
    causes: Mapping[str, pl.DataFrame] = field(default_factory=dict)


def merge(root: Path, folders: dict[int, str]) -> Merged:
    """Merge the finished runs of a sweep, and judge each again over all replicates.

    The verdicts and the report of every run are written anew, so that its own replication line
    tells what the sweep found.

    Args:
        root: directory of the sweep.
        folders: seed -> folder of a finished run, relative to ``root``.

    Raises:
        BehaviorTraceError: a run cannot be read or written.
    """
    from behaviortrace.checklist.stage import check
    from behaviortrace.report.stage import report

    runs = {seed: Run.open(root / folder) for seed, folder in sorted(folders.items())}
    replicates = [
        replicate
        for seed, run in runs.items()
        for replicate in own_replicates(run.table("results/rollout_level"), seed)
    ]
    members = []
    for seed, run in runs.items():
        verdicts = check(run, replicates=replicates)
        report(run)
        evidence = gather(run, verify=False, replicates=replicates)
        members.append(Member(seed, folders[seed], run, evidence, verdicts))
    every = merged_rows(members)
    controls = control_rows(every)
    thresholds = members[0].evidence.thresholds if members else Thresholds()
    return Merged(
        members,
        every,
        replicates,
        emergence_rows(members),
        pitfall_rows(members),
        controls,
        effect(replicates, controls, thresholds),
        pooled(list(runs.values())),
    )


def merged_rows(members: Sequence[Member]) -> pl.DataFrame:
    """Every row of the runs' result tables under one another, with its level, seed and draw."""
    frames = [pl.DataFrame(schema=KEYS)]
    for member in members:
        for level, draw, frame in _result_tables(member.run):
            about = (
                pl.when(pl.col("source") == rows.TRAINING).then(None).otherwise(pl.col("source"))
                if "source" in frame.columns
                else pl.lit(draw)
            )
            mine = {"level": level, "seed": member.seed, "run": Path(member.folder).name}
            keyed = frame.with_columns(draw=about, **{k: pl.lit(v) for k, v in mine.items()})
            others = [c for c in frame.columns if c not in KEYS]
            frames.append(
                keyed.select(*(pl.col(c).cast(dtype) for c, dtype in KEYS.items()), *others)
            )
    return pl.concat(frames, how="diagonal_relaxed")


def emergence_rows(members: Sequence[Member]) -> pl.DataFrame:
    """s_b by seed and checkpoint."""
    found = []
    for member in members:
        controls = member.evidence.emergence("s_b_controls")
        for step, rate in member.evidence.emergence().items():
            found.append((member.seed, step, rate, controls.get(step)))
    return pl.DataFrame(found, schema=EMERGENCE_SCHEMA, orient="row")


def pitfall_rows(members: Sequence[Member]) -> pl.DataFrame:
    """What each run shows of each pitfall."""
    found = [
        (p.name, p.title, member.seed, p.shows, p.sentence, json.dumps(jsonable(p.facts)))
        for member in members
        for p in stored_pitfalls(member.run)[0]
    ]
    return pl.DataFrame(found, schema=PITFALL_SCHEMA, orient="row").sort("title", "seed")


def replicate_rows(replicates: Sequence[Replicate]) -> pl.DataFrame:
    """One row a replicate: seed, draw, auc, lo, hi, and on which side of 0.5 its interval lies."""
    found = [(r.seed, r.draw, r.auc, r.lo, r.hi, r.side) for r in replicates]
    schema = {
        "seed": pl.Int64,
        "draw": pl.String,
        "auc": pl.Float64,
        "lo": pl.Float64,
        "hi": pl.Float64,
        "side": pl.String,
    }
    return pl.DataFrame(found, schema=schema, orient="row")


def save(root: Path, merged: Merged, summary: Mapping[str, Any]) -> dict[str, FileEntry]:
    """Write the merged tables under ``results/``, each as Parquet and CSV, and the summary as JSON.

    Args:
        root: directory of the sweep.
        merged: the finished runs.
        summary: what the replicates say together.

    Returns:
        Name -> entry of each file.

    Raises:
        BehaviorTraceError: the disk is full or refuses.
    """
    frames = {
        "rows": merged.rows,
        "replicates": replicate_rows(merged.replicates),
        "emergence": merged.emergence,
        "pitfalls": merged.pitfalls,
        "controls": merged.controls,
        **{f"leave_out_{name}": frame for name, frame in merged.causes.items()},
    }
    encoders: dict[str, Callable[[pl.DataFrame], bytes]] = {
        "parquet": encode_table,
        "csv": lambda frame: frame.write_csv().encode(),
    }
    files = {
        f"results/{name}.{suffix}": encode(frame)
        for name, frame in frames.items()
        for suffix, encode in encoders.items()
    }
    text = json.dumps(jsonable(summary), indent=1, allow_nan=False) + "\n"
    files["results/summary.json"] = text.encode()
    atomic.write({root / file: content for file, content in files.items()})
    return {
        file: FileEntry(file=file, bytes=len(content), sha256=atomic.sha256_bytes(content))
        for file, content in files.items()
    }


def _result_tables(run: Run) -> Iterator[tuple[str, str | None, pl.DataFrame]]:
    """(level, draw where the table is about one, table) of all the results of a run."""
    for level in ("step_level", "rollout_precision", "rollout_level"):
        yield level, None, run.table(f"results/{level}")
    if not run.has("results/token_level"):
        return
    yield "token_level", run.json("results/token_notes")["draw"], run.table("results/token_level")
    for name in further_draws(run):
        yield "token_level", name, run.table(f"results/{name}/token_level")
