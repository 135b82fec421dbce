"""`behaviortrace pitfall`: the paper's pitfalls, each shown on a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from behaviortrace.cli import stages, view

if TYPE_CHECKING:
    from behaviortrace.pitfalls import Demonstration

app = typer.Typer(help="The paper's pitfalls, each shown on a run.")


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
    """P3: a slice of the first coordinates misses the behaviour; a sketch does not.

    The only one that replays completions: it takes minutes on a CPU. The run keeps what was found,
    and its report shows it beside the others.
    """
    from behaviortrace.pitfalls import slice_misses as show
    from behaviortrace.pitfalls.stage import keep

    opened = stages.open_run(run)
    with view.progress_bars() as progress:
        found = show(opened, size=size, draw=draw, limit=limit, progress=progress)
    keep(opened, found)
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
    from behaviortrace.pitfalls.demonstration import WORDS

    if as_json:
        view.print_json(stages.plain(found.as_json()))
        return
    view.stdout.print(found.title, highlight=False, markup=False)
    view.stdout.print(_table(found))
    view.stdout.print(found.sentence, highlight=False, markup=False)
    told = f"{WORDS[found.shows].capitalize()}. It shows where {found.rule}."
    view.stdout.print(told, highlight=False, markup=False)


def _table(found: Demonstration) -> Table:
    """The demonstration's table, each point with its interval in one column."""
    heads, body = found.grid()
    table = Table(*(head.replace("_", " ") for head in heads), box=None, padding=(0, 2, 0, 0))
    for row in body:
        table.add_row(*(Text("-" if cell is None else cell) for cell in row))
    return table
