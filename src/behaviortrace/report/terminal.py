"""The checklist on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from behaviortrace.records import Verdict
from behaviortrace.report.text import visible

_LOOK = {"pass": "bold green", "fail": "bold red", "not run": "dim"}


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """The checklist as a table for a rich console: verdict, line, what was found.

    Text is taken literally: square brackets are no markup and control characters do not act.
    """
    table = Table(box=box.SIMPLE_HEAD, show_lines=False, pad_edge=False)
    table.add_column("verdict", no_wrap=True)
    table.add_column("line", ratio=2)
    table.add_column("what was found", ratio=3, overflow="fold")
    for verdict in verdicts:
        table.add_row(
            Text(verdict.status, style=_LOOK[verdict.status]),
            Text(visible(verdict.title)),
            Text(visible(verdict.sentence)),
        )
    return table
