"""How a line of the checklist is declared: a decorated pure function of the evidence."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from behaviortrace.checklist.evidence import Evidence
from behaviortrace.records import Status, Verdict


@dataclass(frozen=True)
class Finding:
    """What a line found, before its name and title are put to it.

    Attributes:
        status: "pass", "fail", or "not run" where an input is undefined.
        sentence: what was found with its numbers, or the reason for "not run"; a clause that
            begins with a lower-case word, made a sentence in the verdict.
        evidence: the numbers, JSON-serialisable; undefined ones are None.
        thresholds: the thresholds the line was judged by.
    """

    status: Status
    sentence: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    thresholds: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """A registered line.

    Attributes:
        name: unique, and the ``name`` of its verdicts.
        title: the line as a reader sees it.
        order: place in the checklist, ascending.
        judge: the evidence in, a verdict out.
    """

    name: str
    title: str
    order: int
    judge: Callable[[Evidence], Verdict]


_CHECKS: dict[str, Check] = {}


def not_run(reason: str, **thresholds: Any) -> Finding:
    """A finding for undefined inputs: never a pass, and never a zero."""
    return Finding("not run", reason, {}, thresholds)


def check(
    *, name: str, title: str, order: int
) -> Callable[[Callable[[Evidence], Finding]], Callable[[Evidence], Verdict]]:
    """Register a pure function of the evidence as a line of the checklist.

    The decorated function returns a :class:`Finding`; what is registered, and what callers get,
    returns the :class:`~behaviortrace.records.Verdict` with the line's name and title.

    Raises:
        ValueError: the name is taken.

    Example:
        >>> @check(name="any_rollouts", title="The run has rollouts", order=999)
        ... def any_rollouts(evidence):
        ...     count = evidence.number("n_rollouts")
        ...     return not_run("no rollouts counted") if count is None else Finding("pass", "ok")
        >>> any_rollouts(Evidence()).status
        'not run'
        >>> del _CHECKS["any_rollouts"]
    """

    def register(function: Callable[[Evidence], Finding]) -> Callable[[Evidence], Verdict]:
        if name in _CHECKS:
            raise ValueError(f"a check named {name!r} is already registered")

        @functools.wraps(function)
        def verdict(evidence: Evidence) -> Verdict:
            found = function(evidence)
            return Verdict(
                name,
                title,
                found.status,
                sentence(found.sentence),
                found.evidence,
                found.thresholds,
            )

        _CHECKS[name] = Check(name, title, order, verdict)
        return verdict

    return register


def sentence(clause: str) -> str:
    """The clause with a full stop, and a capital where it begins with an ordinary word.

    Example:
        >>> sentence("no probe was answered"), sentence("runs/mine has no table")
        ('No probe was answered.', 'runs/mine has no table.')
    """
    ordinary = re.match(r"[a-z]+(?=[ ,])", clause)
    start = clause[:1].upper() if ordinary else clause[:1]
    return f"{start}{clause[1:].rstrip('.')}."


def registered() -> list[Check]:
    """Every line, in checklist order; the modules beside this one are imported to find them."""
    package = importlib.import_module("behaviortrace.checklist")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return sorted(_CHECKS.values(), key=lambda line: (line.order, line.name))


def judge(evidence: Evidence) -> list[Verdict]:
    """The verdict of every line. A line that raises is a bug and is left to raise."""
    return [line.judge(evidence) for line in registered()]
