"""Could any step-level ranking have reached the bar?"""

from __future__ import annotations

from behaviortrace.checklist import rows
from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.registry import Finding, check, not_run

SLACK = 1e-9  # a difference of two rounded numbers that should equal the threshold


@check(name="headroom", title="There is headroom between chance, the bar and the ceiling", order=70)
def headroom(evidence: Evidence) -> Finding:
    """Pass where the ceiling leaves room over chance and the intended bar lies below it (P2).

    All in the trained window. The bar is norm's precision (chance where norm has none) plus
    ``thresholds.step_margin``.
    """
    need, margin = evidence.thresholds.headroom, evidence.thresholds.step_margin
    limits = {"headroom": need, "step_margin": margin}
    window = rows.where(evidence.step_level, table="trained_window")
    if window is None:
        return not_run(evidence.why("step_level"), **limits)
    row = window.row(0, named=True)
    ceiling, chance = rows.finite(row["ceiling"]), rows.finite(row["base_rate"])
    if ceiling is None or chance is None:
        return not_run("ceiling or chance is undefined in the trained window", **limits)
    norm = rows.step_row(evidence.step_level, "trained_window", "norm")
    control = rows.finite(norm["precision"]) if norm else None
    bar = (chance if control is None else control) + margin
    facts = {
        "ceiling": ceiling,
        "chance": chance,
        "room": ceiling - chance,
        "bar": bar,
    }
    short = []
    if ceiling - chance < need - SLACK:
        short.append(f"the ceiling is less than {need:.2f} above chance")
    if bar > ceiling + SLACK:
        short.append("no step-level ranking can reach the bar")
    numbers = f"chance {chance:.3f}, bar {bar:.3f}, ceiling {ceiling:.3f}"
    if short:
        return Finding("fail", f"{numbers}: {' and '.join(short)}", facts, limits)
    return Finding("pass", numbers, facts, limits)
