"""The pitfalls of a run as its report shows them."""

from __future__ import annotations

from dataclasses import dataclass

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.pitfalls import stage
from behaviortrace.pitfalls.demonstration import WORDS, Demonstration
from behaviortrace.report.tables import Cell, Table, signed, word
from behaviortrace.run import Run


@dataclass(frozen=True)
class Pitfall:
    """One pitfall.

    Attributes:
        title: with its number in the paper.
        shows: whether the run shows it; None where its rule cannot be applied.
        rule: what it takes to show.
        sentence: what the run shows.
        table: the numbers.
    """

    title: str
    shows: bool | None
    rule: str
    sentence: str
    table: Table

    @property
    def mark(self) -> str:
        """The word of its badge."""
        return WORDS[self.shows]


def pitfalls(run: Run) -> tuple[list[Pitfall], list[tuple[str, str]]]:
    """The pitfalls a run stores, and (name, reason) of the others."""
    try:
        found, missing = stage.load(run)
    except BehaviorTraceError as error:
        return [], [("pitfalls", str(error))]
    return [_pitfall(each) for each in found], list(missing.items())


def _pitfall(shown: Demonstration) -> Pitfall:
    names, body = shown.grid()
    numeric = [shown.table[name].dtype.is_numeric() for name in names]
    cells = [[_cell(text, own) for text, own in zip(row, numeric, strict=True)] for row in body]
    table = Table(shown.title, [name.replace("_", " ") for name in names], cells)
    return Pitfall(shown.title, shown.shows, shown.rule, shown.sentence, table)


def _cell(text: str | None, numeric: bool) -> Cell:
    if text is None:
        return word(None, "undefined, or it does not apply")
    return Cell(signed(text) if numeric else text, numeric=numeric)
