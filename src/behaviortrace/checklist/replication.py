"""Does the rollout-level verdict hold over training seeds and generation draws?"""

from __future__ import annotations

from collections import defaultdict

from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.registry import Finding, check, not_run


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

    The verdict of a draw is whether the interval of its residualised direction AUC lies above
    0.5. A single run is "not run": its intervals hold neither a fresh draw's variation nor that
    between runs.
    """
    seeds_needed, draws_needed = evidence.thresholds.seeds, evidence.thresholds.draws
    limits = {"seeds": seeds_needed, "draws": draws_needed}
    draws: dict[int, set[str]] = defaultdict(set)
    for replicate in evidence.replicates:
        draws[replicate.seed].add(replicate.draw)
    fewest = min((len(names) for names in draws.values()), default=0)
    separating = sum(r.separates for r in evidence.replicates)
    total = len(evidence.replicates)
    facts = {
        "seeds": sorted(draws),
        "draws_per_seed": fewest or None,
        "results": [
            {"seed": r.seed, "draw": r.draw, "auc": r.auc, "lo": r.lo, "hi": r.hi}
            for r in evidence.replicates
        ],
        "separating": separating if total else None,
    }
    if len(draws) < seeds_needed or fewest < draws_needed:
        how = remedy(seeds_needed, draws_needed)
        if not total:
            return not_run(f"no draw has a rollout-level result; {how}", **limits)
        split = f"; {separating} of {total} draws separate, so they disagree"
        return Finding(
            "not run",
            f"{_count(len(draws), 'seed')} with {_count(fewest, 'draw')}, where {seeds_needed} "
            f"seeds with {draws_needed} draws are needed{split if 0 < separating < total else ''}"
            f"; {how}",
            facts,
            limits,
        )
    held = f"{separating} of {total} draws over {_count(len(draws), 'seed')} separate above 0.5"
    if 0 < separating < total:
        return Finding("fail", f"{held}: the verdict flips between runs or draws", facts, limits)
    return Finding("pass", f"{held}: one verdict throughout", facts, limits)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
