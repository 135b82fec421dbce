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
        rule: what it takes to show, in words.
        shows: whether this run shows it by that rule; None where the rule cannot be applied.
        sentence: what this run shows, with its numbers.
        table: its table; undefined numbers are null.
        facts: further numbers; None where undefined.
    """

    name: str
    title: str
    rule: str
    shows: bool | None
    sentence: str
    table: pl.DataFrame
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Everything as plain values, the table as ``rows``."""
        return {
            "name": self.name,
            "title": self.title,
            "rule": self.rule,
            "shows": self.shows,
            "sentence": self.sentence,
            "facts": dict(self.facts),
            "rows": self.table.to_dicts(),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Demonstration:
        """From what :meth:`as_json` gave."""
        fields = {key: value for key, value in stored.items() if key != "rows"}
        return cls(**fields, table=pl.DataFrame(stored["rows"], infer_schema_length=None))

    def grid(self) -> tuple[list[str], list[list[str | None]]]:
        """Columns and cells of the table, each point with its interval in one cell."""
        names = [name for name in self.table.columns if not name.endswith(_ENDS)]
        body = [[_cell(row, name) for name in names] for row in self.table.iter_rows(named=True)]
        return names, body


WORDS: Mapping[bool | None, str] = {True: "shows", False: "absent", None: "undecided"}
"""How pages and the command line say ``shows``."""

_ENDS = ("_lo", "_hi")


def _cell(row: Mapping[str, Any], name: str) -> str | None:
    value = row[name]
    if not isinstance(value, float):
        return None if value is None else str(value)
    stem = name if f"{name}_lo" in row else name.rsplit("_", 1)[0]
    lo, hi = row.get(f"{stem}_lo"), row.get(f"{stem}_hi")
    is_point = stem == name or name.endswith(("_auc", "_mean"))
    ends = f" [{lo:.3f}, {hi:.3f}]" if is_point and lo is not None and hi is not None else ""
    return f"{value:.3f}{ends}"


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
