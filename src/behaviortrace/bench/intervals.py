"""`behaviortrace bench intervals`: how often a 95% interval holds the truth."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from behaviortrace.bench.candidates import candidates
from behaviortrace.bench.cases import AUCS, CASES, STATISTICS, Case, Study
from behaviortrace.evaluate.auc import credit, group_codes, within_group_pairs
from behaviortrace.evaluate.cluster_mean import cluster_percentile, cluster_t
from behaviortrace.evaluate.clusters import cluster_codes
from behaviortrace.evaluate.fluency import matched
from behaviortrace.evaluate.within_group import AucReport, Judged, judge

DELTA = 0.10
METHODS = ("percentile", "logit-t", "t")
"""The paper's; the one that AUCs are judged by; the one that means are. All are over prompts."""
BY_GROUP = "by group"
"""What ``logit-t`` or ``t`` comes to where groups that repeat a prompt are taken as independent."""


def coverage(
    case: Case,
    studies: int = 1000,
    *,
    resamples: int = 1000,
    seed: int = 0,
    others: bool = False,
) -> list[dict[str, Any]]:
    """Coverage of the paper's interval and of ours, of within-group AUCs and of a mean cosine.

    Args:
        case: how the studies come about.
        studies: how many.
        resamples: of each bootstrap interval.
        seed: of the studies.
        others: also the intervals that were considered and not taken.

    Returns:
        A row a statistic and method (:data:`METHODS`, and :data:`BY_GROUP` where prompts repeat):
        ``case``, ``groups``, ``prompts``, ``statistic``, ``truth``, ``method``, ``studies`` (those
        with an interval), ``covered`` (share of them that hold the truth),
        ``error`` (its binomial standard error at 0.95), ``below`` and ``above`` (shares that lie
        wholly below and above the truth), ``width`` (mean).
    """
    truth = case.truth(DELTA, seed)
    ends: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for number in range(studies):
        study = case.study(np.random.default_rng((seed, 0, number)))
        for key, found in _ends(study, resamples, number):
            ends[key].append(found)
        if others:
            for key, found in _others(study, resamples, number):
                ends[key].append(found)
    ordered = sorted(ends, key=lambda key: STATISTICS.index(key[0]))
    return [
        {
            "case": case.name,
            "groups": case.groups,
            "prompts": case.prompts,
            "statistic": statistic,
            "truth": truth[statistic],
            "method": method,
            **_covered(np.array(ends[statistic, method]), truth[statistic]),
        }
        for statistic, method in ordered
    ]


def _ends(
    study: Study, resamples: int, seed: int
) -> Iterator[tuple[tuple[str, str], tuple[float, float]]]:
    """The intervals of each statistic of a study: the paper's first."""
    options: dict[str, Any] = {"delta": DELTA, "resamples": resamples, "seed": seed}
    rows = (study.label, study.group, {"s": study.score}, study.fluency)
    for statistic, found in _aucs(judge(*rows, cluster=study.prompt, **options)):
        yield (statistic, METHODS[0]), (found.lo, found.hi)
        yield (statistic, METHODS[1]), (found.logit_t.lo, found.logit_t.hi)
    cosine, group, prompt = (a[study.label] for a in (study.cosine, study.group, study.prompt))
    paper, chosen = cluster_percentile(cosine, prompt, resamples, seed), cluster_t(cosine, prompt)
    yield ("mean", METHODS[0]), (paper.lo, paper.hi)
    yield ("mean", METHODS[2]), (chosen.lo, chosen.hi)
    if study.prompt[-1] == study.group[-1]:
        return
    for statistic, found in _aucs(judge(*rows, **options | {"resamples": 100})):
        yield (statistic, BY_GROUP), (found.logit_t.lo, found.logit_t.hi)
    wrong = cluster_t(cosine, group)
    yield ("mean", BY_GROUP), (wrong.lo, wrong.hi)


def _aucs(report: AucReport) -> Iterator[tuple[str, Judged]]:
    for statistic, block in zip(
        AUCS, (report.raw, report.residualized, report.matched), strict=True
    ):
        assert block is not None
        yield statistic, block["s"]


def _others(
    study: Study, resamples: int, seed: int
) -> Iterator[tuple[tuple[str, str], tuple[float, float]]]:
    code, n_groups = group_codes(study.group)
    prompts = cluster_codes(study.group, study.prompt)
    pairs = within_group_pairs(study.label, code, n_groups, prompts)
    for statistic, of in (("raw", pairs), ("matched", matched(pairs, study.fluency, DELTA))):
        number = of.per_cluster()
        if np.count_nonzero(number) < 2:
            continue
        wins = of.per_cluster(credit(of.difference(study.score)))
        for method, found in candidates(wins, number, resamples, seed).items():
            yield (statistic, method), found


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
    others: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """:func:`coverage` of every case, as one table of rows."""
    found: list[dict[str, Any]] = []
    every = list(cases)
    for number, case in enumerate(every):
        if progress is not None:
            progress("intervals", number, len(every))
        found += coverage(case, studies, resamples=resamples, seed=seed, others=others)
    if progress is not None:
        progress("intervals", len(every), len(every))
    return found
