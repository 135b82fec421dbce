"""`behaviortrace bench`: the performance figures, as ratios, on this machine."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from behaviortrace.cli import view

app = typer.Typer(help="The performance figures, as ratios, on this machine.")


@app.callback()
def group() -> None:
    """The performance figures, as ratios, on this machine."""


@app.command("capture")
def capture(
    model: Annotated[str, typer.Option(help="Model, as a recipe names it.")] = "smollm2",
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds after an untimed one.")] = 3,
    dim: Annotated[int, typer.Option(help="Buckets of the sketch.")] = 65_536,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Capture beside plain training and beside one rollout at a time in torch operations."""
    from behaviortrace.bench.capture import bench_capture

    with view.progress_bars() as report:
        found = bench_capture(
            model,
            rounds=rounds,
            dim=dim,
            progress=lambda stage, done, total: report(stage, done, total, None),
        )
    if as_json:
        view.print_json(found)
    else:
        _print(found)


def _print(found: dict[str, Any]) -> None:
    shares = {"parameters": ".0%", "energy": ".0%", "rms_cosine_error": ".4f"}
    columns = ("arm", "seconds", "ratio", "numbers a rollout", "parameters", "energy", "error")
    table = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for name, arm in found["arms"].items():
        per = f" ({arm['rollouts']} rollouts)" if name == "published" else ""
        table.add_row(
            name,
            f"{arm['median']:.2f}{per}",
            f"{arm['ratio']:.2f}",
            str(arm["numbers_per_rollout"]),
            *(format(arm[key], how) if key in arm else "" for key, how in shares.items()),
        )
    view.stdout.print(table)
    for line in found["left_out"].values():
        view.stdout.print(line, markup=False, highlight=False)
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for key, value in found.items():
        if isinstance(value, int | float):
            facts.add_row(key.replace("_", " "), f"{value:.4g}")
        elif value is None:
            facts.add_row(key.replace("_", " "), "undefined")
    view.stdout.print(facts)
