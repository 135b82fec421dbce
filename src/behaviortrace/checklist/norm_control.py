"""Does any targeted estimator beat gradient magnitude at the step level?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from behaviortrace.checklist import rows
from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.registry import Finding, check, not_run
from behaviortrace.evaluate.step_null import ALPHA

SLACK = 1e-9  # a difference of two rounded numbers that should equal the threshold
WINDOW = "trained_window"


@check(name="norm_control", title="Attribution beats a gradient-magnitude control (norm)", order=60)
def norm_control(evidence: Evidence) -> Finding:
    """Pass where the best targeted estimator beats norm by ``thresholds.step_margin``.

    Step-level precision in the trained window (P1): overall, norm finds the steps that trained. The
    best is picked in hindsight, so its margin must also be rarer than ``ALPHA`` where the ground
    truth falls on other steps, or other prompts where they are asked again
    (:mod:`behaviortrace.evaluate.step_null`).
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
    luck = evidence.summary.get("step_margin") or {}
    p = rows.finite(luck.get("p"))
    facts = {
        "best": best["estimator"],
        "target": best["target"],
        "precision": best["precision"],
        "norm": control,
        "margin": margin,
        "p": p,
        "rankings": luck.get("rankings"),
        "permutations": luck.get("permutations"),
        "prompts": luck.get("prompts"),
    }
    limits = {"step_margin": bar, "p": ALPHA}
    wide = margin >= bar - SLACK
    if wide and p is None:
        return not_run("how often luck reaches its margin is not known; evaluate again", **limits)
    passed = wide and p is not None and p <= ALPHA
    return Finding(
        "pass" if passed else "fail",
        f"in the trained window the best targeted estimator ({best['estimator']}) reaches "
        f"{best['precision']:.3f} and norm {control:.3f}: a margin of {margin:+.3f} where "
        f"{bar:.2f} {'was' if wide else 'is'} needed{_by_luck(luck, p)}",
        facts,
        limits,
    )


def _by_luck(luck: Mapping[str, Any], p: float | None) -> str:
    if p is None:
        return ""
    whose = "the steps'" if luck.get("prompts") is None else "the steps' or the prompts'"
    return (
        f"; the best of {luck['rankings']} reaches as much in {p:.1%} of "
        f"{luck['permutations']:,} orders of {whose} ground truth, where {ALPHA:.0%} may"
    )
