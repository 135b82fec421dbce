"""Was the behaviour taught, so that there is something to attribute, and was it kept?"""

from __future__ import annotations

from typing import Any

from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.registry import Finding, check, not_run
from behaviortrace.plant.emergence import ALPHA, START, Taught


@check(name="emergence", title="The behaviour emerged on held-out probes", order=30)
def emergence(evidence: Evidence) -> Finding:
    """Pass where the behaviour was taught, by ``thresholds.emergence``; say whether it was kept.

    Kept is the paper's gate (Section 3.1): s_b exceeds the bar at the last checkpoint. A ranking
    needs less: that the behaviour was taught, inside the contamination window or after it, though
    it may have been unlearned since. See :func:`~behaviortrace.plant.emergence.taught`.

    The rise over what the warm-up had taught is told with how often luck gives it. It decides no
    more than that RL must have added something: twenty probes tell only large rises from luck.
    """
    bar = evidence.thresholds.emergence
    rates = evidence.emergence()
    if not rates:
        return not_run("no held-out probe was answered", emergence=bar)
    if max(rates) == START:
        return not_run("no checkpoint after RL began was probed", emergence=bar)
    found = evidence.taught()
    if found is None:
        reason = f"at the last checkpoint (step {max(rates)}) s_b is undefined"
        return not_run(reason, emergence=bar)
    if found.taught is None:
        reason = "how many probes were answered is not known; evaluate the run again"
        reason = f"s_b is {found.highest:.3f} at step {found.step}, but {reason}"
        return not_run(reason, emergence=bar)
    controls = evidence.emergence("s_b_controls").get(found.last)
    facts: dict[str, Any] = {
        "taught": found.taught,
        "kept": found.kept,
        "step": found.last,
        "s_b": found.at_last,
        "s_b_first": rates[min(rates)],
        "s_b_highest": found.highest,
        "step_highest": found.step,
        "looks": found.looks,
        "luck": found.luck,
        "in_window": None if evidence.cutoff is None else found.step <= evidence.cutoff,
        "analysed": evidence.analysed,
        "s_b_analysed": rates.get(evidence.analysed) if evidence.analysed is not None else None,
        "s_b_controls": controls,
        "rise": evidence.summary.get("s_b_rise"),
    }
    name = "taught and kept" if found.kept else "taught, not kept"
    said = [
        f"{name if found.taught else 'not taught'}: {_at_last(evidence, found, bar)}",
        f"on control prompts {controls:.3f}" if controls is not None else "",
        _at_highest(found, bar, facts["in_window"]),
        _over_start(found, facts["rise"]),
        _analysed(facts),
    ]
    clause = "; ".join(part for part in said if part)
    return Finding("pass" if found.taught else "fail", clause, facts, {"emergence": bar})


def _at_last(evidence: Evidence, found: Taught, bar: float) -> str:
    at, highest = evidence.peak() or (found.step, found.highest)
    before = "" if at == found.last else f" (at step {at}, its highest, {highest:.3f})"
    verb = "exceeds" if found.kept else "does not exceed"
    last = f"at the last checkpoint (step {found.last}) s_b is {found.at_last:.3f}"
    return f"{last}{before}, which {verb} {bar:g}"


def _at_highest(found: Taught, bar: float, in_window: bool | None) -> str:
    """What the highest checkpoint adds where the last one is not above the bar."""
    if found.kept or found.highest <= bar or found.luck is None:
        return ""
    place = {None: "", True: ", inside the contamination window,", False: ", after the window,"}
    luck = "below 0.001" if found.luck < 0.001 else f"at most {found.luck:.3f}"
    enough = "which luck does not explain" if found.luck <= ALPHA else "as luck may"
    return (
        f"step {found.step}{place[in_window]} exceeds it, {enough} (p {luck}, the best of "
        f"{found.looks} checkpoints counted in)"
    )


def _over_start(found: Taught, rise: dict[str, Any] | None) -> str:
    """What RL added to the warm-up."""
    if found.before is None:
        return "what the warm-up taught was not probed"
    if found.highest <= found.before:
        return f"RL added nothing: before it s_b was {found.before:.3f}"
    if rise is None:
        return f"before RL s_b was {found.before:.3f}"
    return (
        f"before RL s_b was {found.before:.3f}, and luck alone raises the best of "
        f"{rise['looks']} checkpoints as much in {rise['p']:.1%} of {rise['permutations']:,} "
        f"permutations{', so that RL raised it is not shown' if rise['p'] > ALPHA else ''}"
    )


def _analysed(facts: dict[str, Any]) -> str:
    rate = facts["s_b_analysed"]
    if rate is None or facts["analysed"] == facts["step"]:
        return ""
    return f"the checkpoint analysed (step {facts['analysed']}) has {rate:.3f}"
