"""Seeds x draws: how much of a result is the training seed's, the draw's, and the draw's own error.

Source: the paper's pitfall P6. A decisive AUC was measured in several draws from each of several
training runs. The model: a mean, plus what a seed adds (variance between seeds), plus what a draw
adds (between draws of one checkpoint), plus the error its own interval states (within a draw).

Estimates solve Paule and Mandel's moment equations, at both levels. Intervals invert the same two
quadratic forms, which have chi-squared distributions whatever the variances: a variance is drawn by
solving its form for a random chi-squared (generalised pivotal quantities, Weerahandi 1993), the
between-seed one given the drawn between-draw one, and the mean given both. With three seeds and
negligible errors this is Student's t on the seeds' means; with no variation between them it is the
error of the draws. Normal approximations with so few seeds would be far too narrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import special

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate.bootstrap import LEVEL, Interval

_LEAST = 1e-12  # variance given to a draw that claims none
_STEPS = 100


@dataclass(frozen=True)
class Components:
    """A result over seeds and draws; all but the counts are on the scale of the AUC.

    Attributes:
        mean: over seeds, with an interval that holds the variation between seeds and draws.
        between_seeds: standard deviation of what a training seed adds.
        between_draws: standard deviation of what a draw from one checkpoint adds.
        within_draw: standard error of a single draw, as its interval states it (geometric mean).
        fresh: a further draw of a further seed, without its own error; the point is the mean.
        seeds: number of seeds.
        draws: number of draws in all.
    """

    mean: Interval
    between_seeds: Interval
    between_draws: Interval
    within_draw: Interval
    fresh: Interval
    seeds: int
    draws: int

    @property
    def verdict(self) -> Literal["above", "below", "open"]:
        """Where the mean's interval lies against 0.5; "open" where it holds it."""
        if self.mean.lo > 0.5:
            return "above"
        return "below" if self.mean.hi < 0.5 else "open"


def components(
    seed: Sequence[int] | np.ndarray,
    auc: Sequence[float] | np.ndarray,
    error: Sequence[float] | np.ndarray,
    *,
    samples: int = 4000,
    rng_seed: int = 0,
) -> Components:
    """Variance components of a result measured in several draws of several seeds.

    Args:
        seed: shape (n,), training seed of each draw.
        auc: shape (n,), finite, the result in that draw.
        error: shape (n,), its standard error within the draw; see :func:`standard_error`.
        samples: of the pivotal quantities the intervals come from.
        rng_seed: of these samples.

    Raises:
        BehaviorTraceError: fewer than two seeds, or no seed with two draws; nothing then tells
            seeds from draws.

    Example:
        >>> found = components([0, 0, 1, 1, 2, 2], [0.6, 0.62, 0.7, 0.7, 0.65, 0.66], [0.03] * 6)
        >>> found.mean.lo < 0.655 < found.mean.hi
        True
    """
    names, code = np.unique(np.asarray(seed), return_inverse=True)
    auc, variance = np.asarray(auc, np.float64), np.asarray(error, np.float64) ** 2
    if len(names) < 2 or len(auc) == len(names):
        raise BehaviorTraceError(
            f"{len(auc)} draws of {len(names)} seeds cannot tell seeds from draws; give at least "
            "two seeds, and two draws of one of them"
        )
    member = (code == np.arange(len(names))[:, None]).astype(np.float64)
    variance = np.maximum(variance, _LEAST)
    freedom = len(auc) - len(names), len(names) - 1
    point = _solved(auc, variance, member, np.array([freedom[0]]), np.array([freedom[1]]))
    rng = np.random.default_rng(rng_seed)
    chi = [rng.chisquare(each, samples) for each in freedom]
    drawn = _solved(auc, variance, member, *chi)
    mean = drawn.mean - drawn.error * rng.normal(size=samples)
    spread = np.sqrt(drawn.seeds + drawn.draws) * rng.normal(size=samples)
    center = float(point.mean[0])
    return Components(
        mean=_within(center, *_ends(mean)),
        between_seeds=Interval(float(np.sqrt(point.seeds[0])), *_ends(np.sqrt(drawn.seeds))),
        between_draws=Interval(float(np.sqrt(point.draws[0])), *_ends(np.sqrt(drawn.draws))),
        within_draw=_typical(np.sqrt(variance)),
        fresh=_within(center, *_ends(mean + spread)),
        seeds=len(names),
        draws=len(auc),
    )


