"""What a planned run could show: headroom, and the smallest effects it would detect.

Closed forms, checked by simulation in the tests. A group's rollouts show the behaviour with a
propensity of its prompt's own, drawn from a beta distribution; given it they are independent. Its
mean is the behaviour rate, and its spread is given as the intra-class correlation ``icc``: the
correlation of two rollouts of a prompt.

Groups that repeat a prompt are one unit of the interval, so that its degrees of freedom count
prompts; and as the effect varies between prompts, their AUCs go together, which the design effect
(Kish 1965) makes an error of.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special, stats

from behaviortrace.evaluate.power import POWER

_TAIL = 0.975  # of a two-sided 95% interval
_MOST_GROUPS = 100_000  # of a draw; labels that need more are as good as never mixed
_GRID = (*np.arange(0.51, 1.0, 0.01).tolist(), 0.9999)  # AUCs looked at; none above the last


@dataclass(frozen=True)
class Showing:
    """How often rollouts of a group are labelled.

    Attributes:
        rate: mean propensity in groups that can show the behaviour.
        icc: intra-class correlation in them, in [0, 1).
        fraction: share of the rollouts that show it that is labelled too (the eligible ones, where
            the label is "boosted"; 1 for the label "behavior").
        silent: share of groups that never show it, as those of background tasks.
    """

    rate: float
    icc: float
    fraction: float = 1.0
    silent: float = 0.0

    def moment(self, k: int) -> float:
        """Mean of the k-th power of a group's labelling propensity.

        Example:
            >>> round(Showing(0.3, 0.2).moment(2), 3)  # 0.3 squared, plus 0.2 x 0.3 x 0.7
            0.132
        """
        whole = self.rate**k
        if self.icc > 0:
            size = 1 / self.icc - 1
            whole = math.prod((self.rate * size + i) / (size + i) for i in range(k))
        return (1 - self.silent) * self.fraction**k * whole

    def counts(self, size: int) -> np.ndarray:
        """Distribution of the labelled rollouts of a group: (size + 1,) probabilities."""
        shown = np.arange(size + 1)
        if self.icc > 0:
            spread = 1 / self.icc - 1
            chance = stats.betabinom.pmf(shown, size, self.rate * spread, (1 - self.rate) * spread)
        else:
            chance = stats.binom.pmf(shown, size, self.rate)
        thinned = stats.binom.pmf(shown[:, None], shown, self.fraction)  # labelled given shown
        counts: np.ndarray = (1 - self.silent) * (thinned @ chance)
        counts[0] += self.silent
        return counts


def findable_share(showing: Showing, size: int) -> float:
    """Share of the labelled rollouts whose group is not labelled throughout.

    With equal base rewards a group boosted throughout has no reward variance, hence no gradient;
    base rewards that vary can only raise the share.

    Args:
        showing: with the eligible fraction.
        size: rollouts of a group.
    """
    return 1.0 - showing.moment(size) / showing.moment(1)


def step_ceiling(showing: Showing, groups: int, size: int) -> float:
    """Expected ceiling of step-level precision over many steps (pitfall P2).

    The best order is by a step's density of ground truth, and |GT| rows fill as large a share of
    the steps as the base rate says; the ceiling is the mean density of that top share.

    Args:
        showing: with the eligible fraction.
        groups: of one step.
        size: rollouts of a group.
    """
    step = np.ones(1)
    for _ in range(groups):
        step = np.convolve(step, showing.counts(size))
    density = np.arange(len(step))[::-1] / (groups * size)
    above = np.concatenate([[0.0], np.cumsum(step[::-1])])
    share = showing.moment(1)
    taken = np.clip(share - above[:-1], 0.0, step[::-1])  # of the densest steps, until share
    return float(taken @ density / share)


def step_noise(showing: Showing, groups: int, size: int, steps: int) -> float:
    """SD of the step-level precision of a ranking that knows nothing, over ``steps`` steps.

    It takes a random share of the steps, as large as the base rate, without replacement.
    """
    counts = showing.counts(size)
    values = np.arange(size + 1) / size
    mean = float(counts @ values)
    variance = float(counts @ (values - mean) ** 2) / groups
    share = showing.moment(1)
    return math.sqrt(variance * (1 - share) / (steps * share))


@dataclass(frozen=True)
class Pairing:
    """(shows, does not show) pairs inside groups, and how well an AUC of them is known.

    Attributes:
        showing: how often rollouts are labelled.
        groups: number of groups.
        size: rollouts of a group.
        repeats: groups of a prompt, on average; 1 where every prompt is asked once.
        alike: correlation of the AUCs of two groups of a prompt.
    """

    showing: Showing
    groups: int
    size: int
    repeats: float = 1.0
    alike: float = 0.0

    @property
    def pairs(self) -> float:
        """Expected number of pairs."""
        one, two = self.showing.moment(1), self.showing.moment(2)
        return self.groups * self.size * (self.size - 1) * (one - two)

    @property
    def groups_with_pairs(self) -> float:
        """Expected number of groups that hold both labels."""
        counts = self.showing.counts(self.size)
        return self.groups * float(1 - counts[0] - counts[-1])

    @property
    def freedom(self) -> float:
        """Expected degrees of freedom of the logit-t interval: prompts by their weight, less one.

        A prompt weighs as many pairs as it has (Kish); few hold most of them where labels are rare.
        Two groups of it, independent given its propensity, hold many or few together.
        """
        counts, labelled = self.showing.counts(self.size), np.arange(self.size + 1)
        held = labelled * (self.size - labelled)
        one, two = float(counts @ held), float(counts @ held**2)
        mixed = sum(c * self.showing.moment(k) for k, c in ((2, 1), (3, -2), (4, 1)))
        together = (self.size * (self.size - 1)) ** 2 * mixed
        square = two + (self.repeats - 1) * together  # of a prompt's pairs, over its repeats
        return self.groups * one**2 / square - 1 if two > 0 else math.nan

    @property
    def design_effect(self) -> float:
        """How many times the variance is what independent groups would have (Kish)."""
        return 1 + (self.repeats - 1) * self.alike

    def power(self, auc: float) -> float:
        """Chance that the 95% logit-t interval lies above 0.5, at a true AUC."""
        error = self.standard_error(auc) / (auc * (1 - auc))  # of the logit
        critical = stats.t.ppf(_TAIL, self.freedom)
        return float(stats.nct.sf(critical, self.freedom, special.logit(auc) / error))

    def standard_error(self, auc: float) -> float:
        """Of the within-group AUC, for normal scores of equal spread; NaN without pairs.

        The variance of a sum over pairs is that of Hanley and McNeil (1982), summed over groups.
        Each pair shares a member with ``size - 2`` others of its group, whatever its labels.
        """
        if self.pairs <= 0:
            return math.nan
        shared = (self.size - 2) * (both_beaten(auc) - auc * auc)
        return math.sqrt((auc * (1 - auc) + shared) / self.pairs * self.design_effect)

    def width(self, auc: float = 0.5) -> float:
        """Expected width of its 95% interval; NaN where there is none."""
        if not self.freedom > 0:
            return math.nan
        reach = stats.t.ppf(_TAIL, self.freedom) * self.standard_error(auc) / (auc * (1 - auc))
        lo, hi = special.expit(special.logit(auc) + np.array([-reach, reach]))
        return float(hi - lo)

    def groups_for_width(self, width: float) -> int | None:
        """How many groups, of as many repeats, bring the interval to a width; None for too many."""

        def wide(groups: int) -> bool:
            return not dataclasses.replace(self, groups=groups).width() <= width

        most = 2
        while wide(most):
            most *= 2
            if most > _MOST_GROUPS:
                return None
        least = most // 2
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (middle, most) if wide(middle) else (least, middle)
        return most


def both_beaten(auc: float) -> float:
    """Chance that a score beats two independent ones of the other label; normal, equal spread."""
    gap = math.sqrt(2) * stats.norm.ppf(auc)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    return float(weights @ stats.norm.cdf(nodes + gap) ** 2 / weights.sum())


def detectable_auc(pairing: Pairing) -> float | None:
    """Smallest AUC whose 95% logit-t interval lies above 0.5 in 80% of draws.

    None where fewer than two groups are expected to hold pairs, or prompts to weigh as two: there
    is then no interval, or none that says anything.
    """
    if pairing.groups_with_pairs < 2 or not pairing.freedom > 1:
        return None
    return _smallest(lambda auc: pairing.power(auc) - POWER)


def detectable_over_runs(
    pairing: Pairing, *, seeds: int, draws: int, between_seeds: float, between_draws: float
) -> float | None:
    """Smallest mean AUC that a study of several runs would detect at 80% power.

    By Student's t over the seeds' means. The interval of the variance components, which decides,
    detects a little less where seeds hardly differ (`behaviortrace bench intervals`). None if there
    is no such AUC, and with one seed always: nothing then tells how much a rerun would differ.

    Args:
        pairing: of one draw.
        seeds: training runs.
        draws: of each run.
        between_seeds: SD of the true AUC between seeds.
        between_draws: SD of the true AUC between draws of a checkpoint.
    """
    if seeds < 2:
        return None
    critical = stats.t.ppf(_TAIL, seeds - 1)

    def excess(auc: float) -> float:
        within = between_draws**2 + pairing.standard_error(auc) ** 2
        error = math.sqrt((between_seeds**2 + within / draws) / seeds)
        return float(stats.nct.sf(critical, seeds - 1, (auc - 0.5) / error)) - POWER

    return _smallest(excess)


def detectable_rate(bar: float, n: int) -> float | None:
    """Smallest true rate whose observed share of n exceeds the bar in 80% of cases."""
    most = math.floor(bar * n + 1e-9)  # a share at the bar does not exceed it
    return None if most >= n else smallest_rate(most + 1, n)


def smallest_rate(hits: int, n: int) -> float:
    """Smallest true rate that gives so many hits of n, at least one, in 80% of cases."""
    found: float = optimize.brentq(lambda rate: stats.binom.sf(hits - 1, n, rate) - POWER, 0, 1)
    return found


def detectable_mean(bar: float, sd: float, clusters: float) -> float | None:
    """Smallest mean whose 95% interval lies above the bar in 80% of cases; None for no cluster."""
    if clusters < 2:
        return None
    need = stats.norm.ppf(_TAIL) + stats.norm.ppf(POWER)
    return float(bar + need * sd / math.sqrt(clusters))


def _smallest(excess: Callable[[float], float]) -> float | None:
    """Where a function of the AUC first passes zero, in (0.5, 1).

    Near 1 a power on the logit scale falls again, as the error grows faster than the effect.
    """
    below = 0.5 + 1e-9
    for auc in _GRID:
        if excess(auc) > 0:
            found: float = optimize.brentq(excess, below, auc, xtol=1e-6)
            return found
        below = auc
    return None
