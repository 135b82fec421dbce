"""Fluency control: what is left of a score once fluency has been taken out.

Source: the paper's section 3.5 and pitfall P5. Two ways: regress fluency out inside groups, and
compare only siblings of nearly equal fluency.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from behaviortrace.evaluate.auc import Pairs, credit

ROUNDING = 1e-9
"""Differences below this share of their terms are rounding, hence ties."""

_ULPS = 8 * float(np.finfo(np.float64).eps)  # error of a difference, as a share of the values

_CELLS = 2_000_000  # resamples x pairs held at a time, to bound memory


def center(values: np.ndarray, code: np.ndarray, n_groups: int) -> np.ndarray:
    """Values minus their group's mean, shape (n,); exactly 0 where only rounding is left.

    Without that, a fluency that is constant in every group would still have a slope, made of noise.
    """
    size = np.maximum(np.bincount(code, minlength=n_groups), 1)
    mean = np.bincount(code, weights=values, minlength=n_groups) / size
    centered = values - mean[code]
    return np.where(np.abs(centered) <= 1e-13 * np.abs(values), 0.0, centered)


def slope(cross: np.ndarray | float, square: np.ndarray | float) -> np.ndarray:
    """Least-squares slope from summed products of centred score and fluency, elementwise.

    Where fluency varies inside no group there is nothing to take out: the fitted values are then
    zero whatever the slope, and 0 is returned.
    """
    cross, square = np.asarray(cross, dtype=np.float64), np.asarray(square, dtype=np.float64)
    return np.divide(cross, square, out=np.zeros(cross.shape), where=square > 0)


def without(values: np.ndarray, control: np.ndarray, code: np.ndarray, n_groups: int) -> np.ndarray:
    """Values with another variable regressed out inside groups, one slope for all of them.

    With the same done to fluency, regressing fluency out of what is left takes out both at once
    (Frisch and Waugh, 1933). Only differences inside a group mean anything.

    Args:
        values: shape (n,), finite.
        control: shape (n,), finite.
        code: shape (n,), group codes in ``range(n_groups)``.
        n_groups: number of groups.

    Returns:
        Shape (n,); exactly 0 where only rounding is left.
    """
    by_group, about = center(values, code, n_groups), center(control, code, n_groups)
    fitted = float(slope((by_group * about).sum(), (about**2).sum())) * about
    left = by_group - fitted
    noise = ROUNDING * (np.abs(by_group) + np.abs(fitted)) + grain(values)
    return np.where(np.abs(left) <= noise, 0.0, left)


def grain(values: np.ndarray) -> float:
    """What rounding can make of a difference of two of these values."""
    return _ULPS * float(np.abs(values).max(initial=0.0))


def residual_credit(score: np.ndarray, fitted: np.ndarray, pairs: Pairs) -> np.ndarray:
    """Credit of each pair, shape (pairs,), for its difference of ``score - fitted``.

    Args:
        score: shape (n,), finite.
        fitted: shape (n,), what is explained of it; its level inside a group does not matter.
        pairs: the pairs to be judged.
    """
    return _left(pairs.difference(score), pairs.difference(fitted), grain(score) + grain(fitted))


def _left(by_score: np.ndarray, explained: np.ndarray, rounding: np.ndarray | float) -> np.ndarray:
    noise = ROUNDING * (np.abs(by_score) + np.abs(explained)) + rounding
    return credit(by_score - explained, noise)


@dataclass(frozen=True)
class Residual:
    """A score with fluency regressed out inside groups, seen through its pairs.

    Attributes:
        cross: shape (n_groups,), sum of centred score x centred fluency in each group.
        square: shape (n_groups,), sum of squared centred fluency.
        by_score: shape (pairs,), score difference of each pair.
        by_fluency: shape (pairs,), fluency difference of each pair.
        score_grain: what rounding can make of a score difference.
        fluency_grain: what rounding can make of a fluency difference.
    """

    cross: np.ndarray
    square: np.ndarray
    by_score: np.ndarray
    by_fluency: np.ndarray
    score_grain: float
    fluency_grain: float

    @property
    def slope(self) -> float:
        """Slope of centred score on centred fluency, one for all groups.

        All rows of all groups enter, also groups in which every rollout, or none, shows the
        behaviour: this is what the published figures used, and it spends no label on the fit.
        """
        return float(slope(self.cross.sum(), self.square.sum()))

    def credit(self, fitted: np.ndarray | float | None = None) -> np.ndarray:
        """Credit of each pair for its residual difference at a slope (its own by default).

        Centring cancels inside a pair. A residual within rounding of zero is a tie; otherwise a
        score that *is* fluency would be ranked by noise.
        """
        return self._credit(slice(None), self.slope if fitted is None else fitted)

    def _credit(self, chosen: np.ndarray | slice, fitted: np.ndarray | float) -> np.ndarray:
        rounding = self.score_grain + np.abs(fitted) * self.fluency_grain
        return _left(self.by_score[chosen], fitted * self.by_fluency[chosen], rounding)

    def shift(self, pairs: Pairs) -> np.ndarray:
        """How far each group moves the AUC through the slope it helps to fit.

        The AUC changes with the slope by a derivative, taken over one standard error of the slope
        either way; a group moves the slope by its share of the normal equations.

        Args:
            pairs: the pairs the differences belong to.

        Returns:
            Shape (n_groups,); 0 where fluency varies inside no group.
        """
        total = self.square.sum()
        if not total or not len(pairs):
            return np.zeros(pairs.n_groups)
        fitted = self.slope
        moved = (self.cross - fitted * self.square) / total
        error = float(np.sqrt((moved**2).sum()))
        if not error:
            return np.zeros(pairs.n_groups)
        up, down = (self.credit(fitted + step).mean() for step in (error, -error))
        return (up - down) / (2 * error) * moved

    def resampled_wins(self, counts: np.ndarray, pairs: Pairs) -> np.ndarray:
        """Wins in each bootstrap resample, the slope refitted in each.

        A pair's residual difference is linear in the slope. Its order is therefore settled for all
        resamples when it is the same at the smallest and the largest slope; only the other pairs
        are looked at once a resample.

        Args:
            counts: shape (resamples, n_groups), how often each group was drawn.
            pairs: the pairs the differences belong to.

        Returns:
            Shape (resamples,), float64.
        """
        fitted = slope(counts @ self.cross, counts @ self.square)
        first, last = self.credit(fitted.min()), self.credit(fitted.max())
        settled = ((first == last) & (first != 0.5)) | (self.by_fluency == 0)
        wins = counts @ pairs.per_group(np.where(settled, first, 0.0))
        still_open = np.flatnonzero(~settled)
        group = pairs.group[still_open]
        rows = max(1, _CELLS // max(len(group), 1))
        for start in range(0, len(counts), rows):
            part = slice(start, start + rows)
            won = self._credit(still_open, fitted[part, None])
            wins[part] += np.einsum("rp,rp->r", counts[part][:, group], won)
        return wins


def residualize(score: np.ndarray, fluency: np.ndarray, code: np.ndarray, pairs: Pairs) -> Residual:
    """Regress fluency out of a score inside groups.

    Args:
        score: shape (n,), finite.
        fluency: shape (n,), finite, nats.
        code: shape (n,), group codes in ``range(pairs.n_groups)``.
        pairs: the pairs the score is judged on.
    """
    centered = center(fluency, code, pairs.n_groups)
    cross = center(score, code, pairs.n_groups) * centered
    return Residual(
        cross=np.bincount(code, weights=cross, minlength=pairs.n_groups),
        square=np.bincount(code, weights=centered * centered, minlength=pairs.n_groups),
        by_score=pairs.difference(score),
        by_fluency=pairs.difference(fluency),
        score_grain=grain(score),
        fluency_grain=grain(fluency),
    )


def matched(pairs: Pairs, fluency: np.ndarray, delta: float) -> Pairs:
    """The pairs whose fluency differs by at most ``delta`` nats.

    The bound is widened by one part in 1e9, so that decimals such as 1.3 and 1.2 at 0.1 match.
    """
    return pairs.keep(np.abs(pairs.difference(fluency)) <= delta * (1 + ROUNDING))