def standard_error(lo: float, hi: float) -> float:
    """Standard error that a 95% interval states."""
    return (hi - lo) / (2 * float(special.ndtri(0.5 + LEVEL / 2)))


def sign_flips(
    seed: Sequence[int], auc: Sequence[float], lo: Sequence[float]
) -> list[dict[str, Any]]:
    """What each draw alone would have said, a row a seed (the paper's P6).

    Returns:
        Rows of ``seed``, ``draws``, ``above`` (draws whose point exceeds 0.5), ``separating``
        (whose interval does) and ``flips``: whether the seed's own draws disagree on either.
    """
    rows = []
    for each in sorted(set(seed)):
        own = [i for i, name in enumerate(seed) if name == each]
        above = sum(auc[i] > 0.5 for i in own)
        separating = sum(lo[i] > 0.5 for i in own)
        mixed = any(0 < count < len(own) for count in (above, separating))
        rows.append(
            {
                "seed": each,
                "draws": len(own),
                "above": above,
                "separating": separating,
                "flips": mixed,
            }
        )
    return rows


@dataclass(frozen=True)
class _Solved:
    """Variances and the mean, one a sample: shape (samples,)."""

    draws: np.ndarray
    seeds: np.ndarray
    mean: np.ndarray
    error: np.ndarray


def _solved(
    auc: np.ndarray,
    variance: np.ndarray,
    member: np.ndarray,
    chi_draws: np.ndarray,
    chi_seeds: np.ndarray,
) -> _Solved:
    """Solve the two quadratic forms for these values, shape (samples,), then weigh the mean.

    ``member`` is (seeds, n): 1 where the draw belongs to the seed, else 0.
    """
    of_draws = _root(np.broadcast_to(auc, (len(chi_draws), len(auc))), variance, member, chi_draws)
    weight = 1 / (of_draws[:, None] + variance)
    total = weight @ member.T
    means, errors = (weight * auc) @ member.T / total, 1 / total
    together = np.ones((1, len(member)))
    of_seeds = _root(means, errors, together, chi_seeds)
    weight = 1 / (of_seeds[:, None] + errors)
    total = weight.sum(axis=1)
    return _Solved(of_draws, of_seeds, (weight * means).sum(axis=1) / total, np.sqrt(1 / total))


def _root(
    values: np.ndarray, variance: np.ndarray, member: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """The added variance at which the weighted squares about the clusters' means are ``wanted``.

    The squares fall as the variance grows; where they are too small at 0, it is 0. Their reciprocal
    is concave and nearly straight, so Newton's steps on it come from below and are few.

    Args:
        values: shape (samples, n).
        variance: shape (n,) or (samples, n), the known part.
        member: shape (clusters, n), 1 where the value belongs to the cluster, else 0.
        wanted: shape (samples,).
    """
    added = np.zeros(len(values))
    for _ in range(_STEPS):
        weight = np.broadcast_to(1 / (added[:, None] + variance), values.shape)
        mean = (weight * values) @ member.T / (weight @ member.T)
        square = weight * (values - mean @ member) ** 2
        squares, slope = square.sum(axis=1), (weight * square).sum(axis=1)
        excess = squares > wanted
        step = np.zeros(len(values))
        np.divide(squares * (squares / wanted - 1), slope, out=step, where=excess)
        added += step
        if (step <= 1e-9 * added).all():
            break
    return added


def _ends(sampled: np.ndarray) -> tuple[float, float]:
    tail = 50 * (1 - LEVEL)
    lo, hi = np.percentile(sampled, [tail, 100 - tail])
    return float(lo), float(hi)


def _within(point: float, lo: float, hi: float) -> Interval:
    """An AUC lies in [0, 1]."""
    return Interval(point, max(lo, 0.0), min(hi, 1.0))


def _typical(errors: np.ndarray) -> Interval:
    """Geometric mean over draws, with Student's t on the logarithms."""
    logs = np.log(errors)
    reach = special.stdtrit(len(logs) - 1, 0.5 + LEVEL / 2) * logs.std(ddof=1) / np.sqrt(len(logs))
    return Interval(*(float(np.exp(logs.mean() + step)) for step in (0, -reach, reach)))
