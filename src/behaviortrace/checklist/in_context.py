"""Do in-context targets align with the behaviour's tokens where constructed ones do not?"""

from __future__ import annotations

from behaviortrace.checklist import rows
from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.registry import Finding, check, not_run


@check(name="in_context", title="In-context targets beat constructed continuations", order=80)
def in_context(evidence: Evidence) -> Finding:
    """Pass where in-context lies above its bar and constructed below its own (P4, Table 4).

    Cosine of the trigger-token gradient with each target: the in-context lower bound must exceed
    ``thresholds.token_in_context`` and the constructed upper bound stay below
    ``thresholds.token_constructed``.
    """
    above = evidence.thresholds.token_in_context
    below = evidence.thresholds.token_constructed
    limits = {"token_in_context": above, "token_constructed": below}
    if evidence.token_level is None:
        return not_run(evidence.why("token_level"), **limits)
    facts: dict[str, float | None] = {}
    over = ""
    for target in ("in_context", "constructed"):
        row = rows.token_row(evidence.token_level, "trigger", target)
        if row is None:
            return not_run(f"the {target} target was not compared at the trigger tokens", **limits)
        over = ", each" + rows.over_prompts(row) if rows.over_prompts(row) else ""
        for column in ("mean", "lo", "hi"):
            facts[f"{target}_{column}"] = rows.finite(row[column])
    lower, upper = facts["in_context_lo"], facts["constructed_hi"]
    if lower is None or upper is None:
        return not_run("an interval of the token-level cosines is undefined", **limits)
    aligned, separate = lower > above, upper < below
    return Finding(
        "pass" if aligned and separate else "fail",
        f"the in-context lower bound is {lower:.3f} ({_against(aligned, 'above', above)}) and the "
        f"constructed upper bound {upper:.3f} ({_against(separate, 'below', below)})" + over,
        facts,
        limits,
    )


def _against(holds: bool, side: str, bar: float) -> str:
    return f"{side} {bar:g}" if holds else f"not {side} {bar:g}"
