"""`behaviortrace sweep`: seeds x draws of one recipe, merged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from behaviortrace import recipe as recipes_module
from behaviortrace.cli import view
from behaviortrace.cli.pipeline import overrides, warn_of_cost
from behaviortrace.cli.standings import standings
from behaviortrace.cli.stopping import told_how_to_go_on
from behaviortrace.errors import BehaviorTraceError

if TYPE_CHECKING:
    from behaviortrace.sweep import Plan, Sweep


def sweep(
    recipe: Annotated[str, typer.Argument(help="Built-in recipe, or a YAML file.")],
    out: Annotated[Path, typer.Option(help="Directory of the sweep.")],
    seeds: Annotated[str, typer.Option(help="Training seeds, as 0,1,2; one run each.")] = "0,1,2",
    draws: Annotated[int, typer.Option(help="Fresh draws from every run.")] = 2,
    executor: Annotated[str, typer.Option(help="local, or ray (extra: ray).")] = "local",
    workers: Annotated[int, typer.Option(help="Runs at a time; they share the cores.")] = 1,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print what is missing, its cost and power; stop.")
    ] = False,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, as train.steps=20."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run a recipe over seeds and draws, and merge the results. Run again, it does what is missing.

    Exit code 1 where a run failed; the others are merged all the same.
    """
    from behaviortrace.sweep import make_plan
    from behaviortrace.sweep import sweep as work

    chosen = recipes_module.load(recipe, overrides(setting or [], None))
    wanted = make_plan(out, chosen, _numbers(seeds), draws, executor=executor, workers=workers)
    if plan:
        _print_plan(wanted, as_json)
        return
    warn_of_cost(chosen)
    goes_on = "the same command goes on where it stopped"
    with told_how_to_go_on(lambda: goes_on), standings("seed") as watch:
        found = work(wanted, watch=watch)
    if as_json:
        view.print_json(_as_json(found))
    else:
        _print(found)
    for run in found.manifest.runs:
        if run.state == "failed":
            view.say(f"behaviortrace: seed {run.seed} failed: {run.note}")
    if found.failed:
        raise typer.Exit(1)


def _print_plan(wanted: Plan, as_json: bool) -> None:
    """Every run with what it lacks, the cost of a whole one, and what the sweep could show."""
    from behaviortrace.evaluate.plan import plan as planned
    from behaviortrace.sweep.stage import preview

    wanted, runs = preview(wanted)
    power = planned(wanted.recipe, seeds=len(runs), draws=len(wanted.draws))
    if as_json:
        told = {"runs": [run.model_dump() for run in runs], "rollout": power["rollout"]}
        view.print_json({**told, "cost": power["cost"]})
        return
    table = Table("seed", "state", "lacks", box=None, padding=(0, 2, 0, 0))
    for run in runs:
        table.add_row(str(run.seed), run.state, Text(run.note or ""))
    view.stdout.print(table)
    left = sum(run.state == "waiting" for run in runs)
    for line in (
        f"\n{left} of {len(runs)} runs to do, {wanted.slots} at a time",
        f"cost of a whole one: {power['cost']['reason']}.",
        f"rollout level, draws: {power['rollout']['sentence']}.",
    ):
        view.stdout.print(line, markup=False, highlight=False)


def merge(
    root: Annotated[Path, typer.Argument(help="Directory of a sweep, or of an exported copy.")],
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Make the runs' tables anew from their rows too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Judge and merge a sweep's finished runs again: tables, figures, pages. Trains nothing.

    Exit code 1 where no run is finished.
    """
    from behaviortrace.sweep.stage import merge_again

    found = merge_again(root, evaluate=evaluate)
    if as_json:
        view.print_json(_as_json(found))
    else:
        _print(found)
    if not found.verdicts:
        raise typer.Exit(1)


def export(
    source: Annotated[Path, typer.Argument(help="Directory of an evaluated run, or of a sweep.")],
    out: Annotated[Path, typer.Option(help="Directory of the copy; new or empty.")],
) -> None:
    """Copy a run or a sweep without weights and sketches: small enough to keep and to publish.

    Tables, figures, verdicts and pages can be made again from the copy (evaluate, check, report,
    merge); drawing, scoring and training cannot go on from it. The copy of a sweep is judged and
    merged anew.
    """
    from behaviortrace.run import Run
    from behaviortrace.sweep.export import export as copy_sweep
    from behaviortrace.sweep.manifest import NAME

    if (source / NAME).is_file():
        copy_sweep(source, out)
    else:
        Run.open(source).export(out)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    view.stdout.print(f"{out}: {size / 1e6:.1f} MB", markup=False, highlight=False)


def _numbers(seeds: str) -> list[int]:
    try:
        return [int(part) for part in seeds.split(",")]
    except ValueError as error:
        raise BehaviorTraceError(
            f"--seeds {seeds!r} is not a list of whole numbers; write it as 0,1,2"
        ) from error


def _print(found: Sweep) -> None:
    from behaviortrace.report.tables import signed

    table = Table("seed", "draw", "AUC, residualised", "interval", box=None, padding=(0, 2, 0, 0))
    for r in found.replicates:
        ends = signed(f"[{r.lo:.3f}, {r.hi:.3f}]")
        table.add_row(str(r.seed), r.draw, f"{r.auc:.3f}", Text(ends))
    view.stdout.print(table)
    finished = sum(run.state == "finished" for run in found.manifest.runs)
    view.stdout.print(f"\n{finished} of {len(found.manifest.runs)} runs finished", highlight=False)
    lines = [v for of_run in found.verdicts.values() for v in of_run if v.name == "replication"]
    if lines:
        view.stdout.print(lines[0].sentence, markup=False, highlight=False)
    view.stdout.print(found.conclusion, markup=False, highlight=False)
    if found.report:
        view.stdout.print(f"\nreport: {found.report}", markup=False, soft_wrap=True)


def _as_json(found: Sweep) -> dict[str, Any]:
    from behaviortrace.run.jsonable import jsonable

    result: dict[str, Any] = jsonable(
        {
            "sweep": str(found.root),
            "report": str(found.report) if found.report else None,
            "runs": [run.model_dump() for run in found.manifest.runs],
            "draws": found.manifest.draws,
            "replicates": list(found.replicates),
            "summary": found.summary,
            "verdicts": found.verdicts,
            "conclusion": found.conclusion,
        },
        "the sweep's result",
    )
    return result
