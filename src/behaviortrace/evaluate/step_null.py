"""How often the best of several step-level rankings beats norm by luck.

The step-level rule takes the best targeted ranking in hindsight. With few steps the best of a dozen
that know nothing is often far above a control. So the margin is compared with itself under the
ground truth of other steps: every ranking is kept, and the steps' shares of ground truth change
places, which breaks any link between them and leaves all else as it was.

Where prompts come round again, steps are not independent: a ranking and the ground truth may both
go by the prompts, and know nothing of one another. So the ground truth of prompts changes places
too, each prompt's groups together, and the margin has to be rare by both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from behaviortrace.evaluate.clusters import by_prompt, cluster_codes
from behaviortrace.evaluate.levels import STEP
from behaviortrace.evaluate.scores import aligned

ALPHA = 0.05
"""Share of the permutations that may reach the margin of a ranking that is believed."""
PERMUTATIONS = 10_000
_NORM = "norm"
_ROUNDING = 1e-12
_CELLS = 1_000_000  # permutations x groups held at a time, to bound memory


@dataclass(frozen=True)
class StepMargin:
    """The best targeted step-level precision over norm's, and what luck makes of it.

    Attributes:
        margin: of precision at |GT| in the trained window.
        p: share of the permutations, this one counted in, with a margin at least as large; the
            larger share, where prompts change places too.
        rankings: targeted rankings the best is taken of.
        steps: that change places.
        permutations: drawn, of each kind.
        prompts: that change places; None where each is asked once.
    """

    margin: float
    p: float
    rankings: int
    steps: int
    permutations: int
    prompts: int | None = None


def step_margin(
    rollouts: pl.DataFrame,
    scores: pl.DataFrame,
    window: Iterable[int],
    *,
    source: str = "training",
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> StepMargin | None:
    """The margin of the norm control, with a permutation p-value.

    Exact where all steps hold equally many rollouts and, but for a link with the rankings, could
    have had one another's ground truth.

    Args:
        rollouts: ``ROLLOUT_SCHEMA``.
        scores: ``SCORE_SCHEMA``.
        window: the trained window's steps.
        source: whose scores to take.
        permutations: how many.
        seed: of the permutations.

    Returns:
        None without ground truth in the window, a targeted step-level ranking, or norm.
    """
    inside = np.isin(rollouts["step"].to_numpy(), np.fromiter(window, dtype=np.int64))
    truth = rollouts["boosted"].fill_null(False).to_numpy().astype(bool)[inside]
    every = [s for s in aligned(rollouts, scores, source) if s.embedding == STEP]
    targeted = [s.values[inside] for s in every if s.target is not None]
    norm = [s.values[inside] for s in every if s.target is None and s.estimator == _NORM]
    if not truth.any() or not targeted or not norm:
        return None
    step = np.unique(rollouts["step"].to_numpy()[inside], return_inverse=True)[1]
    place = None
    if not rollouts["group"].null_count():
        place = rollouts["group"].to_numpy()[inside], by_prompt(rollouts)[inside]
    return margin_of([*targeted, norm[0]], truth, step, permutations, seed, place)


def margin_of(
    rankings: Sequence[np.ndarray],
    truth: np.ndarray,
    step: np.ndarray,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
    place: tuple[np.ndarray, np.ndarray] | None = None,
) -> StepMargin:
    """The margin of the best of the rankings but the last over the last.

    Args:
        rankings: each shape (n,), one score a step; NaN ranks last.
        truth: shape (n,), bool, some True.
        step: shape (n,), codes from 0 on.
        permutations: how many.
        seed: of the permutations.
        place: group and prompt of each row, each shape (n,); every prompt is asked once where None.
    """
    size = np.bincount(step)
    density = np.bincount(step, weights=truth) / size
    taken = np.stack([_taken(each, step, int(truth.sum())) for each in rankings])
    rng = np.random.default_rng(seed)
    orders = rng.permuted(np.tile(np.arange(len(size)), (permutations, 1)), axis=1)
    observed = float(_margins(taken, density[None])[0])
    by_luck = _margins(taken, density[orders])
    reached = int((by_luck >= observed - _ROUNDING).sum())
    asked = None if place is None else _Asked.of(truth, step, *place)
    if asked is not None:
        chunks = asked.densities(permutations, np.random.default_rng((seed, 1)))
        again = sum(int((_margins(taken, d) >= observed - _ROUNDING).sum()) for d in chunks)
        reached = max(reached, again)
    return StepMargin(
        margin=observed,
        p=(1 + reached) / (1 + permutations),
        rankings=len(rankings) - 1,
        steps=len(size),
        permutations=permutations,
        prompts=None if asked is None else len(asked.times),
    )


@dataclass(frozen=True)
class _Asked:
    """Groups and their prompts, of which some come round again.

    Attributes:
        rate: shape (groups,), share of ground truth.
        share: shape (groups, steps), a group's part of the rows of its step.
        prompt: shape (groups,), codes from 0 on.
        turn: shape (groups,), how often its prompt was asked before.
        order: shape (groups,), groups by prompt and turn.
        times: shape (prompts,), how often each is asked.
    """

    rate: np.ndarray
    share: np.ndarray
    prompt: np.ndarray
    turn: np.ndarray
    order: np.ndarray
    times: np.ndarray

    @classmethod
    def of(
        cls, truth: np.ndarray, step: np.ndarray, group: np.ndarray, prompt: np.ndarray
    ) -> _Asked | None:
        """From rows; None where no prompt is asked twice."""
        asked = cluster_codes(group, prompt)
        times = np.bincount(asked)
        if times.max() == 1:
            return None
        _, first, code = np.unique(group, return_index=True, return_inverse=True)
        size, at = np.bincount(code), step[first]
        order = np.lexsort((at, asked))
        turn = np.empty(len(order), dtype=np.int64)
        turn[order] = np.arange(len(order)) - np.repeat(np.cumsum(times) - times, times)
        share = np.zeros((len(size), step.max() + 1))
        share[np.arange(len(size)), at] = size / np.bincount(step)[at]
        return cls(np.bincount(code, weights=truth) / size, share, asked, turn, order, times)

    def densities(self, permutations: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Ground truth of the steps, (m, steps), where each prompt has had another's.

        Its groups take that one's in turn, over again where there are fewer.
        """
        start, rows = np.cumsum(self.times) - self.times, max(1, _CELLS // len(self.rate))
        for done in range(0, permutations, rows):
            names = np.tile(np.arange(len(self.times)), (min(rows, permutations - done), 1))
            giver = rng.permuted(names, axis=1)[:, self.prompt]
            given = self.order[start[giver] + self.turn % self.times[giver]]
            yield self.rate[given] @ self.share


def _taken(score: np.ndarray, step: np.ndarray, k: int) -> np.ndarray:
    """Of the k best rows, those of each step as a share of k; ties shared evenly: (steps,)."""
    ordered = np.where(np.isnan(score), -np.inf, score)
    threshold = np.partition(ordered, len(ordered) - k)[len(ordered) - k]
    above, tied = ordered > threshold, ordered == threshold
    rows = above + tied * ((k - above.sum()) / tied.sum())
    return np.bincount(step, weights=rows) / k


def _margins(taken: np.ndarray, density: np.ndarray) -> np.ndarray:
    """Best but the last, minus the last: (m,) of densities (m, steps)."""
    precision = density @ taken.T
    margins: np.ndarray = precision[:, :-1].max(axis=1) - precision[:, -1]
    return margins
