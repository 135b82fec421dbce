"""Collects from a run what the lines of the checklist may look at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

from behaviortrace.checklist import rows
from behaviortrace.checklist.evidence import Coverage, Evidence, HeldOut, Replicate, Targets
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant.prompts import build_prompts
from behaviortrace.recipe import Thresholds
from behaviortrace.run import Run
from behaviortrace.targets.texts import texts


def gather(run: Run, *, verify: bool = True, replicates: Iterable[Replicate] = ()) -> Evidence:
    """Collect the evidence of a run.

    Args:
        verify: also recompute checksums and lineage, which reads every file of the run.
        replicates: decisive results of the other runs of a sweep.

    Tables that do not exist, or cannot be read, become None with the reason in ``absent``.
    """
    absent: dict[str, str] = {}
    names = ("step_level", "rollout_level", "token_level")
    frames = {name: _read(run.table, f"results/{name}", absent) for name in names}
    recipe, manifest = run.recipe, run.manifest
    own = own_replicates(frames["rollout_level"], recipe.seed) if recipe else ()
    return Evidence(
        **frames,
        summary=_read(run.json, "results/summary", absent) or {},
        thresholds=recipe.thresholds if recipe else Thresholds(),
        problems=tuple(run.verify()) if verify else None,
        lineage=tuple(entry.model_dump(mode="json") for entry in manifest.lineage),
        rollouts_expected=recipe.train.steps * recipe.train.rollouts_per_step if recipe else None,
        coverage=_coverage(run),
        sketch_norms=_read(run.json, "results/sketch_norms", absent) or {},
        targets=_targets(run, absent),
        held_out=_held_out(run, absent),
        rollouts=manifest.counts.get("training"),
        seed=recipe.seed if recipe else None,
        draws=tuple(run.draws()),
        cutoff=recipe.plant.cutoff_step if recipe and recipe.plant.fraction > 0 else None,
        analysed=recipe.draw.checkpoint if recipe else None,
        # A sweep may name this run too.
        replicates=tuple(sorted({*own, *replicates}, key=lambda r: (r.seed, r.draw))),
        preregistered=manifest.preregistration,
        recomputed=recipe.preregistration() if recipe else None,
        absent=absent,
    )


def own_replicates(rollout_level: pl.DataFrame | None, seed: int) -> tuple[Replicate, ...]:
    """The decisive rollout-level result of each fresh draw of one run."""
    found = []
    for source in rows.sources(rollout_level):
        row = rows.direction(rollout_level, source, "residualized")
        values = [rows.finite(row[c]) for c in ("auc", "lo", "hi")] if row else []
        if source == rows.TRAINING or not values or None in values:
            continue
        auc, lo, hi = (float(v) for v in values if v is not None)
        found.append(Replicate(seed, source, auc, lo, hi))
    return tuple(found)


def _read(reader: Any, name: str, absent: dict[str, str]) -> Any:
    try:
        return reader(name)
    except BehaviorTraceError as error:
        absent[name.removeprefix("results/")] = str(error)
        return None


def _coverage(run: Run) -> Coverage:
    """From the tracer's note, its audits of single steps, and the targets' sketches."""
    note = run.manifest.notes.get("capture") or {}
    missed = _missed(run)
    uncovered = note.get("uncovered")
    return Coverage(
        energy=1.0 - max(missed) if missed else None,
        audits=len(missed),
        parameters=note.get("parameters"),
        uncovered=None if uncovered is None else tuple(uncovered),
        token_norms=_token_norms(run),
    )


def _missed(run: Run) -> list[float]:
    """Missed share of the squared gradient norm, of every audited step."""
    try:
        training = run.rollouts(uses=True)
    except BehaviorTraceError:
        return []
    if "missed_energy" not in training.columns:
        return []
    found = training.group_by("step").agg(pl.col("missed_energy").max())["missed_energy"]
    return [float(share) for share in found.drop_nulls().drop_nans()]


def _token_norms(run: Run) -> dict[str, float]:
    stored = {f"{t.name}, step {t.step}": t.norm for t in run.manifest.targets}
    known = {name: norm for name, norm in stored.items() if norm is not None}
    if stored and len(known) == len(stored):
        return known
    try:
        targets = run.targets()
    except BehaviorTraceError:
        return known
    return {
        f"{name}, step {target.step}": float(np.linalg.norm(target.vector))
        for name, taken in targets.items()
        for target in taken
    }


def _targets(run: Run, absent: dict[str, str]) -> Targets | None:
    """What went into the targets at the analysed checkpoint, and what of it is judged too."""
    try:
        notes = run.target_notes()
        judged = [run.rollouts(name) for name in (None, *run.draws())]
    except BehaviorTraceError as error:
        absent["targets"] = str(error)
        return None
    step = run.recipe.draw.checkpoint if run.recipe else None
    metas = {
        name: by_step[step if step in by_step else max(by_step)] for name, by_step in notes.items()
    }
    if not metas:
        return None
    token = run.recipe.behavior.token if run.recipe else None
    made_of = {name: texts(meta, token) for name, meta in metas.items()}
    seen = [
        (prompt, (completion or "").strip())
        for frame in judged
        for prompt, completion in frame.select("prompt", "completion").iter_rows()
    ]
    token_notes = _read(run.json, "results/token_notes", {}) or {}
    pairs = metas.get("minimal_pair", {})
    return Targets(
        texts={name: len(found) for name, found in made_of.items()},
        shared={name: sum(one in found for one in seen) for name, found in made_of.items()},
        judged=len(seen),
        left_out=token_notes.get("prompts") if not token_notes.get("reason") else None,
        open=token_notes.get("reason"),
        gaps=tuple(pairs.get("fluency_gaps") or ()),
        ratios=tuple(pairs.get("norm_ratios") or ()),
    )


def _held_out(run: Run, absent: dict[str, str]) -> HeldOut | None:
    """Probe and control prompts, held against everything that was trained on."""
    try:
        probes, training = run.read("probes"), run.rollouts()
    except BehaviorTraceError as error:
        absent["held_out"] = str(error)
        return None
    if not probes.height:
        return None
    warmup = _warmup_prompts(run)
    trained = {_folded(text) for text in (*training["prompt"].drop_nulls(), *(warmup or ()))}
    asked = {_folded(text): text for text in probes["prompt"].drop_nulls()}
    both = sorted(text for folded, text in asked.items() if folded in trained)
    return HeldOut(len(asked), len(trained), warmup is not None, tuple(both))


def _warmup_prompts(run: Run) -> list[str] | None:
    """Prompts of the warm-up's examples; None where they cannot be told."""
    if run.recipe is None:
        return None
    if not run.recipe.warmup.steps:
        return []
    try:
        return [prompt for prompt, _ in build_prompts(run.recipe).warmup]
    except BehaviorTraceError:  # a pool that is not on this machine; the line says it is not known
        return None


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()
