"""Seeds x draws: how much of a result is the training seed's, the draw's, and the draw's own error.

Source: the paper's pitfall P6. A decisive AUC was measured in several draws from each of several
training runs. The model: a mean, plus what a seed adds (variance between seeds), plus what a draw
adds (between draws of one checkpoint), plus the error its own interval states (within a draw).

Estimates solve Paule and Mandel's moment equations, at both levels. Intervals invert the same two
quadratic forms, which have chi-squared distributions whatever the variances: a variance solves its
form for a chi-squared value (generalised pivotal quantities, Weerahandi 1993), the between-seed one
given the between-draw one, and the mean is normal given both. Their distributions are integrated
numerically, not sampled, so that the same results always give the same ends.

With three seeds and negligible errors the mean's interval is Student's t on the seeds' means. Where
seeds and draws differ little it is wider than need be and holds nearly always (`behaviortrace bench
intervals`), since a few seeds that agree do not prove that others would. Student's t on the seeds'
means stands beside it: it holds 95% whatever the variances, if each seed has as many draws, but is
as narrow as the seeds happen to agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import optimize, special, stats

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate.bootstrap import LEVEL, Interval

Side = Literal["above", "below", "open"]

_LEAST = 1e-12  # variance given to a draw that claims none
_STEPS = 100
_TAILS = (1 - LEVEL) / 2, (1 + LEVEL) / 2
NODES = 64
"""Points of the integrals over each variance; the mean's ends are then right to about 0.0001."""


@dataclass(frozen=True)
class Components:
    """A result over seeds and draws; all but the counts are on the scale of the AUC.

    Attributes:
        mean: over seeds, each weighed by how well it is known, with an interval that holds the
            variation between seeds and draws.
        between_seeds: standard deviation of what a training seed adds.
        between_draws: standard deviation of what a draw from one checkpoint adds.
        within_draw: standard error of a single draw, as its interval states it (geometric mean).
        fresh: a further draw of a further seed, without its own error; the point is the mean.
        student: mean of the seeds' means, and Student's t on them.
        seeds: number of seeds.
        draws: number of draws in all.
    """

    mean: Interval
    between_seeds: Interval
    between_draws: Interval
    within_draw: Interval
    fresh: Interval
    student: Interval
    seeds: int
    draws: int

    @property
    def verdict(self) -> Side:
        """Where the mean's interval lies against 0.5; "open" where it holds it."""
        return side_of(self.mean.lo, self.mean.hi)


def side_of(lo: float, hi: float) -> Side:
    """Where an interval lies against an AUC of 0.5; "open" where it holds it."""
    if lo > 0.5:
        return "above"
    return "below" if hi < 0.5 else "open"


