"""What a demonstration of a pitfall is, and the part of a run that several of them read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from behaviortrace.evaluate.levels import trained_window
from behaviortrace.evaluate.stage import step_norms

if TYPE_CHECKING:
    from behaviortrace.run import Run


@dataclass(frozen=True)
class Demonstration:
    """A pitfall as one run shows it, or does not.

    Attributes:
        name: the command's name.
        title: the pitfall, with its number in the paper.
        sentence: what this run shows, with its numbers.
        table: its table; undefined numbers are null.
        facts: further numbers; None where undefined.
    """

    name: str
    title: str
    sentence: str
    table: pl.DataFrame
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Everything as plain values, the table as ``rows``."""
        return {
            "name": self.name,
            "title": self.title,
            "sentence": self.sentence,
            "facts": dict(self.facts),
            "rows": self.table.to_dicts(),
        }


@dataclass(frozen=True)
class Training:
    """A run's training rollouts and which of their steps trained.

    Attributes:
        rollouts: n rows.
        scores: ``SCORE_SCHEMA``.
        boosted: (n,) bool, ground truth.
        step: (n,) step of each.
        trained: steps with an update gradient, at any time.
        window: those before the cutoff.
        cutoff: first step after the planting window; None without a recipe.
    """

    rollouts: pl.DataFrame
    scores: pl.DataFrame
    boosted: np.ndarray
    step: np.ndarray
    trained: list[int]
    window: list[int]
    cutoff: int | None

    @property
    def inside(self) -> np.ndarray:
        """(n,) bool, rollouts of the trained window."""
        return np.isin(self.step, np.asarray(self.window, dtype=np.int64))


def training(run: Run) -> Training:
    """Read them.

    Raises:
        BehaviorTraceError: the run has no rollouts or no scores.
    """
    rollouts, scores = run.rollouts(), run.table("scores/all")
    norms = step_norms(run, rollouts, scores)
    cutoff = run.recipe.plant.cutoff_step if run.recipe else None
    return Training(
        rollouts=rollouts,
        scores=scores,
        boosted=rollouts["boosted"].fill_null(False).to_numpy().astype(bool),
        step=rollouts["step"].to_numpy(),
        trained=trained_window(norms, None),
        window=trained_window(norms, cutoff),
        cutoff=cutoff,
    )


def defined(value: float | None) -> float | None:
    """None for NaN, so that JSON and tables have a null."""
    return None if value is None or value != value else float(value)
