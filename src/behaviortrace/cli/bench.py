"""`behaviortrace bench`: the performance figures, as ratios, on this machine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
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
    case: Annotated[
        list[str] | None, typer.Option(help="Only this case; may be given several times.")
    ] = None,
    others: Annotated[
        bool, typer.Option("--others", help="Also the intervals that were not taken.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """How often 95% intervals of AUCs and mean cosines hold the truth, by simulation."""
    from behaviortrace.bench.cases import named
    from behaviortrace.bench.intervals import METHODS, bench_intervals
    from behaviortrace.bench.seeds import bench_seeds

    with view.progress_bars() as report:
        found = bench_intervals(
            named(case),
            studies=studies,
            seed=seed,
            others=others,
            progress=lambda stage, done, total: report(stage, done, total, None),
        )
    seeds = bench_seeds(studies=studies, seed=seed)
    if as_json:
        view.print_json({"auc": found, "seeds": seeds})
        return
    methods = list(dict.fromkeys(row["method"] for row in found))
    heads = ["case", "groups", "prompts", "statistic", "truth"]
    table = Table(*heads, *methods, "widths", box=None, padding=(0, 2, 0, 0))
    for first, rows in _by_statistic(found):
        table.add_row(
            first["case"],
            str(first["groups"]),
            str(first["prompts"]),
            first["statistic"],
            f"{first['truth']:.3f}",
            *(f"{rows[m]['covered']:.1%}" if m in rows else "" for m in methods),
            ", ".join(f"{rows[m]['width']:.3f}" for m in METHODS if m in rows),
        )
    view.stdout.print(table)
    heads = ["between seeds", "between draws", "one draw", "all draws", "components", "t", "widths"]
    table = Table(*heads, title="\nMean over 3 seeds x 2 draws", title_justify="left", box=None)
    for row in seeds:
        sizes = (f"{row[key]:.2f}" for key in ("between_seeds", "between_draws"))
        shares = (f"{row[key]:.1%}" for key in ("one_draw", "all_draws", "components", "student"))
        table.add_row(*sizes, *shares, f"{row['width']:.3f}, {row['student_width']:.3f}")
    view.stdout.print(table)
    view.say(f"{studies} studies a case: 95% is known to {1.96 * found[0]['error']:.1%}")


def _by_statistic(
    found: list[dict[str, Any]],
) -> Iterator[tuple[dict[str, Any], dict[str, dict[str, Any]]]]:
    """The rows of a case and statistic together, by method, with the first of them."""
    for _, group in itertools.groupby(found, key=lambda row: (row["case"], row["statistic"])):
        rows = list(group)
        yield rows[0], {row["method"]: row for row in rows}


@app.command("verdicts")
def verdicts(
    studies: Annotated[int, typer.Option(min=10, help="Simulated studies a condition.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the studies.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """How often the rollout- and step-level rules pass, where there is something to find or not."""
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
    heads = ["condition", "studies", "pass", "95%", "line above", "spline above"]
    table = Table(*heads, box=None, padding=(0, 2, 0, 0))
    for row in found["conditions"]:
        shares = ("share", "lo", "hi", "above", "above_spline")
        share, lo, hi, line, spline = (f"{row[key]:.1%}" for key in shares)
        table.add_row(row["condition"], str(row["studies"]), share, f"{lo} to {hi}", line, spline)
    view.stdout.print(table)
    view.stdout.print(f"the oracle's true residualised AUC is {found['oracle_auc']:.3f}")
    heads = ["rankings", "steps", "studies", "pass", "95%", "margin alone"]
    table = Table(*heads, title="\nStep level: norm control", title_justify="left", box=None)
    for row in found["steps"]:
        share, lo, hi, alone = (f"{row[key]:.1%}" for key in ("share", "lo", "hi", "margin_alone"))
        numbers = (row["condition"], str(row["steps"]), str(row["studies"]))
        table.add_row(*numbers, share, f"{lo} to {hi}", alone)
    view.stdout.print(table)


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
