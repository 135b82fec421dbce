"""How often intervals hold an effect's mean over training seeds, measured in a few draws of few."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from behaviortrace.evaluate.components import components

SEEDS, DRAWS = 3, 2
MEAN = 0.6
ERROR = 0.03
"""Standard error of one draw's AUC: the paper's draws state about this."""
SPREADS = ((0.0, 0.0), (0.03, 0.0), (0.0, 0.03), (0.03, 0.03), (0.1, 0.03), (0.1, 0.0))
"""Standard deviations between seeds and between draws of a seed."""
_NODES = 24  # the mean's ends are then right to about 0.0005
_SHARES = (
    "one_draw",
    "all_draws",
    "components",
    "student",
    "found",
    "student_found",
    "seeds_held",
    "draws_held",
)


def coverage_over_seeds(
    between_seeds: float, between_draws: float, studies: int = 1000, *, seed: int = 0
) -> dict[str, Any]:
    """Coverage of the mean over seeds, by intervals that know more and less of its variation.

    Args:
        between_seeds: standard deviation of what a seed adds.
        between_draws: standard deviation of what a draw adds.
        studies: simulated studies of 3 seeds x 2 draws.
        seed: of the simulation.

    Returns:
        Both arguments, and the shares of studies whose interval holds the mean: ``one_draw`` (the
        first draw's own interval, as a single run reports it), ``all_draws`` (all draws averaged as
        if they were one), ``components`` and ``student`` (t on the seeds' means); the mean
        ``width`` and ``student_width`` of the last two, and how often they lie above 0.5, ``found``
        and ``student_found``. Also, for the components' own intervals, ``seeds_held`` and
        ``draws_held``.
    """
    rng = np.random.default_rng(seed)
    code = np.repeat(np.arange(SEEDS), DRAWS)
    reach = float(special.ndtri(0.975))
    held = dict.fromkeys(_SHARES, 0)
    width = dict.fromkeys(("width", "student_width"), 0.0)
    for _ in range(studies):
        noise = rng.normal(size=len(code)) * np.hypot(between_draws, ERROR)
        auc = MEAN + between_seeds * rng.normal(size=SEEDS)[code] + noise
        found = components(code, auc, np.full(len(code), ERROR), nodes=_NODES)
        held["one_draw"] += bool(abs(auc[0] - MEAN) <= reach * ERROR)
        held["all_draws"] += bool(abs(auc.mean() - MEAN) <= reach * ERROR / np.sqrt(len(auc)))
        held["components"] += found.mean.lo <= MEAN <= found.mean.hi
        held["student"] += found.student.lo <= MEAN <= found.student.hi
        held["found"] += found.mean.lo > 0.5
        held["student_found"] += found.student.lo > 0.5
        held["seeds_held"] += found.between_seeds.lo <= between_seeds <= found.between_seeds.hi
        held["draws_held"] += found.between_draws.lo <= between_draws <= found.between_draws.hi
        width["width"] += found.mean.hi - found.mean.lo
        width["student_width"] += found.student.hi - found.student.lo
    return {
        "between_seeds": between_seeds,
        "between_draws": between_draws,
        "studies": studies,
        **{name: float(count / studies) for name, count in held.items()},
        **{name: total / studies for name, total in width.items()},
    }


def bench_seeds(studies: int = 1000, *, seed: int = 0) -> list[dict[str, Any]]:
    """:func:`coverage_over_seeds` for a range of spreads, a row each."""
    return [coverage_over_seeds(*spread, studies, seed=seed) for spread in SPREADS]
