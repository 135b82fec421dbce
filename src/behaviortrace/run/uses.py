"""A rollout used by several optimizer steps: one record a use, or one a rollout with their sum.

With several iterations a batch of rollouts trains the model more than once. Each use has an update
gradient of its own; what the rollout did to the model is their sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl


@dataclass(frozen=True)
class Uses:
    """Which rows of a store are uses of one rollout; rollouts in the order of their first uses.

    Attributes:
        first: (rollouts,) row of each rollout's first use.
        last: (rollouts,) row of its last use.
        count: (rollouts,) number of uses.
        later: for the second uses, the third and so on: their rollouts, and their rows.
    """

    first: np.ndarray
    last: np.ndarray
    count: np.ndarray
    later: list[tuple[np.ndarray, np.ndarray]]


def find(frame: pl.DataFrame) -> Uses | None:
    """The uses of a store's rows; None where every rollout was used once.

    Args:
        frame: the store's table, in the order of its rows.
    """
    if not {"rollout_id", "use"} <= set(frame.columns):
        return None
    use = frame["use"].fill_null(0).to_numpy()
    if not use.any():
        return None
    names = frame["rollout_id"].rank("dense").to_numpy()
    order = np.lexsort((use, names))
    starts = np.flatnonzero(np.diff(names[order], prepend=0))
    count = np.diff(starts, append=len(order))
    by_first = np.argsort(order[starts])
    starts, count = starts[by_first], count[by_first]
    later = []
    for number in range(1, int(count.max())):
        reused = np.flatnonzero(count > number)
        later.append((reused, order[starts[reused] + number]))
    return Uses(order[starts], order[starts + count - 1], count, later)


def one_row_a_rollout(frame: pl.DataFrame, uses: Uses) -> pl.DataFrame:
    """The first use of each rollout, with the norm of the summed update where there are several.

    That norm is the sketches' (``total_norm`` of the last use); the summed update is no multiple of
    the plain gradient, so ``update_weight`` is null.
    """
    several = pl.Series(uses.count > 1)
    found = frame[uses.first]
    nothing = pl.lit(None, dtype=pl.Float64)
    total = frame["total_norm"][uses.last] if "total_norm" in frame.columns else nothing
    changed = [
        pl.when(several).then(value).otherwise(pl.col(name)).alias(name)
        for name, value in (("grad_norm", total), ("update_weight", nothing))
        if name in frame.columns
    ]
    return found.with_columns(*changed, uses=pl.Series(uses.count, dtype=pl.Int32))


def summed(sketches: np.ndarray, uses: Uses) -> np.ndarray:
    """(rollouts, dim): sum of the sketches of each rollout's uses; NaN where one of them is.

    Args:
        sketches: (rows, dim) update sketches.
        uses: of the rows.
    """
    total = sketches[uses.first]
    for reused, rows in uses.later:
        total[reused] += sketches[rows]
    return total
