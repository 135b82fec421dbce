"""The sweep in a few plain sentences: what may be believed over all its runs."""

from __future__ import annotations

from collections.abc import Sequence

from behaviortrace.checklist.conclusion import GROUNDS, LEVELS, UNASKED, believed
from behaviortrace.records import Verdict
from behaviortrace.sweep.effect import Effect

ROLLOUTS = "the rollout-level ranking"
"""The level that a sweep judges by the mean over seeds, not by every draw alone."""

Verdicts = Sequence[Sequence[Verdict]]


def levels(verdicts: Verdicts) -> dict[str, int]:
    """Level -> number of runs in which it may be believed; of all that any run was asked."""
    found = [believed(of_run) for of_run in verdicts]
    ran = {v.name for of_run in verdicts for v in of_run if v.status != "not run"}
    asked = [
        level
        for level, lines in LEVELS.items()
        if level not in UNASKED or not ran.isdisjoint(lines)
    ]
    return {level: sum(level in run for run in found) for level in asked}


def held(verdicts: Verdicts, wanted: int, effect: Effect) -> list[str]:
    """The levels that may be believed of the sweep.

    Steps and tokens where every run says so; rollouts where the mean over seeds meets the rule, and
    no run is void or ranks a target's own replies. What single runs say of rollouts is not enough.
    """
    over_seeds = effect.status == "pass" and all(_allowed(of_run) for of_run in verdicts)
    return [
        level
        for level, count in levels(verdicts).items()
        if (over_seeds if level == ROLLOUTS else count == wanted)
    ]


def conclusion(verdicts: Verdicts, wanted: int, effect: Effect) -> str:
    """What may be believed, in plain sentences, from the checklists of a sweep's finished runs.

    Before all runs have finished, nothing is believed.

    Args:
        verdicts: the checklist of each finished run.
        wanted: runs the sweep was to have.
        effect: the rollout level over seeds and draws.

    Example:
        >>> conclusion([], 3, Effect("not run", "no draw"))
        'Nothing can be concluded: none of 3 runs has finished.'
    """
    if not verdicts:
        return f"Nothing can be concluded: none of {wanted} runs has finished."
    done = len(verdicts)
    counted = [f"{level} in {count} of {done} runs" for level, count in levels(verdicts).items()]
    if done < wanted:
        return (
            f"Nothing can be concluded yet: {done} of {wanted} runs finished (believed so far: "
            f"{', '.join(counted)})."
        )
    believed_of_all = held(verdicts, wanted, effect)
    subject = " and ".join(believed_of_all) if believed_of_all else "no ranking"
    opening = f"{subject[0].upper()}{subject[1:]} may be believed of the sweep"
    return (
        f"{opening}. Over seeds and draws {ROLLOUTS} {_decided(verdicts, effect)}. Believed of "
        f"single runs: {', '.join(counted)}."
    )


def tone(verdicts: Verdicts, wanted: int, effect: Effect) -> str:
    """ "believed", "partly", "refused", or "open" where nothing has finished."""
    if len(verdicts) < wanted:
        return "open"
    number = len(held(verdicts, wanted, effect))
    return "believed" if number == len(levels(verdicts)) else "partly" if number else "refused"


def _allowed(of_run: Sequence[Verdict]) -> bool:
    """Whether a run may be counted in: not void, and no rollout a reply of its target."""
    status = {v.name: v.status for v in of_run}
    return status.get("targets") == "pass" and all(status.get(g) != "fail" for g in GROUNDS)


def _decided(verdicts: Verdicts, effect: Effect) -> str:
    if effect.status == "not run":
        return f"was not judged: {effect.sentence}"
    if effect.status == "fail":
        return f"does not meet the rule: {effect.sentence}"
    void = sum(not _allowed(of_run) for of_run in verdicts)
    also = f", but {void} of {len(verdicts)} runs may not be counted" if void else ""
    return f"meets the rule: {effect.sentence}{also}"
