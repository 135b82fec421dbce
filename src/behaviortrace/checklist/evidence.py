"""What a line of the checklist may look at: result tables and manifest facts, nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from behaviortrace.checklist import rows
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.recipe import Thresholds
from behaviortrace.run import Run


@dataclass(frozen=True)
class Coverage:
    """What the captured embedding covers, as the capture itself recorded it.

    Attributes:
        energy: share of the squared gradient norm that the rows' sketches account for, in the
            worst audited step, 0 to 1; None where no step was audited.
        audits: steps audited.
        parameters: trainable coordinates the sketch is laid out over; None where not recorded.
        uncovered: names of trainable parameters captured without; None where not recorded.
        token_norms: norm of each target's sketch, which is the gradient of the behaviour's own
            tokens, by name and step.
    """

    energy: float | None = None
    audits: int = 0
    parameters: int | None = None
    uncovered: tuple[str, ...] | None = None
    token_norms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Replicate:
    """The decisive rollout-level result of one draw of one training run.

    Attributes:
        seed: training seed.
        draw: name of the draw.
        auc: fluency-residualised within-group AUC of the direction score.
        lo: lower end of its 95% interval.
        hi: upper end.
    """

    seed: int
    draw: str
    auc: float
    lo: float
    hi: float

    @property
    def separates(self) -> bool:
        """Whether the interval lies above 0.5."""
        return self.lo > 0.5


@dataclass(frozen=True)
class Evidence:
    """Everything the checklist judges by; a missing piece is None, never a zero.

    Attributes:
        step_level: table ``results/step_level``.
        rollout_level: table ``results/rollout_level``.
        token_level: table ``results/token_level``.
        summary: ``results/summary``.
        thresholds: the recipe's; defaults where the run has no recipe.
        problems: what ``Run.verify()`` found; None where it was not asked.
        lineage: the resumes the manifest records.
        rollouts: training rows the manifest counts, one a rollout and use.
        rollouts_expected: steps x rollouts a step, by the recipe.
        coverage: what the sketch covers.
        seed: the run's training seed.
        draws: names of its fresh draws.
        replicates: decisive results over seeds and draws, this run's own and a sweep's.
        preregistered: hash in the manifest, stored before training.
        recomputed: the same hash of the recipe as it stands now.
        absent: why a table is None, by its name.
    """

    step_level: pl.DataFrame | None = None
    rollout_level: pl.DataFrame | None = None
    token_level: pl.DataFrame | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    thresholds: Thresholds = field(default_factory=Thresholds)
    problems: tuple[str, ...] | None = None
    lineage: tuple[Mapping[str, Any], ...] = ()
    rollouts: int | None = None
    rollouts_expected: int | None = None
    coverage: Coverage = field(default_factory=Coverage)
    seed: int | None = None
    draws: tuple[str, ...] = ()
    replicates: tuple[Replicate, ...] = ()
    preregistered: str | None = None
    recomputed: str | None = None
    absent: Mapping[str, str] = field(default_factory=dict)

    def number(self, key: str) -> float | None:
        """A number of the summary; None where it is missing or undefined."""
        return rows.finite(self.summary.get(key))

    def why(self, table: str) -> str:
        """Why a table is not there, for a "not run" sentence."""
        return self.absent.get(table, f"{table} was not evaluated")

    def emergence(self, key: str = "s_b") -> dict[int, float | None]:
        """The summary's s_b (or "s_b_controls") by checkpoint step, ascending."""
        stored = self.summary.get(key) or {}
        return {int(step): rows.finite(stored[step]) for step in sorted(stored, key=int)}


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
        rollouts=manifest.counts.get("training"),
        seed=recipe.seed if recipe else None,
        draws=tuple(run.draws()),
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
