"""`behaviortrace pitfall`: the paper's pitfalls, each shown on a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from behaviortrace.cli import stages, view

if TYPE_CHECKING:
    from behaviortrace.pitfalls import Demonstration

app = typer.Typer(help="The paper's pitfalls, each shown on a run.")

_ENDS = ("_lo", "_hi")


@app.callback()
def group() -> None:
    """The paper's pitfalls, each shown on a run."""


@app.command("cliff")
def cliff(run: stages.RunPath, as_json: stages.Json = False) -> None:
    """P1: overall precision is the cliff between trained and untrained steps."""
    from behaviortrace.pitfalls import cliff as show

    _print(show(stages.open_run(run)), as_json)


@app.command("headroom")
def headroom(run: stages.RunPath, as_json: stages.Json = False) -> None:
    """P2: steps have no headroom; the training rollouts' own gradients have."""
    from behaviortrace.pitfalls import headroom as show

    _print(show(stages.open_run(run)), as_json)


@app.command("slice")
def slice_misses(
    run: stages.RunPath,
    size: Annotated[
        int | None, typer.Option(help="Numbers kept a rollout; as the run's sketch if not given.")
    ] = None,
    draw: Annotated[str | None, typer.Option(help="Name of the draw; the first.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Completions to replay.")] = 160,
    as_json: stages.Json = False,
) -> None:
    """P3: a slice of the first coordinates misses the behaviour; a sketch does not."""
    from behaviortrace.pitfalls import slice_misses as show

    with view.progress_bars() as progress:
        found = show(stages.open_run(run), size=size, draw=draw, limit=limit, progress=progress)
    _print(found, as_json)


@app.command("constructed")
def constructed(run: stages.RunPath, as_json: stages.Json = False) -> None:
    """P4: a target built out of context against one built where the behaviour occurs."""
    from behaviortrace.pitfalls import constructed as show

    _print(show(stages.open_run(run)), as_json)


@app.command("fluency")
def fluency(
    run: stages.RunPath,
    stretches: Annotated[int, typer.Option(min=1, help="Stretches of training steps.")] = 4,
    as_json: stages.Json = False,
) -> None:
    """P5: where the label is saturated, fluency stands in for it."""
    from behaviortrace.pitfalls import fluency as show

    _print(show(stages.open_run(run), stretches=stretches), as_json)


def _print(found: Demonstration, as_json: bool) -> None:
    if as_json:
        view.print_json(stages.plain(found.as_json()))
        return
    view.stdout.print(found.title, highlight=False, markup=False)
    view.stdout.print(_table(found))
    view.stdout.print(found.sentence, highlight=False, markup=False)


def _table(found: Demonstration) -> Table:
    """The demonstration's table, each point with its interval in one column."""
    names = [name for name in found.table.columns if not name.endswith(_ENDS)]
    table = Table(*(name.replace("_", " ") for name in names), box=None, padding=(0, 2, 0, 0))
    for row in found.table.iter_rows(named=True):
        table.add_row(*(_cell(row, name) for name in names))
    return table


def _cell(row: dict[str, Any], name: str) -> str:
    value = row[name]
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    stem = name if f"{name}_lo" in row else name.rsplit("_", 1)[0]
    lo, hi = row.get(f"{stem}_lo"), row.get(f"{stem}_hi")
    is_point = stem == name or name.endswith(("_auc", "_mean"))
    ends = f" [{lo:.3f}, {hi:.3f}]" if is_point and lo is not None and hi is not None else ""
    return f"{value:.3f}{ends}"
