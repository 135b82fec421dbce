"""Does any targeted estimator beat gradient magnitude at the step level?"""

from __future__ import annotations

from behaviortrace.checklist import rows
from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.registry import Finding, check, not_run

SLACK = 1e-9  # a difference of two rounded numbers that should equal the threshold
WINDOW = "trained_window"


@check(name="norm_control", title="Attribution beats a gradient-magnitude control (norm)", order=60)
def norm_control(evidence: Evidence) -> Finding:
    """Pass where the best targeted estimator beats norm by ``thresholds.step_margin``.

    Step-level precision in the trained window (P1): overall, norm finds the steps that trained.
    """
    bar = evidence.thresholds.step_margin
    if evidence.step_level is None:
        return not_run(evidence.why("step_level"), step_margin=bar)
    best = rows.best_targeted(evidence.step_level, WINDOW)
    norm = rows.step_row(evidence.step_level, WINDOW, "norm")
    if best is None:
        return not_run(
            "no targeted estimator has a precision in the trained window", step_margin=bar
        )
    control = rows.finite(norm["precision"]) if norm else None
    if control is None:
        return not_run("norm has no precision in the trained window", step_margin=bar)
    margin = best["precision"] - control
    passed = margin >= bar - SLACK
    facts = {
        "best": best["estimator"],
        "target": best["target"],
        "precision": best["precision"],
        "norm": control,
        "margin": margin,
    }
    return Finding(
        "pass" if passed else "fail",
        f"in the trained window the best targeted estimator ({best['estimator']}) reaches "
        f"{best['precision']:.3f} and norm {control:.3f}: a margin of {margin:+.3f} where "
        f"{bar:.2f} {'was' if passed else 'is'} needed",
        facts,
        {"step_margin": bar},
    )
