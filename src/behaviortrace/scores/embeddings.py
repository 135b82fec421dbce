"""What stands for a rollout when it is scored: its step's sketch, its own, or that group-centred.

Sketches are linear, so each of these is a sum or a difference of what the run stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.estimators import Inputs

if TYPE_CHECKING:
    from behaviortrace.run import Run

STEP: Final = "step"
UPDATE: Final = "update"
PLAIN: Final = "plain"
CENTERED: Final = "plain_centered"

_ROUNDING = 1e-6


@dataclass(frozen=True)
class Embedding:
    """Sketches to be scored, and which rollouts take which score.

    Attributes:
        name: "step", "update", "plain" or "plain_centered".
        rollouts: the rollout table, n rows.
        table: one row a sketch: the rollouts themselves, or the steps with the column "step" alone.
        sketches: (len(table), dim) float32.
        exact_norms: (len(table),), norms of the gradients themselves where all are known.
        row: (n,), which row of the table a rollout takes its score from; None where it is its own.
    """

    name: str
    rollouts: pl.DataFrame
    table: pl.DataFrame
    sketches: np.ndarray
    exact_norms: np.ndarray | None = None
    row: np.ndarray | None = None

    def inputs(self, seed: int = 0) -> Inputs:
        """What estimators are given, still without a target."""
        return Inputs(
            rows=self.table, sketches=self.sketches, exact_norms=self.exact_norms, seed=seed
        )

    def spread(self, scores: np.ndarray) -> np.ndarray:
        """Scores of the table's rows, given to the rollouts: (n,)."""
        return scores if self.row is None else scores[self.row]


def embedding(run: Run, rollouts: pl.DataFrame, name: str, draw: str | None = None) -> Embedding:
    """One embedding of the training rollouts or of a draw.

    Args:
        run: the run.
        rollouts: ``run.rollouts(draw)``.
        name: "step", "update", "plain" or "plain_centered".
        draw: name of a draw; None for training.

    Raises:
        BehaviorTraceError: an unknown name, or a run that holds no such sketches.
    """
    if name in (UPDATE, STEP):
        update = run.sketches(UPDATE, draw=draw)
        return _update(rollouts, update) if name == UPDATE else _step(rollouts, update)
    if name in (PLAIN, CENTERED):
        plain = run.sketches(PLAIN, draw=draw)
        return _plain(rollouts, plain) if name == PLAIN else _centered(rollouts, plain)
    raise BehaviorTraceError(
        f"embedding {name!r} is unknown; choose 'step', 'update', 'plain' or 'plain_centered'"
    )


def embeddings(run: Run, rollouts: pl.DataFrame, draw: str | None = None) -> Iterator[Embedding]:
    """Every embedding that the training rollouts or a draw have, one at a time.

    Plain sketches come first, and are centred in place once the caller has done with them: at most
    one set of sketches is in memory.
    """
    if _has(run, draw, {PLAIN}):
        plain = run.sketches(PLAIN, draw=draw)
        yield _plain(rollouts, plain)
        yield _centered(rollouts, plain)
        del plain
    weighted = draw is None and rollouts["update_weight"].null_count() < rollouts.height
    if _has(run, draw, {UPDATE}) or (weighted and _has(run, draw, {PLAIN})):
        update = run.sketches(UPDATE, draw=draw)
        yield _update(rollouts, update)
        yield _step(rollouts, update)


def step_sums(step: np.ndarray, sketches: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sum of the sketches of each step's rows.

    Args:
        step: (n,) step of each row.
        sketches: (n, dim) float32.

    Returns:
        steps: (S,) the different steps, ascending; sums: (S, dim) float32, NaN where a row is;
        row: (n,) index into steps.
    """
    steps, row = np.unique(step, return_inverse=True)
    sums = np.empty((len(steps), sketches.shape[1]), dtype=np.float32)
    for i, members in enumerate(_members(row, len(steps))):
        sums[i] = sketches[members].sum(axis=0, dtype=np.float64)
    return steps, sums, row


def step_means(step: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The mean of the values of each step's rows, given to all of them.

    Means within float32 rounding of zero are zero: advantages cancel inside a group, and a ranking
    must not be decided by what the rounding leaves of them.

    Args:
        step: (n,) step of each row.
        values: (n,); a NaN makes its step NaN.

    Returns:
        (n,) float64, exactly equal within a step.
    """
    _, row = np.unique(step, return_inverse=True)
    count = np.bincount(row)
    mean = np.bincount(row, weights=values) / count
    size = np.bincount(row, weights=np.abs(values)) / count
    return np.where(np.abs(mean) <= _ROUNDING * size, 0.0, mean)[row]


def center(group: np.ndarray, sketches: np.ndarray) -> None:
    """Subtract from each row the mean of its group, in place; NaN where a sibling has no sketch.

    Args:
        group: (n,) group of each row.
        sketches: (n, dim) float32.
    """
    groups, row = np.unique(group, return_inverse=True)
    for members in _members(row, len(groups)):
        sketches[members] -= sketches[members].mean(axis=0, dtype=np.float64).astype(np.float32)


def _members(row: np.ndarray, count: int) -> list[np.ndarray]:
    order = np.argsort(row, kind="stable")
    return np.split(order, np.cumsum(np.bincount(row, minlength=count))[:-1])


def _update(rollouts: pl.DataFrame, sketches: np.ndarray) -> Embedding:
    norms = _known(rollouts, "grad_norm", sketches)
    return Embedding(UPDATE, rollouts, rollouts, sketches, norms)


def _step(rollouts: pl.DataFrame, update: np.ndarray) -> Embedding:
    steps, sums, row = step_sums(rollouts["step"].to_numpy(), update)
    return Embedding(STEP, rollouts, pl.DataFrame({"step": steps}), sums, row=row)


def _plain(rollouts: pl.DataFrame, sketches: np.ndarray) -> Embedding:
    norms = _known(rollouts, "plain_norm", sketches)
    return Embedding(PLAIN, rollouts, rollouts, sketches, norms)


def _centered(rollouts: pl.DataFrame, plain: np.ndarray) -> Embedding:
    sketches = plain if plain.flags.writeable else plain.copy()
    center(rollouts["group"].to_numpy(), sketches)
    return Embedding(CENTERED, rollouts, rollouts, sketches)


def _known(rollouts: pl.DataFrame, column: str, sketches: np.ndarray) -> np.ndarray | None:
    """The gradients' own norms, if recorded for every row that has a sketch."""
    norms = rollouts[column].fill_null(float("nan")).to_numpy()
    return None if np.isnan(norms[~np.isnan(sketches[:, 0])]).any() else norms


def _has(run: Run, draw: str | None, arrays: set[str]) -> bool:
    store = "training" if draw is None else f"draws/{draw}"
    return any(arrays & set(shard.arrays) for shard in run.manifest.store(store))
