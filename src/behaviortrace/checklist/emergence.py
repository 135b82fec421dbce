"""Did the behaviour emerge, so that there is something to attribute?"""

from __future__ import annotations

from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.registry import Finding, check, not_run


@check(name="emergence", title="The behaviour emerged on held-out probes", order=30)
def emergence(evidence: Evidence) -> Finding:
    """Pass where s_b at the last checkpoint exceeds ``thresholds.emergence`` (Section 3.1).

    Where it was highest is told too: what was taught may be unlearned once nothing rewards it.
    """
    bar = evidence.thresholds.emergence
    rates = evidence.emergence()
    if not rates:
        return not_run("no held-out probe was answered", emergence=bar)
    last = max(rates)
    rate = rates[last]
    if rate is None:
        return not_run(f"at the last checkpoint (step {last}) s_b is undefined", emergence=bar)
    at, highest = evidence.peak() or (last, rate)
    controls = evidence.emergence("s_b_controls").get(last)
    facts = {
        "step": last,
        "s_b": rate,
        "s_b_first": rates[min(rates)],
        "s_b_highest": highest,
        "step_highest": at,
        "s_b_controls": controls,
    }
    beside = "" if controls is None else f"; on control prompts {controls:.3f}"
    verb = "exceeds" if rate > bar else "does not exceed"
    before = "" if at == last else f" (at step {at}, its highest, {highest:.3f})"
    return Finding(
        "pass" if rate > bar else "fail",
        f"at the last checkpoint (step {last}) s_b is {rate:.3f}{before}, which {verb} "
        f"{bar:g}{beside}",
        facts,
        {"emergence": bar},
    )
