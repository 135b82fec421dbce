"""Is the run whole: checksums, counts, and a lineage that is known?"""

from __future__ import annotations

from typing import Any

from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.registry import Finding, check, not_run


@check(name="integrity", title="The run is whole, and its lineage is known", order=10)
def integrity(evidence: Evidence) -> Finding:
    """Pass where nothing is damaged and every rollout is there (paper, Appendix, run integrity).

    A resume that the run records is exact (an inexact one is refused), so it does not fail the
    line; it is named. Neither does a rollout without a finite reward, which TRL leaves out of its
    group; what that did is told. An advantage that is no number fails it: the update that follows
    is none either, and no rollout's share of it can be told.
    """
    if evidence.problems is None:
        return not_run("the run directory was not verified; run `behaviortrace verify`")
    count, expected = evidence.rollouts, evidence.rollouts_expected
    facts: dict[str, Any] = {
        "problems": list(evidence.problems),
        "rollouts": count,
        "rollouts_expected": expected,
        "resumes": len(evidence.lineage),
    }
    odd = evidence.unscored
    clause = odd.clause() if odd else ""
    if odd and clause:
        facts["unscored"] = odd.note()
    if evidence.problems:
        more = len(evidence.problems) - 1
        tail = f", and {more} more" if more else ""
        return Finding("fail", f"verification found: {evidence.problems[0]}{tail}", facts)
    if count is None:
        return not_run("the manifest counts no training rollouts")
    if expected is not None and count != expected:
        return Finding("fail", f"{count:,} rollouts where steps x batch make {expected:,}", facts)
    if odd and odd.beyond_numbers:
        return Finding("fail", clause, facts)
    resumes = len(evidence.lineage)
    start = "a fresh start" if not resumes else f"{resumes} recorded resume{'s' * (resumes > 1)}"
    against = f" of {expected:,} expected" if expected is not None else ""
    told = f"no file is damaged or missing, {count:,} rollouts{against}, {start}"
    return Finding("pass", f"{told}; {clause}" if clause else told, facts)
