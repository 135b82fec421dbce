"""The checklist in one plain sentence: what may be believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from behaviortrace.records import Status, Verdict

GROUNDS = {
    "integrity": "the run is damaged or incomplete",
    "held_out": "probes were trained on, so that emergence is not shown",
    "emergence": "the behaviour did not emerge, so there is nothing to attribute",
    "coverage": "the sketch misses part of the gradient",
    "fidelity": "the sketches do not keep the gradients' norms",
    "embedding": "the embedding misses parameters or tokens of the behaviour",
}
"""Lines whose failure voids every level, and how it reads."""

LEVELS = {
    "the step-level ranking": {
        "norm_control": "does not beat gradient magnitude",
        "findable": "has too little ground truth that could be found",
        "headroom": "has no headroom to be tested in",
    },
    "the rollout-level ranking": {
        "targets": "uses a target made of rollouts it ranks",
        "fluency": "does not pass the fluency and magnitude controls",
        "replication": "flips between seeds or draws",
    },
    "the token-level direction": {
        "targets": "uses a target made of responses it is compared with",
        "in_context": "does not tell an in-context target from a constructed one",
    },
    "the ranking of training rollouts": {
        "causal": "does not name rollouts whose removal does more than that of matched ones",
    },
}
"""What a reader may want to believe, the lines that speak against it, and how that reads."""

UNASKED = {"the ranking of training rollouts"}
"""Levels of which nothing is said where their lines have not run: they cost trainings."""

MAY_BE_OPEN = {"replication"}
"""Lines that need not have run for a level to be believed of this run."""


def believed(verdicts: Sequence[Verdict]) -> list[str]:
    """The levels that may be believed: every line they rest on passed, and so did the grounds."""
    status: dict[str, Status] = {v.name: v.status for v in verdicts}
    if any(status.get(name) == "fail" for name in GROUNDS):
        return []
    return [level for level, lines in LEVELS.items() if _level(status, lines) == "pass"]


def conclusion(verdicts: Sequence[Verdict]) -> str:
    """One plain sentence of what may be believed, from the verdicts of a checklist.

    Example:
        >>> conclusion([])
        'Nothing can be concluded: no line of the checklist has run.'
    """
    status: dict[str, Status] = {v.name: v.status for v in verdicts}
    if all(s == "not run" for s in status.values()):
        return "Nothing can be concluded: no line of the checklist has run."
    broken = [reads for name, reads in GROUNDS.items() if status.get(name) == "fail"]
    if broken:
        return f"No ranking of this run may be believed: {_joined(broken)}{_changed(status)}."
    found = {level: _level(status, lines) for level, lines in LEVELS.items()}
    passed = believed(verdicts)
    against = [
        f"{level} {_joined([reads for name, reads in lines.items() if status.get(name) == 'fail'])}"
        for level, lines in LEVELS.items()
        if found[level] == "fail"
    ]
    pending = [
        level for level, outcome in found.items() if outcome == "not run" and level not in UNASKED
    ]
    if pending:
        against.append(f"{_joined(pending)} {'was' if len(pending) == 1 else 'were'} not tested")
    if not passed:
        return f"No ranking of this run may be believed: {'; '.join(against)}{_changed(status)}."
    subject = _joined(passed)
    opening = f"{subject[0].upper()}{subject[1:]} may be believed{_scope(status, passed)}"
    return f"{'; '.join([opening + _unchecked(status), *against])}{_changed(status)}."


def _level(status: Mapping[str, Status], lines: Mapping[str, str]) -> Status:
    found = {line: status.get(line, "not run") for line in lines}
    if "fail" in found.values():
        return "fail"
    decided = all(s == "pass" for line, s in found.items() if line not in MAY_BE_OPEN)
    return "pass" if decided else "not run"


def _scope(status: Mapping[str, Status], passed: Sequence[str]) -> str:
    if status.get("replication") == "pass" and "the rollout-level ranking" in passed:
        return ", the rollout level over seeds and draws"
    return ", but of this run only, until more seeds and draws are tried"


def _unchecked(status: Mapping[str, Status]) -> str:
    unproven = [name for name in GROUNDS if status.get(name) != "pass"]
    return f", and with {_joined(unproven)} unchecked" if unproven else ""


def _changed(status: Mapping[str, Status]) -> str:
    if status.get("preregistration") == "fail":
        return "; the test was changed after the data existed"
    return ""


def _joined(items: Sequence[str]) -> str:
    if len(items) < 3:
        return " and ".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"
