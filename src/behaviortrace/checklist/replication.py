"""Does the rollout-level verdict hold over training seeds and generation draws?"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from behaviortrace.checklist.evidence import Evidence, Replicate
from behaviortrace.checklist.registry import Finding, check, not_run
from behaviortrace.evaluate.bootstrap import Interval
from behaviortrace.evaluate.components import Components, components, sign_flips, standard_error


def remedy(seeds: int, draws: int) -> str:
    """How to come by enough seeds and draws."""
    listed = ",".join(map(str, range(seeds)))
    return (
        f"run `behaviortrace sweep RECIPE --seeds {listed} --draws {draws} --out DIR`, and believe "
        "what holds in all"
    )


@check(name="replication", title="Multiple seeds and generation draws agree", order=100)
def replication(evidence: Evidence) -> Finding:
    """Pass where enough seeds, each with enough draws, give one verdict (P6).

    The verdict is that of the mean over seeds, whose interval holds the variation between seeds
    and between draws; a single draw's interval holds neither. Pass where it lies on one side of
    0.5, and where it holds 0.5 and no draw claimed otherwise; fail where it holds 0.5 although
    some draws separate, for these flip.
    """
    seeds_needed, draws_needed = evidence.thresholds.seeds, evidence.thresholds.draws
    limits = {"seeds": seeds_needed, "draws": draws_needed}
    every = evidence.replicates
    draws: dict[int, set[str]] = defaultdict(set)
    for replicate in every:
        draws[replicate.seed].add(replicate.draw)
    fewest = min((len(names) for names in draws.values()), default=0)
    separating, total = sum(r.separates for r in every), len(every)
    facts: dict[str, Any] = {
        "seeds": sorted(draws),
        "draws_per_seed": fewest or None,
        "results": [
            {"seed": r.seed, "draw": r.draw, "auc": r.auc, "lo": r.lo, "hi": r.hi} for r in every
        ],
        "separating": separating if total else None,
        "sign_flips": flips_of(every),
    }
    how = remedy(max(seeds_needed, 2), max(draws_needed, 2))
    if not total:
        return not_run(f"no draw has a rollout-level result; {how}", **limits)
    if len(draws) < max(seeds_needed, 2) or fewest < max(draws_needed, 2):
        split = f"; {separating} of {total} draws separate, so they disagree"
        return Finding(
            "not run",
            f"{_count(len(draws), 'seed')} with {_count(fewest, 'draw')}, where {seeds_needed} "
            f"seeds with {draws_needed} draws are needed{split if 0 < separating < total else ''}"
            f"; {how}",
            facts,
            limits,
        )
    found = components_of(every)
    facts["components"] = facts_of(found)
    held = f"{separating} of {total} draws over {_count(len(draws), 'seed')} separate above 0.5"
    flipped = sum(row["flips"] for row in facts["sign_flips"])
    said = (
        f"the mean over seeds is {_shown(found.mean)}, with a standard deviation of "
        f"{_shown(found.between_seeds)} between seeds and {_shown(found.between_draws)} between "
        f"draws, where a draw's own error is {found.within_draw.point:.3f}; {held}"
    )
    if flipped:
        said += f", and the draws of {_count(flipped, 'seed')} disagree among themselves"
    if found.verdict == "open" and separating:
        return Finding("fail", f"the verdict flips between runs or draws: {said}", facts, limits)
    side = {"above": "an effect above 0.5", "below": "an effect below 0.5", "open": "no effect"}
    return Finding("pass", f"{said}: {side[found.verdict]} throughout", facts, limits)


def components_of(every: Sequence[Replicate]) -> Components:
    """Variance components of the replicates; see :func:`~behaviortrace.evaluate.components`.

    Raises:
        BehaviorTraceError: too few to tell seeds from draws.
    """
    return components(
        [r.seed for r in every],
        [r.auc for r in every],
        [standard_error(r.lo, r.hi) for r in every],
    )


def flips_of(every: Sequence[Replicate]) -> list[dict[str, Any]]:
    """What each draw alone would have said, a row a seed (P6)."""
    return sign_flips([r.seed for r in every], [r.auc for r in every], [r.lo for r in every])


def facts_of(found: Components) -> Mapping[str, Any]:
    """Components and their verdict, as they are stored."""
    return dataclasses.asdict(found) | {"verdict": found.verdict}


def _shown(interval: Interval) -> str:
    return f"{interval.point:.3f} [{interval.lo:.3f}, {interval.hi:.3f}]"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
