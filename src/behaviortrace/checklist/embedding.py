"""Does the embedding hold the parameters and tokens the behaviour lives in?"""

from __future__ import annotations

from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.registry import Finding, check, not_run


@check(
    name="embedding",
    title="A full-gradient embedding covers the behaviour's parameters and tokens",
    order=50,
)
def embedding(evidence: Evidence) -> Finding:
    """Pass where no trainable parameter is left out and the behaviour's tokens leave a gradient.

    Pitfall P3: an embedding that misses the behaviour's parameters voids every number built on it.
    A target is the sketched gradient of the behaviour's own tokens; one of norm zero was missed.
    """
    found = evidence.coverage
    if found.parameters is None or found.uncovered is None:
        return not_run("the capture recorded no list of the parameters it covers")
    unseen = [name for name, norm in found.token_norms.items() if not norm > 0]
    facts = {
        "parameters": found.parameters,
        "uncovered": list(found.uncovered),
        "token_norms": dict(found.token_norms),
    }
    if found.uncovered:
        named = ", ".join(found.uncovered[:3])
        more = f" and {len(found.uncovered) - 3} more" if len(found.uncovered) > 3 else ""
        return Finding("fail", f"the sketch leaves out {named}{more}", facts)
    held = f"the sketch holds all {found.parameters:,} trainable coordinates"
    if not found.token_norms:
        return Finding("not run", f"{held}, but no target shows the behaviour's tokens", facts)
    if unseen:
        return Finding(
            "fail",
            f"{held}, but the behaviour's tokens leave no gradient in it (target {unseen[0]})",
            facts,
        )
    return Finding("pass", f"{held}, and the behaviour's tokens leave a gradient in it", facts)
