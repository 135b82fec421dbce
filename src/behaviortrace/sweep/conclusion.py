"""The sweep in one plain sentence: what may be believed over all its runs."""

from __future__ import annotations

from collections.abc import Sequence

from behaviortrace.checklist.conclusion import LEVELS, believed
from behaviortrace.records import Verdict


def levels(verdicts: Sequence[Sequence[Verdict]]) -> dict[str, int]:
    """Level -> number of runs in which it may be believed."""
    found = [believed(of_run) for of_run in verdicts]
    return {level: sum(level in run for run in found) for level in LEVELS}


def conclusion(verdicts: Sequence[Sequence[Verdict]], wanted: int) -> str:
    """One plain sentence of what may be believed, from the checklists of a sweep's finished runs.

    A level is believed where it is in every run that was wanted; before all have finished, none is.

    Args:
        verdicts: the checklist of each finished run.
        wanted: runs the sweep was to have.

    Example:
        >>> conclusion([], 3)
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
    held = [level for level, count in levels(verdicts).items() if count == wanted]
    subject = " and ".join(held) if held else "no ranking"
    opening = f"{subject[0].upper()}{subject[1:]} may be believed in every run"
    return f"{opening} (believed: {', '.join(counted)})."


def tone(verdicts: Sequence[Sequence[Verdict]], wanted: int) -> str:
    """ "believed", "partly", "refused", or "open" where nothing has finished."""
    if len(verdicts) < wanted:
        return "open"
    held = [count == wanted for count in levels(verdicts).values()]
    return "believed" if all(held) else "partly" if any(held) else "refused"
