"""Whether RL raised the behaviour over what the warm-up had taught, or luck did.

The highest s_b of several checkpoints lies above the first one's even where nothing was taught. So
the rise is compared with itself where the responses to each probe change places between the
checkpoints, which is all that can differ if training changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from behaviortrace.evaluate.step_null import PERMUTATIONS
from behaviortrace.plant.emergence import START

_AT_A_TIME = 4_000_000  # numbers in memory
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Rise:
    """The highest s_b after training began, over that before, and what luck makes of it.

    Attributes:
        rise: of s_b, over the probes that were judged at every checkpoint.
        p: share of the permutations, this one counted in, with a rise at least as high.
        looks: checkpoints the highest is taken of.
        probes: prompts.
        permutations: drawn.
    """

    rise: float
    p: float
    looks: int
    probes: int
    permutations: int


def rise(probes: pl.DataFrame, *, permutations: int = PERMUTATIONS, seed: int = 0) -> Rise | None:
    """The rise of s_b over checkpoint 0, with a permutation p-value.

    Exact if training changed nothing: then a probe's responses are exchangeable between the
    checkpoints. It counts in that the best of several checkpoints is taken, and pairs by prompt.

    Args:
        probes: rows of ``records.PROBE_SCHEMA``; prompts with a null at a checkpoint are left out.
        permutations: how many.
        seed: of the permutations.

    Returns:
        None without checkpoint 0, a later one, or a prompt that was judged at all of them.
    """
    shows = _by_prompt(probes)
    if shows is None:
        return None
    observed = float(_rises(shows[None])[0])
    reached = sum(
        int((_rises(shuffled) >= observed - _ROUNDING).sum())
        for shuffled in _shuffles(shows, permutations, seed)
    )
    return Rise(
        rise=observed,
        p=(1 + reached) / (1 + permutations),
        looks=shows.shape[1] - 1,
        probes=len(shows),
        permutations=permutations,
    )


def _by_prompt(probes: pl.DataFrame) -> np.ndarray | None:
    """Shares that show the behaviour, (prompts, checkpoints); checkpoint 0 first."""
    asked = probes.filter(pl.col("kind") == "probe")
    steps = sorted(asked["step"].unique())
    if len(steps) < 2 or steps[0] != START:
        return None
    judged = asked.drop_nulls("behavior").with_columns(pl.col("behavior").cast(pl.Float64))
    wide = judged.pivot("step", index="prompt", values="behavior", aggregate_function="mean")
    columns = [str(step) for step in steps]
    if any(column not in wide.columns for column in columns):
        return None
    whole = wide.drop_nulls(columns).sort("prompt")
    return whole.select(columns).to_numpy() if whole.height else None


def _rises(shows: np.ndarray) -> np.ndarray:
    """Highest but the first, minus the first: (m,) of (m, prompts, checkpoints)."""
    shares = shows.mean(axis=1)
    rises: np.ndarray = shares[:, 1:].max(axis=1) - shares[:, 0]
    return rises


def _shuffles(shows: np.ndarray, permutations: int, seed: int) -> Iterator[np.ndarray]:
    """Every prompt's responses in another order, some permutations at a time."""
    rng = np.random.default_rng(seed)
    most = max(1, _AT_A_TIME // shows.size)
    for first in range(0, permutations, most):
        number = min(most, permutations - first)
        yield rng.permuted(np.tile(shows, (number, 1, 1)), axis=2)
