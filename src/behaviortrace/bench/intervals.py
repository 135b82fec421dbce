"""`behaviortrace bench intervals`: how often a 95% interval of within-group AUC holds the truth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from behaviortrace.bench.cases import CASES, STATISTICS, Case
from behaviortrace.evaluate.within_group import judge

DELTA = 0.10
METHODS = ("percentile", "logit-t")


def coverage(
    case: Case, studies: int = 1000, *, resamples: int = 1000, seed: int = 0
) -> list[dict[str, Any]]:
    """Coverage of both intervals of :func:`~behaviortrace.evaluate.within_group.judge`.

    Args:
        case: how the studies come about.
        studies: how many.
        resamples: of each percentile interval.
        seed: of the studies.

    Returns:
        A row a statistic and method: ``case``, ``groups``, ``statistic``, ``truth``, ``method``,
        ``studies`` (those with an interval), ``covered`` (share of them that hold the truth),
        ``error`` (its binomial standard error at 0.95), ``below`` and ``above`` (shares that lie
        wholly below and above the truth), ``width`` (mean).
    """
    truth = case.truth(DELTA, seed)
    ends: dict[tuple[str, str], list[tuple[float, float]]] = {
        (statistic, method): [] for statistic in STATISTICS for method in METHODS
    }
    for number in range(studies):
        study = case.study(np.random.default_rng((seed, 0, number)))
        report = judge(
            study.label,
            study.group,
            {"s": study.score},
            study.fluency,
            delta=DELTA,
            resamples=resamples,
            seed=number,
        )
        blocks = {
            "raw": report.raw,
            "residualized": report.residualized,
            "matched": report.matched,
        }
        for statistic, block in blocks.items():
            assert block is not None
            found = block["s"]
            ends[statistic, "percentile"].append((found.lo, found.hi))
            ends[statistic, "logit-t"].append((found.logit_t.lo, found.logit_t.hi))
    return [
        {
            "case": case.name,
            "groups": case.groups,
            "statistic": statistic,
            "truth": truth[statistic],
            "method": method,
            **_covered(np.array(found), truth[statistic]),
        }
        for (statistic, method), found in ends.items()
    ]


def _covered(ends: np.ndarray, truth: float) -> dict[str, Any]:
    lo, hi = ends[~np.isnan(ends[:, 0])].T
    n = len(lo)
    if not n:
        return dict.fromkeys(("covered", "error", "below", "above", "width")) | {"studies": 0}
    return {
        "studies": n,
        "covered": float(((lo <= truth) & (truth <= hi)).mean()),
        "error": math.sqrt(0.95 * 0.05 / n),
        "below": float((hi < truth).mean()),
        "above": float((lo > truth).mean()),
        "width": float((hi - lo).mean()),
    }


def bench_intervals(
    cases: Iterable[Case] = CASES,
    *,
    studies: int = 1000,
    resamples: int = 1000,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """:func:`coverage` of every case, as one table of rows."""
    return list(_rows(list(cases), studies, resamples, seed, progress))


def _rows(
    cases: list[Case],
    studies: int,
    resamples: int,
    seed: int,
    progress: Callable[[str, int, int], None] | None,
) -> Iterator[dict[str, Any]]:
    for number, case in enumerate(cases):
        if progress is not None:
            progress("intervals", number, len(cases))
        yield from coverage(case, studies, resamples=resamples, seed=seed)
    if progress is not None:
        progress("intervals", len(cases), len(cases))
