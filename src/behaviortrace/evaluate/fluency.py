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
    The mean is taken twice, since the error of a sum grows with the group and that of a mean of
    what is left does not: a variation that pairs can tell from rounding is one that a fit sees too.
    """
    size = np.maximum(np.bincount(code, minlength=n_groups), 1)
    centered = values
    for _ in range(2):
        mean = np.bincount(code, weights=centered, minlength=n_groups) / size
        centered = centered - mean[code]
    rounding = 2 * float(np.finfo(np.float64).eps) * np.abs(values)
    return np.where(np.abs(centered) <= rounding, 0.0, centered)


def to_unit(values: np.ndarray) -> np.ndarray:
    """Values divided by a power of two, so that squares neither overflow nor vanish; exact.

    The largest lies in [0.5, 1). What is judged does not depend on the unit of a score or control.
    """
    return np.ldexp(values, -np.frexp(np.abs(values).max(initial=0.0))[1])


def slope(cross: np.ndarray | float, square: np.ndarray | float) -> np.ndarray:
    """Least-squares slope from summed products of centred score and fluency, elementwise.

    Where fluency varies inside no group there is nothing to take out: the fitted values are then
    zero whatever the slope, and 0 is returned.
    """
    cross, square = np.asarray(cross, dtype=np.float64), np.asarray(square, dtype=np.float64)
    return np.divide(cross, square, out=np.zeros(cross.shape), where=square > 0)


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
    """A score with fluency, and what else, regressed out inside groups, seen through its pairs.

    Attributes:
        cross: shape (n_clusters, controls), sum of centred score x centred control in each cluster
            of groups.
        square: shape (n_clusters, controls, controls), sums of the products of centred controls.
        by_score: shape (pairs,), score difference of each pair.
        by_control: shape (pairs, controls), difference of each control; fluency is the first.
        score_grain: what rounding can make of a score difference.
        control_grain: shape (controls,), what rounding can make of a control's difference.
    """

    cross: np.ndarray
    square: np.ndarray
    by_score: np.ndarray
    by_control: np.ndarray
    score_grain: float
    control_grain: np.ndarray

    @property
    def slopes(self) -> np.ndarray:
        """Slope of centred score on each centred control, shape (controls,), one for all groups.

        All rows of all groups enter, also groups in which every rollout, or none, shows the
        behaviour: this is what the published figures used, and it spends no label on the fit.
        """
        return self._solver() @ self.cross.sum(axis=0)

    @property
    def constant(self) -> bool:
        """Whether no control varies inside any group, so that nothing is controlled for."""
        return not self.square.any()

    def credit(self, fitted: np.ndarray | None = None) -> np.ndarray:
        """Credit of each pair for its residual difference at these slopes (its own by default).

        Centring cancels inside a pair. A residual within rounding of zero is a tie; otherwise a
        score that *is* fluency would be ranked by noise.
        """
        slopes = self.slopes if fitted is None else fitted
        rounding = self.score_grain + np.abs(slopes) @ self.control_grain
        return _left(self.by_score, self.by_control @ slopes, rounding)

    def shift(self, pairs: Pairs) -> np.ndarray:
        """How far each cluster moves the AUC through the slopes it helps to fit.

        The AUC changes with a slope by a derivative, taken over one standard error of the slope
        either way; a cluster moves the slopes by its share of the normal equations.

        Args:
            pairs: the pairs the differences belong to.

        Returns:
            Shape (n_clusters,); 0 where no control varies inside any group.
        """
        found = np.zeros(pairs.n_clusters)
        if self.constant or not len(pairs):
            return found
        fitted = self.slopes
        moved = (self.cross - self.square @ fitted) @ self._solver()
        errors = np.sqrt((moved**2).sum(axis=0))
        for control in np.flatnonzero(errors):
            step = np.zeros(len(fitted))
            step[control] = errors[control]
            up, down = (self.credit(at).mean() for at in (fitted + step, fitted - step))
            found += (up - down) / (2 * errors[control]) * moved[:, control]
        return found

    def resampled_wins(self, counts: np.ndarray, pairs: Pairs) -> np.ndarray:
        """Wins in each bootstrap resample, the slope of fluency refitted in each.

        A pair's residual difference is linear in the slope. Its order is therefore settled for all
        resamples when it is the same at the smallest and the largest slope; only the other pairs
        are looked at once a resample.

        Args:
            counts: shape (resamples, n_clusters), how often each cluster was drawn.
            pairs: the pairs the differences belong to.

        Returns:
            Shape (resamples,), float64.

        Raises:
            ValueError: fluency is not the only control.
        """
        if len(self.control_grain) != 1:
            raise ValueError("only one slope is refitted")
        by_fluency, fluency_grain = self.by_control[:, 0], float(self.control_grain[0])
        fitted = slope(counts @ self.cross[:, 0], counts @ self.square[:, 0, 0])
        ends = np.array([fitted.min()]), np.array([fitted.max()])
        first, last = (self.credit(end) for end in ends)
        settled = ((first == last) & (first != 0.5)) | (by_fluency == 0)
        wins = counts @ pairs.per_cluster(np.where(settled, first, 0.0))
        still_open = np.flatnonzero(~settled)
        cluster = pairs.cluster_of[pairs.group[still_open]]
        rows = max(1, _CELLS // max(len(cluster), 1))
        for start in range(0, len(counts), rows):
            part = slice(start, start + rows)
            at = fitted[part, None]
            rounding = self.score_grain + np.abs(at) * fluency_grain
            won = _left(self.by_score[still_open], at * by_fluency[still_open], rounding)
            wins[part] += np.einsum("rp,rp->r", counts[part][:, cluster], won)
        return wins

    def _solver(self) -> np.ndarray:
        """Inverse of the normal equations, (controls, controls), of those controls that vary.

        Controls that are one and the same up to rounding share what they explain.
        """
        total = self.square.sum(axis=0)
        scale = np.sqrt(np.diagonal(total))
        unit = np.divide(1.0, scale, out=np.zeros(len(scale)), where=scale > 0)
        inverse = np.linalg.pinv(total * np.outer(unit, unit), rcond=ROUNDING, hermitian=True)
        return inverse * np.outer(unit, unit)


def residualize(
    score: np.ndarray,
    fluency: np.ndarray,
    code: np.ndarray,
    pairs: Pairs,
    also: np.ndarray | None = None,
) -> Residual:
    """Regress fluency out of a score inside groups.

    Args:
        score: shape (n,), finite.
        fluency: shape (n,), finite, nats.
        code: shape (n,), group codes in ``range(pairs.n_groups)``.
        pairs: the pairs the score is judged on.
        also: shape (n,), finite, a second control, regressed out at once.
    """
    score, fluency = to_unit(score), to_unit(fluency)
    controls = [fluency] if also is None else [fluency, to_unit(also)]
    centered = [center(each, code, pairs.n_groups) for each in controls]
    own = center(score, code, pairs.n_groups)

    cluster = pairs.cluster_of[code]

    def by_cluster(values: np.ndarray) -> np.ndarray:
        return np.bincount(cluster, weights=values, minlength=pairs.n_clusters)

    square = [np.stack([by_cluster(a * b) for b in centered], axis=-1) for a in centered]
    return Residual(
        cross=np.stack([by_cluster(own * each) for each in centered], axis=-1),
        square=np.stack(square, axis=-2),
        by_score=pairs.difference(score),
        by_control=np.stack([pairs.difference(each) for each in controls], axis=-1),
        score_grain=grain(score),
        control_grain=np.array([grain(each) for each in controls]),
    )


def matched(pairs: Pairs, fluency: np.ndarray, delta: float) -> Pairs:
    """The pairs whose fluency differs by at most ``delta`` nats.

    The bound is widened by one part in 1e9, so that decimals such as 1.3 and 1.2 at 0.1 match.
    """
    return pairs.keep(np.abs(pairs.difference(fluency)) <= delta * (1 + ROUNDING))
