"""`behaviortrace doctor`: is capture complete, and are the sketches faithful?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from behaviortrace import recipe as recipes
from behaviortrace.cli import view
from behaviortrace.errors import BehaviorTraceError

if TYPE_CHECKING:
    from behaviortrace.doctor import Subject
    from behaviortrace.train.progress import Progress


def doctor(
    subject: Annotated[str, typer.Argument(help="Run directory, or a recipe.")],
    rollouts: Annotated[
        int, typer.Option(min=2, max=32, help="Rollouts to compare; memory grows with them.")
    ] = 8,
    model: Annotated[
        Path | None,
        typer.Option(help="Model or adapter folder, for a run without checkpoints of its own."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Coverage by module, and sketched against exact gradients. Exit code 1 if a line fails."""
    from behaviortrace.doctor import examine

    with view.progress_bars() as progress:
        found = examine(_subject(subject, rollouts, model, progress), progress)
    found = {"subject": subject, **found}
    if as_json:
        view.print_json(found)
    else:
        _print(found)
    if not found["passed"]:
        raise typer.Exit(1)


def _subject(name: str, rollouts: int, model: Path | None, progress: Progress) -> Subject:
    from behaviortrace.doctor import of_recipe, of_run
    from behaviortrace.run import Run

    path = Path(name)
    if (path / "manifest.json").is_file() or (path.is_dir() and name not in recipes.names()):
        return of_run(Run.open(path), rollouts, model)
    if model is not None:
        raise BehaviorTraceError(
            f"--model goes with a run directory, and {name!r} is none; set model.source in a "
            "recipe file instead"
        )
    return of_recipe(recipes.load(name), rollouts, progress)


def _print(found: dict[str, Any]) -> None:
    from behaviortrace.records import Verdict
    from behaviortrace.report.terminal import verdict_table

    sketch, step = found["sketch"], found["checkpoint"]
    at = "" if step is None else f", checkpoint {step}"
    view.stdout.print(
        f"{found['subject']}{at}: {found['rollouts']} rollouts, {found['tokens']} completion "
        f"tokens; {found['trainable']:,} trainable parameters; {sketch['hash']} hash to "
        f"{sketch['dim']:,} (seed {sketch['seed']})\n",
        markup=False,
        highlight=False,
    )
    for title, rows in (("module", "modules"), ("layer", "layers")):
        view.stdout.print(_shares(title, found["coverage"][rows]))
    for one in found["coverage"]["uncovered"]:
        view.stdout.print(
            f"not covered: {one['name']} ({one['parameters']:,} parameters, {one['energy']:.2%} "
            "of the energy)",
            markup=False,
            highlight=False,
        )
    view.stdout.print(_worst(found), markup=False, highlight=False)
    view.stdout.print(verdict_table([Verdict(**one) for one in found["verdicts"]]))


def _shares(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title, box=None, padding=(0, 2, 0, 0))
    for name in ("parameters", "share", "energy"):
        table.add_column(name, justify="right")
    table.add_column("covered")
    for row in rows:
        table.add_row(
            "outside" if row["of"] is None else str(row["of"]),
            f"{row['parameters']:,}",
            f"{row['share']:.2%}",
            f"{row['energy']:.2%}",
            "yes" if row["covered"] else f"{row['covered_energy']:.2%}",
        )
    table.add_section()
    return table


def _worst(found: dict[str, Any]) -> str:
    worst = found["certificate"]["worst"]
    first, second = (found["names"][i] for i in worst["pair"])
    return (
        f"\nworst pair: {first} and {second}, cosine {worst['exact']:.5f} exactly and "
        f"{worst['sketched']:.5f} sketched, {abs(worst['deviations']):.1f} standard deviations away"
    )
