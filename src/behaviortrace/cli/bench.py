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


@app.command("intervals")
def intervals(
    studies: Annotated[int, typer.Option(min=10, help="Simulated studies a case.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the studies.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """How often the 95% intervals of within-group AUC hold the truth, by simulation."""
    from behaviortrace.bench.intervals import METHODS, bench_intervals

    with view.progress_bars() as report:
        found = bench_intervals(
            studies=studies,
            seed=seed,
            progress=lambda stage, done, total: report(stage, done, total, None),
        )
    if as_json:
        view.print_json(found)
        return
    heads = ["case", "groups", "statistic", "true AUC"]
    table = Table(*heads, *METHODS, "widths", box=None, padding=(0, 2, 0, 0))
    for rows in zip(*[iter(found)] * len(METHODS), strict=True):
        first = rows[0]
        table.add_row(
            first["case"],
            str(first["groups"]),
            first["statistic"],
            f"{first['truth']:.3f}",
            *(f"{row['covered']:.1%}" for row in rows),
            ", ".join(f"{row['width']:.3f}" for row in rows),
        )
    view.stdout.print(table)
    view.say(f"{studies} studies a case: 95% is known to {1.96 * found[0]['error']:.1%}")


@app.command("verdicts")
def verdicts(
    studies: Annotated[int, typer.Option(min=10, help="Simulated studies a condition.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the studies.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """How often the rollout-level rule passes where nothing is to be found, and where it is."""
    from behaviortrace.bench.verdicts import bench_verdicts

    with view.progress_bars() as report:
        found = bench_verdicts(
            studies,
            seed=seed,
            progress=lambda stage, done, total: report(stage, done, total, None),
        )
    if as_json:
        view.print_json(found)
        return
    table = Table(
        "condition", "studies", "pass", "95%", "interval above 0.5", box=None, padding=(0, 2, 0, 0)
    )
    for row in found["conditions"]:
        ends = f"{row['lo']:.1%} to {row['hi']:.1%}"
        table.add_row(
            row["condition"],
            str(row["studies"]),
            f"{row['share']:.1%}",
            ends,
            f"{row['above']:.1%}",
        )
    view.stdout.print(table)
    view.stdout.print(f"the oracle's true residualised AUC is {found['oracle_auc']:.3f}")


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
