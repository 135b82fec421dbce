"""Is the run whole: checksums, counts, and a lineage that is known?"""

from __future__ import annotations

from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.registry import Finding, check, not_run


@check(name="integrity", title="The run is whole, and its lineage is known", order=10)
def integrity(evidence: Evidence) -> Finding:
    """Pass where nothing is damaged and every rollout is there (paper, Appendix, run integrity).

    A resume that the run records is exact (an inexact one is refused), so it does not fail the
    line; it is named.
    """
    if evidence.problems is None:
        return not_run("the run directory was not verified; run `behaviortrace verify`")
    count, expected = evidence.rollouts, evidence.rollouts_expected
    facts = {
        "problems": list(evidence.problems),
        "rollouts": count,
        "rollouts_expected": expected,
        "resumes": len(evidence.lineage),
    }
    if evidence.problems:
        more = len(evidence.problems) - 1
        tail = f", and {more} more" if more else ""
        return Finding("fail", f"verification found: {evidence.problems[0]}{tail}", facts)
    if count is None:
        return not_run("the manifest counts no training rollouts")
    if expected is not None and count != expected:
        return Finding("fail", f"{count:,} rollouts where steps x batch make {expected:,}", facts)
    resumes = len(evidence.lineage)
    start = "a fresh start" if not resumes else f"{resumes} recorded resume{'s' * (resumes > 1)}"
    against = f" of {expected:,} expected" if expected is not None else ""
    return Finding(
        "pass", f"no file is damaged or missing, {count:,} rollouts{against}, {start}", facts
    )
