"""Are the thresholds the ones that were fixed before the data existed?"""

from __future__ import annotations

from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.registry import Finding, check, not_run


@check(name="preregistration", title="Thresholds were fixed before the data existed", order=20)
def preregistration(evidence: Evidence) -> Finding:
    """Pass where the recipe's hash equals the one the manifest stored before training."""
    if evidence.preregistered is None:
        return not_run("no pre-registration hash was stored before training")
    if evidence.recomputed is None:
        return not_run("the run has no recipe to compare the pre-registration hash with")
    stored, now = evidence.preregistered, evidence.recomputed
    facts = {"stored": stored, "recomputed": now}
    if stored != now:
        return Finding(
            "fail",
            "a threshold, or a setting that defines the test, was changed after the data existed: "
            f"the hash was {stored[:12]} and is now {now[:12]}",
            facts,
        )
    return Finding("pass", f"the hash stored before training still holds ({stored[:12]})", facts)
