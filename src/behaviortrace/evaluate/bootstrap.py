"""The resampler: percentile bootstrap over groups, a drawn group kept separate each time.

One definition for every interval of the product. Groups, not rollouts, are drawn: siblings share a
prompt and a step and are not independent. Where groups repeat a prompt, all groups of a prompt are
drawn together (:mod:`behaviortrace.evaluate.clusters`), and are the groups meant here. Drawing a
group m times gives its pairs (or rows) weight m; two copies are never merged, so no pair is ever
formed across copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

LEVEL = 0.95
FEW_GROUPS = 10
"""Below this many groups a percentile interval is too narrow to be relied on."""

_CELLS = 1_000_000  # resamples x groups held at a time, to bound memory


@dataclass(frozen=True)
class Interval:
    """A point estimate and its 95% interval; NaN where undefined.

    An interval that carries no information is undefined: one of width zero says only that nothing
    differed in what was resampled, not that the point is known.

    Attributes:
        point: the estimate.
        lo: lower end.
        hi: upper end.
        reason: why there is no interval; None where there is one.
    """

    point: float
    lo: float
    hi: float
    reason: str | None = field(default=None, kw_only=True)


UNDEFINED = Interval(float("nan"), float("nan"), float("nan"), reason="there is no point")
ALIKE = "no {unit} differs from the others, so resampling them tells nothing"
ALONE = "only one {unit} has {what}, so there is nothing to resample"

_NO_WIDTH = 1e-12  # a narrower interval is rounding


def resample_counts(n_groups: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """How often each group is drawn in each resample, in chunks of resamples.

    Args:
        n_groups: groups to draw from, and to draw, with replacement.
        resamples: total number of resamples.
        seed: of the generator; the same seed gives the same resamples.

    Yields:
        Arrays of shape (chunk, n_groups), float64; the chunks add up to ``resamples`` rows, and
        every row sums to ``n_groups``.
    """
    generator = np.random.default_rng(seed)
    chunk = max(1, _CELLS // max(n_groups, 1))
    for start in range(0, resamples, chunk):
        rows = min(chunk, resamples - start)
        drawn = generator.integers(0, n_groups, size=(rows, n_groups))
        drawn += np.arange(rows)[:, None] * n_groups
        counts = np.bincount(drawn.ravel(), minlength=rows * n_groups)
        yield counts.reshape(rows, n_groups).astype(np.float64)


def percentile_interval(point: float, resampled: np.ndarray, unit: str = "group") -> Interval:
    """The point with the central 95% of its resampled values, shape (resamples,).

    ``unit`` is what was resampled, for the reason of an undefined interval.

    Resamples in which the statistic is undefined (NaN) are left out. There is no interval where
    none is left, or where the percentiles are one value: groups that do not differ give the point
    in every resample, whatever the point's error.
    """
    defined = resampled[~np.isnan(resampled)]
    if len(defined) == 0:
        return no_interval(point, "it is undefined in every resample")
    tail = 50 * (1 - LEVEL)
    lo, hi = np.percentile(defined, [tail, 100 - tail])
    if hi - lo <= _NO_WIDTH:
        return no_interval(point, ALIKE.format(unit=unit))
    return Interval(point, float(lo), float(hi))


def no_interval(point: float, reason: str) -> Interval:
    """A point without an interval, and why."""
    return Interval(point, float("nan"), float("nan"), reason=reason)


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Elementwise ratio, NaN where the denominator is 0."""
    denominator = np.broadcast_to(denominator, np.shape(numerator))
    out = np.full(np.shape(numerator), np.nan)
    return np.divide(numerator, denominator, out=out, where=denominator > 0)