def components(
    seed: Sequence[int] | np.ndarray,
    auc: Sequence[float] | np.ndarray,
    error: Sequence[float] | np.ndarray,
    *,
    nodes: int = NODES,
) -> Components:
    """Variance components of a result measured in several draws of several seeds.

    Args:
        seed: shape (n,), training seed of each draw.
        auc: shape (n,), finite, the result in that draw.
        error: shape (n,), its standard error within the draw; see :func:`standard_error`.
        nodes: points of the integrals over each variance.

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
    of_point, across = (np.array([float(each)]) for each in freedom)
    point = _outer(_inner(auc, variance, member, of_point), across)
    (chi_draws, of_draws), (chi_seeds, of_seeds) = (_chi_squared(each, nodes) for each in freedom)
    inner = _inner(auc, variance, member, chi_draws)
    every = _outer(inner.repeated(nodes), np.tile(chi_seeds, nodes))
    weight = np.outer(of_draws, of_seeds).ravel()
    ends = _inner(auc, variance, member, stats.chi2.isf(_TAILS, freedom[0])).added
    center = float(point.mean[0])
    fresh = np.sqrt(every.error**2 + every.seeds + every.draws)
    return Components(
        mean=Interval(center, *_mixture_ends(every.mean, every.error, weight)),
        between_seeds=_deviation(point.seeds[0], *_seeds_ends(inner, of_draws, freedom[1])),
        between_draws=_deviation(point.draws[0], *ends),
        within_draw=_typical(np.sqrt(variance)),
        fresh=Interval(center, *_mixture_ends(every.mean, fresh, weight)),
        student=_student((member @ auc) / member.sum(axis=1)),
        seeds=len(names),
        draws=len(auc),
    )


def standard_error(lo: float, hi: float) -> float:
    """Standard error that a 95% interval states."""
    return (hi - lo) / (2 * float(special.ndtri(0.5 + LEVEL / 2)))


def sign_flips(
    seed: Sequence[int], auc: Sequence[float], lo: Sequence[float], hi: Sequence[float]
) -> list[dict[str, Any]]:
    """What each draw alone would have said, a row a seed (the paper's P6).

    Returns:
        Rows of ``seed``, ``draws``, ``above`` (draws whose point exceeds 0.5), ``separating``
        (whose interval lies above 0.5), ``reversed`` (whose interval lies below it) and ``flips``:
        whether the seed's own draws disagree on any.
    """
    rows = []
    for each in sorted(set(seed)):
        own = [i for i, name in enumerate(seed) if name == each]
        counts = {
            "above": sum(auc[i] > 0.5 for i in own),
            "separating": sum(side_of(lo[i], hi[i]) == "above" for i in own),
            "reversed": sum(side_of(lo[i], hi[i]) == "below" for i in own),
        }
        flips = any(0 < count < len(own) for count in counts.values())
        rows.append({"seed": each, "draws": len(own), **counts, "flips": flips})
    return rows


@dataclass(frozen=True)
class _Inner:
    """Variance between draws, one a case, and the seeds' weighed means that follow.

    Attributes:
        added: shape (cases,), variance between draws.
        means: shape (cases, seeds).
        errors: shape (cases, seeds), variances of the means, draws and their own errors.
    """

    added: np.ndarray
    means: np.ndarray
    errors: np.ndarray

    def repeated(self, times: int) -> _Inner:
        """Every case this many times, one after another."""
        return _Inner(*(np.repeat(a, times, axis=0) for a in (self.added, self.means, self.errors)))


@dataclass(frozen=True)
class _Solved:
    """Variances and the mean, one a case: shape (cases,)."""

    draws: np.ndarray
    seeds: np.ndarray
    mean: np.ndarray
    error: np.ndarray


def _inner(auc: np.ndarray, variance: np.ndarray, member: np.ndarray, chi: np.ndarray) -> _Inner:
    """Solve the draws' quadratic form for these values, shape (cases,).

    ``member`` is (seeds, n): 1 where the draw belongs to the seed, else 0.
    """
    added = _root(np.broadcast_to(auc, (len(chi), len(auc))), variance, member, chi)
    weight = 1 / (added[:, None] + variance)
    total = weight @ member.T
    return _Inner(added, (weight * auc) @ member.T / total, 1 / total)


def _outer(inner: _Inner, chi: np.ndarray) -> _Solved:
    """Solve the seeds' form for these values, shape (cases,), then weigh the mean."""
    together = np.ones((1, inner.means.shape[1]))
    added = _root(inner.means, inner.errors, together, chi)
    weight = 1 / (added[:, None] + inner.errors)
    total = weight.sum(axis=1)
    mean = (weight * inner.means).sum(axis=1) / total
    return _Solved(inner.added, added, mean, np.sqrt(1 / total))


def _chi_squared(freedom: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and weights that integrate over a chi-squared distribution: Gauss and Legendre's."""
    place, weight = np.polynomial.legendre.leggauss(nodes)
    return stats.chi2.ppf((1 + place) / 2, freedom), weight / 2


def _mixture_ends(mean: np.ndarray, error: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Ends, in [0, 1], of 95% of a mixture of normal distributions."""

    def below(at: float) -> float:
        return float(weight @ special.ndtr((at - mean) / error))

    lo, hi = (_crossing(below, tail, 1.0) for tail in _TAILS)
    return lo, hi


def _seeds_ends(inner: _Inner, weight: np.ndarray, freedom: int) -> tuple[float, float]:
    """Ends of 95% of the variance between seeds: it is below v where chi is above the form at v."""

    def below(added: float) -> float:
        total = 1 / (added + inner.errors)
        mean = (total * inner.means).sum(axis=1, keepdims=True) / total.sum(axis=1, keepdims=True)
        form = (total * (inner.means - mean) ** 2).sum(axis=1)
        return float(weight @ stats.chi2.sf(form, freedom))

    highest = 1.0
    while below(highest) < _TAILS[1]:
        highest *= 4
    lo, hi = (_crossing(below, tail, highest) for tail in _TAILS)
    return lo, hi


def _crossing(rising: Callable[[float], float], wanted: float, highest: float) -> float:
    """Where a rising function reaches a value in [0, highest]; the nearer end, if outside."""
    if rising(0.0) >= wanted:
        return 0.0
    if rising(highest) <= wanted:
        return highest
    return float(optimize.brentq(lambda at: rising(at) - wanted, 0.0, highest, xtol=1e-12))


def _root(
    values: np.ndarray, variance: np.ndarray, member: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """The added variance at which the weighted squares about the clusters' means are ``wanted``.

    The squares fall as the variance grows; where they are too small at 0, it is 0. Their reciprocal
    is concave and nearly straight, so Newton's steps on it come from below and are few.

    Args:
        values: shape (cases, n).
        variance: shape (n,) or (cases, n), the known part.
        member: shape (clusters, n), 1 where the value belongs to the cluster, else 0.
        wanted: shape (cases,).
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


def _deviation(*variances: float) -> Interval:
    return Interval(*(float(np.sqrt(each)) for each in variances))


def _student(means: np.ndarray) -> Interval:
    """Mean of the seeds' means, with Student's t; an AUC lies in [0, 1]."""
    center = float(means.mean())
    error = float(means.std(ddof=1) / np.sqrt(len(means)))
    reach = float(special.stdtrit(len(means) - 1, 0.5 + LEVEL / 2)) * error
    return Interval(center, max(center - reach, 0.0), min(center + reach, 1.0))


def _typical(errors: np.ndarray) -> Interval:
    """Geometric mean over draws, with Student's t on the logarithms."""
    logs = np.log(errors)
    reach = special.stdtrit(len(logs) - 1, 0.5 + LEVEL / 2) * logs.std(ddof=1) / np.sqrt(len(logs))
    return Interval(*(float(np.exp(logs.mean() + step)) for step in (0, -reach, reach)))
