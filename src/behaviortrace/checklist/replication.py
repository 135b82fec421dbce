"""Does the rollout-level verdict hold over training seeds and generation draws?"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from behaviortrace.checklist.evidence import Evidence, Replicate
from behaviortrace.checklist.registry import Finding, check, not_run
from behaviortrace.evaluate.bootstrap import Interval
from behaviortrace.evaluate.components import (
    Components,
    Side,
    components,
    sign_flips,
    standard_error,
)
from behaviortrace.recipe import Thresholds


def needed(thresholds: Thresholds) -> tuple[int, int]:
    """Seeds, and draws of each: the recipe's, and two at least, to tell seeds from draws."""
    return max(thresholds.seeds, 2), max(thresholds.draws, 2)


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
    and between draws; a single draw's interval holds neither. Fail where some draw's interval lies
    on a side of 0.5 where the mean's does not, above or below, for then the verdict flips.
    """
    seeds_needed, draws_needed = needed(evidence.thresholds)
    limits = {"seeds": evidence.thresholds.seeds, "draws": evidence.thresholds.draws}
    every = evidence.replicates
    draws: dict[int, set[str]] = defaultdict(set)
    for replicate in every:
        draws[replicate.seed].add(replicate.draw)
    fewest = min((len(names) for names in draws.values()), default=0)
    sides, total = Counter(r.side for r in every), len(every)
    facts: dict[str, Any] = {
        "seeds": sorted(draws),
        "draws_per_seed": fewest or None,
        "results": [
            {"seed": r.seed, "draw": r.draw, "auc": r.auc, "lo": r.lo, "hi": r.hi} for r in every
        ],
        "separating": sides["above"] if total else None,
        "reversed": sides["below"] if total else None,
        "sign_flips": flips_of(every),
    }
    how = remedy(seeds_needed, draws_needed)
    if not total:
        return not_run(f"no draw has a rollout-level result; {how}", **limits)
    if len(draws) < seeds_needed or fewest < draws_needed:
        split = f"; {_sides(sides, total)}, so they disagree" if len(sides) > 1 else ""
        return Finding(
            "not run",
            f"{_count(len(draws), 'seed')} with {_count(fewest, 'draw')}, where {seeds_needed} "
            f"seeds with {draws_needed} draws are needed{split}; {how}",
            facts,
            limits,
        )
    found = components_of(every)
    facts["components"] = facts_of(found)
    flipped = sum(row["flips"] for row in facts["sign_flips"])
    said = (
        f"the mean over seeds is {_shown(found.mean)}, with a standard deviation of "
        f"{_shown(found.between_seeds)} between seeds and {_shown(found.between_draws)} between "
        f"draws, where a draw's own error is {found.within_draw.point:.3f} (Student's t on the "
        f"seeds' means: {_ends(found.student)}); {_sides(sides, total)} over "
        f"{_count(len(draws), 'seed')}"
    )
    if flipped:
        said += f", and the draws of {_count(flipped, 'seed')} disagree among themselves"
    if set(sides) - {"open", found.verdict}:
        return Finding("fail", f"the verdict flips between runs or draws: {said}", facts, limits)
    return Finding("pass", f"{said}: {_EFFECT[found.verdict]}", facts, limits)


_EFFECT: Mapping[Side, str] = {
    "above": "over seeds an effect above 0.5",
    "below": "over seeds an effect below 0.5",
    "open": "no effect in any draw, nor over seeds",
}


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
    columns = zip(*((r.seed, r.auc, r.lo, r.hi) for r in every), strict=True)
    return sign_flips(*columns) if every else []


def facts_of(found: Components) -> Mapping[str, Any]:
    """Components and their verdict, as they are stored."""
    return dataclasses.asdict(found) | {"verdict": found.verdict}


def _shown(interval: Interval) -> str:
    return f"{interval.point:.3f} {_ends(interval)}"


def _ends(interval: Interval) -> str:
    return f"[{interval.lo:.3f}, {interval.hi:.3f}]"


def _sides(sides: Mapping[Side, int], total: int) -> str:
    """How many draws' intervals exclude 0.5."""
    below = f" and {sides['below']} below" if sides.get("below") else ""
    return f"{sides.get('above', 0)} of {total} draws separate above 0.5{below}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
