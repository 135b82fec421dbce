"""How much of the gradient's energy reached the sketch?"""

from __future__ import annotations

from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.registry import Finding, check, not_run

SLACK = 1e-9  # a difference of two rounded numbers that should equal the threshold


@check(name="coverage", title="The sketch covers the gradient's energy", order=40)
def coverage(evidence: Evidence) -> Finding:
    """Pass where the worst audited step reaches ``thresholds.coverage`` of the squared norm.

    Judged by energy, not by parameter count: a share of the parameters too small to notice can
    hold a third of the gradient.
    """
    bar = evidence.thresholds.coverage
    energy, audits = evidence.coverage.energy, evidence.coverage.audits
    if energy is None:
        return not_run("in no step were the sketches held against the whole gradient", coverage=bar)
    passed = energy >= bar - SLACK
    return Finding(
        "pass" if passed else "fail",
        f"in the worst of {audits} audited steps the sketches miss {1 - energy:.1e} of the squared "
        f"gradient norm, where at most {1 - bar:.1e} {'was' if passed else 'is'} allowed",
        {"energy": energy, "audits": audits},
        {"coverage": bar},
    )
