"""`behaviortrace recipes` and `behaviortrace run`: the whole pipeline."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.table import Table

from behaviortrace import recipe as recipes_module
from behaviortrace.cli import stages, view
from behaviortrace.cli.stopping import told_how_to_go_on
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.recipe import Recipe

if TYPE_CHECKING:
    from behaviortrace.run import Run


def recipes(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the built-in recipes with size, time and what they show."""
    from behaviortrace.recipe.costs import expected_cost

    rows: list[dict[str, Any]] = []
    for name in recipes_module.names():
        recipe = recipes_module.load(name)
        rows.append(
            {
                "name": name,
                "summary": recipe.summary,
                "takes": recipe.takes,
                "expected": expected_cost(recipe),
            }
        )
    if as_json:
        view.print_json(rows)
        return
    table = Table("recipe", "shows", "takes", box=None, padding=(0, 2, 1, 0))
    for row in rows:
        table.add_row(row["name"], row["summary"], row["takes"])
    view.stdout.print(table)


def run(
    recipe: Annotated[str, typer.Argument(help="Built-in recipe, or a YAML file.")],
    seed: Annotated[int | None, typer.Option(help="Seed, in place of the recipe's.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; runs/RECIPE-seed-N.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, as train.steps=20."),
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on with an interrupted run.")] = False,
    plan: Annotated[bool, typer.Option(help="Print the expected cost and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Plant, train with capture, draw, target, score, evaluate, check and report."""
    chosen = recipes_module.load(recipe, overrides(setting or [], seed))
    if plan:
        _print_plan(chosen, as_json)
        return
    warn_of_cost(chosen)
    place = out or Path("runs") / f"{chosen.name}-seed-{chosen.seed}"
    began = time.monotonic()
    with told_how_to_go_on(lambda: _remedy(place)):
        directory = _directory(place, chosen, resume)
        with view.progress_bars() as progress:
            from behaviortrace.pipeline import analyse
            from behaviortrace.train.grpo import run_training

            run_training(directory, chosen, progress, resume=resume)
            verdicts, page = analyse(directory, progress)
    stages.print_result(directory, verdicts, page, time.monotonic() - began, as_json)


def overrides(settings: list[str], seed: int | None) -> dict[str, Any]:
    """What --set and --seed change in a recipe.

    Raises:
        BehaviorTraceError: a --set that is not KEY=VALUE.
    """
    changed: dict[str, Any] = {}
    for item in settings:
        key, separator, value = item.partition("=")
        if not separator or not key:
            raise BehaviorTraceError(f"--set {item!r} is not KEY=VALUE, such as train.steps=20")
        try:
            changed[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise BehaviorTraceError(f"--set {item!r}: the value is not valid YAML") from error
    if seed is not None:
        changed["seed"] = seed
    return changed


def _directory(place: Path, recipe: Recipe, resume: bool) -> Run:
    from behaviortrace.run import Run

    if not resume:
        return Run.create(place, recipe=recipe)
    directory = Run.open(place)
    kept = directory.recipe
    if kept != recipe:
        raise BehaviorTraceError(
            f"{place} was made with another recipe than {recipe.name!r} as given; repeat the same "
            "recipe, --seed and --set, or choose another --out"
        )
    return directory


def _remedy(place: Path) -> str:
    """How a run goes on that was stopped, perhaps before it was there."""
    from behaviortrace.run.manifest import NAME

    if not (place / NAME).exists():
        return f"{place} was not begun; the same command begins it"
    return f"the same command with --resume goes on with {place} where it stopped"


def _print_plan(recipe: Recipe, as_json: bool) -> None:
    from behaviortrace.recipe.costs import expected_cost

    cost = expected_cost(recipe)
    if as_json:
        view.print_json({"name": recipe.name, **cost})
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for key, value in cost.items():
        table.add_row(key.replace("_", " "), "unknown" if value is None else str(value))
    view.stdout.print(f"{recipe.name}: expected cost", highlight=False)
    view.stdout.print(table)


def warn_of_cost(recipe: Recipe) -> None:
    """Say where a recipe is meant for a GPU and none is here."""
    import torch

    from behaviortrace.recipe.costs import expected_cost

    cost = expected_cost(recipe)
    if cost["needs_gpu"] and not torch.cuda.is_available():
        view.say(f"{recipe.name} is meant for a GPU and none is visible here: {cost['reason']}")
