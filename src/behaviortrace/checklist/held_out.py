"""Were the probes kept out of training?"""

from __future__ import annotations

from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.registry import Finding, check, not_run


@check(name="held_out", title="Probes and controls were held out of training", order=25)
def held_out(evidence: Evidence) -> Finding:
    """Pass where no prompt that s_b is measured on occurs in warm-up or training.

    Prompts are compared as they were recorded, after folding case and space.
    """
    found = evidence.held_out
    if found is None:
        return not_run(evidence.absent.get("held_out", "no held-out probe was answered"))
    facts = {
        "asked": found.asked,
        "trained": found.trained,
        "warmup": found.warmup,
        "both": list(found.both),
    }
    where = "warm-up and training" if found.warmup else "training (the warm-up's are not known)"
    if found.both:
        return Finding(
            "fail",
            f"{len(found.both)} of {found.asked} probe and control prompts are among the "
            f"{found.trained} prompts of {where}, such as {found.both[0]!r}",
            facts,
        )
    return Finding(
        "pass",
        f"none of {found.asked} probe and control prompts is among the {found.trained} different "
        f"prompts of {where}",
        facts,
    )
