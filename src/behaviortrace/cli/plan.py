"""`behaviortrace plan`: what a recipe could show and what it would take, before it is run."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from behaviortrace import recipe as recipes
from behaviortrace.cli import pipeline, view

LEVELS = {
    "emergence": "emergence",
    "step": "step level",
    "training": "rollout level, training rollouts",
    "rollout": "rollout level, draws",
    "token": "token level",
}


def plan(
    recipe: pipeline.RecipeName,
    rate: Annotated[
        float | None, typer.Option(help="Behaviour rate to assume; the recipe's if not given.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Training runs of the study.")] = None,
    draws: Annotated[int | None, typer.Option(help="Draws of each run.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, as draw.repeats=6."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Headroom and the smallest detectable effects of a recipe, before any training."""
    from behaviortrace.evaluate.plan import plan as planned

    chosen = recipes.load(recipe, pipeline.overrides(setting or [], None))
    found = planned(chosen, rate=rate, seeds=seeds, draws=draws)
    if as_json:
        view.print_json(found)
        return
    view.stdout.print(f"{chosen.name}: what a run could show", highlight=False)
    view.stdout.print(_numbers(found))
    for name, title in LEVELS.items():
        text = f"{title}: {found[name]['sentence']}."
        view.stdout.print(text, markup=False, highlight=False)
    view.stdout.print(f"cost: {found['cost']['reason']}.", markup=False, highlight=False)


def _numbers(found: dict[str, Any]) -> Table:
    """Every number of the plan, level by level."""
    table = Table("level", "number", "value", box=None, padding=(0, 2, 0, 0))
    levels = {"assumed": "assumed", **LEVELS}
    for name, title in levels.items():
        shown = title
        for key, value in _flat(found[name]):
            table.add_row(shown, key, value)
            shown = ""
    return table


def _flat(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in facts.items():
        label = f"{prefix}{key}".replace("_", " ")
        if key in ("answers", "sentence"):
            continue
        if isinstance(value, dict):
            rows += _flat(value, f"{label}, ")
        elif value is None:
            rows.append((label, "undefined"))
        else:
            rows.append((label, str(value) if isinstance(value, int) else f"{value:.4g}"))
    return rows
