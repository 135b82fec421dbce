"""Do the sketches keep what the gradients were?"""

from __future__ import annotations

from behaviortrace.checklist import rows
from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.registry import Finding, check, not_run
from behaviortrace.scores.sketch_norms import FORMED_NEVER

WORST = 3.29
"""Standard deviations that a normal variable exceeds in one of a thousand cases, on either side."""


@check(name="fidelity", title="Sketches keep the gradients' norms as theory has it", order=45)
def fidelity(evidence: Evidence) -> Finding:
    """Pass where sketched squared norms lie as near the exact ones as chance collisions let them.

    The rms of their relative errors is at most 3.29 times what theory expects of it: errors of
    rollouts whose gradients are alike are alike, and the bar holds in 99.9% of cases even if all
    were one. Inner products with exact gradients take a replay: ``behaviortrace doctor``.
    """
    found = evidence.sketch_norms
    error, expected = rows.finite(found.get("rms")), rows.finite(found.get("expected"))
    if found.get("hash") == FORMED_NEVER:
        return not_run(
            "under the hash 'kronecker' no gradient is formed to compare with; 'behaviortrace "
            "doctor' compares some"
        )
    if error is None or expected is None:
        return not_run(
            "no sketch was held against its gradient's own norm; 'behaviortrace score' does it"
        )
    bar = WORST * expected
    held = error <= bar
    return Finding(
        "pass" if held else "fail",
        f"squared norms of {found['rollouts']:,} sketches differ from the exact ones by "
        f"{error:.2%} (rms), where chance collisions in {found['dim']:,} buckets make "
        f"{expected:.2%} and {'at most' if held else 'no more than'} {bar:.2%} "
        f"{'is' if held else 'was'} allowed; mean {found['mean']:+.2%}",
        {key: found[key] for key in ("rollouts", "rms", "mean", "expected")} | {"bar": bar},
    )
