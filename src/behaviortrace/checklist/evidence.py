"""What a line of the checklist may look at: result tables and manifest facts, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from behaviortrace.checklist import rows
from behaviortrace.evaluate.components import Side, side_of
from behaviortrace.plant.emergence import Taught, taught
from behaviortrace.recipe import Thresholds


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
class Targets:
    """What the targets were made of, at the checkpoint that is analysed.

    Attributes:
        texts: number of different replies that went into each target, by name.
        shared: judged rollouts, of training and draws, that are among those replies, by name.
        judged: rollouts compared with them.
        left_out: prompts over which the token level leaves out a response's own, where it did.
        open: why the token level's target is not cross-fitted; None where it is, or was not made.
        gaps: of the minimal pairs, fluency with minus without the behaviour, nats.
        ratios: of the minimal pairs, gradient norm with over without the behaviour.
    """

    texts: Mapping[str, int] = field(default_factory=dict)
    shared: Mapping[str, int] = field(default_factory=dict)
    judged: int = 0
    left_out: int | None = None
    open: str | None = None
    gaps: tuple[float, ...] = ()
    ratios: tuple[float, ...] = ()


@dataclass(frozen=True)
class HeldOut:
    """Prompts that emergence is measured on, and those that were trained on.

    Attributes:
        asked: different probe and control prompts.
        trained: different prompts of training rollouts and warm-up examples.
        warmup: whether the warm-up's are known, and counted.
        both: those that are in both, after folding case and space.
    """

    asked: int
    trained: int
    warmup: bool
    both: tuple[str, ...]


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
    def side(self) -> Side:
        """Where the interval lies against 0.5; "open" where it holds it."""
        return side_of(self.lo, self.hi)


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
        sketch_norms: ``results/sketch_norms``.
        targets: what the targets were made of; None where there is none.
        held_out: None where no probe was answered.
        seed: the run's training seed.
        draws: names of its fresh draws.
        cutoff: first step after the contamination window; None where nothing was planted.
        analysed: step of the checkpoint that draws and targets are taken from.
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
    sketch_norms: Mapping[str, Any] = field(default_factory=dict)
    targets: Targets | None = None
    held_out: HeldOut | None = None
    seed: int | None = None
    draws: tuple[str, ...] = ()
    cutoff: int | None = None
    analysed: int | None = None
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

    def taught(self) -> Taught | None:
        """Whether the behaviour was taught, and kept; None where s_b does not tell."""
        counts = {
            int(step): int(n) for step, n in (self.summary.get("s_b_responses") or {}).items()
        }
        return taught(self.emergence(), counts, self.thresholds.emergence)

    def peak(self) -> tuple[int, float] | None:
        """Checkpoint step at which s_b was highest, the first of them, and s_b there."""
        known = [(step, rate) for step, rate in self.emergence().items() if rate is not None]
        return max(known, key=lambda each: each[1]) if known else None

    def emergence(self, key: str = "s_b") -> dict[int, float | None]:
        """The summary's s_b (or "s_b_controls") by checkpoint step, ascending."""
        stored = self.summary.get(key) or {}
        return {int(step): rows.finite(stored[step]) for step in sorted(stored, key=int)}
