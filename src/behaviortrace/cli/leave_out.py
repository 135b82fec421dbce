"""`behaviortrace leave-out`: take rollouts out of training, and see what is not learnt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from behaviortrace.cli import view
from behaviortrace.cli.standings import standings
from behaviortrace.cli.stopping import told_how_to_go_on
from behaviortrace.errors import BehaviorTraceError

if TYPE_CHECKING:
    import polars as pl

    from behaviortrace.causes.planning import Wanted
    from behaviortrace.run import Run

_SWEEP = "sweep.json"  # sweep.manifest.NAME, which imports what a front door should not

Mode = Literal["replay", "rerun"]
How = Literal["exclude", "zero", "unboosted"]
Executor = Literal["local", "ray"]


def leave_out(
    run: Annotated[Path, typer.Argument(help="Run directory, or a sweep's for all its runs.")],
    remove: Annotated[
        list[str] | None,
        typer.Option(
            help="ground-truth, random, top:ESTIMATOR, bottom:ESTIMATOR, or a file of rollout ids; "
            "several times. What the recipe says if not given."
        ),
    ] = None,
    size: Annotated[int | None, typer.Option(help="Rollouts to remove; as the truth has.")] = None,
    mode: Annotated[
        Mode, typer.Option(help="replay: the logged rollouts again; rerun: train online again.")
    ] = "replay",
    how: Annotated[
        How | None,
        typer.Option(
            help="exclude: no part in update and group; zero: no advantage; unboosted: no bonus. "
            "By default zero in a replay, exclude in a rerun."
        ),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds of control sets, as 0,1,2.")] = None,
    until: Annotated[
        int | None, typer.Option(help="Checkpoint that is measured; the end of the window.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Completions of every prompt asked.")
    ] = None,
    subsets: Annotated[
        int | None, typer.Option(min=0, help="Random subsets, for linear datamodelling scores.")
    ] = None,
    executor: Annotated[Executor, typer.Option(help="local, or ray (extra: ray).")] = "local",
    workers: Annotated[int, typer.Option(min=1, help="Processes; they share the cores.")] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print arms, time and disk; train nothing.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Replay everything, print how far weights are off.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train without some rollouts, and without matched ones, and compare what is learnt."""
    changes: dict[str, Any] = {"size": size, "mode": mode, "how": how, "until": until}
    changes |= {"samples": samples, "subsets": subsets}
    changes |= {"seeds": None if seeds is None else _numbers(seeds)}
    given = {name: value for name, value in changes.items() if value is not None}
    opened = _runs(run)
    if check:
        _print_exactness(opened, until, as_json)
        return
    wanted = [_wanted(each, remove or [], given) for each in opened]
    if dry_run:
        _print_plan(opened, wanted, as_json)
        return
    for each, asked in zip(opened, wanted, strict=True):
        if len(opened) > 1:
            view.say(f"{each.path}")
        _do(each, asked, executor, workers)
    _print(run, _told(run, opened), as_json)


def _do(run: Run, wanted: Wanted, executor: str, workers: int) -> None:
    from behaviortrace.causes import stage
    from behaviortrace.sweep.plan import cores

    threads = max(1, cores() // workers)
    remedy = "the same command goes on where it stopped"
    with told_how_to_go_on(lambda: remedy), standings("part") as watch:
        stage.leave_out(
            run, wanted, executor=executor, workers=workers, threads=threads, watch=watch
        )


def _runs(path: Path) -> list[Run]:
    """The run at a path, or the finished runs of the sweep there."""
    from behaviortrace.run import Run
    from behaviortrace.sweep.manifest import read_sweep

    if not (path / _SWEEP).is_file():
        return [Run.open(path)]
    finished = [r for r in read_sweep(path).runs if r.state == "finished"]
    if not finished:
        raise BehaviorTraceError(f"no run of the sweep {path} is finished; finish one first")
    return [Run.open(path / entry.folder) for entry in finished]


def _wanted(run: Run, remove: list[str], given: dict[str, Any]) -> Wanted:
    from behaviortrace.causes.stage import wanted_by

    return wanted_by(run, remove, given)


def _print_plan(runs: list[Run], wanted: list[Wanted], as_json: bool) -> None:
    from behaviortrace.causes.cost import expected
    from behaviortrace.causes.stage import planned

    rows = []
    for run, asked in zip(runs, wanted, strict=True):
        rows.append({"run": str(run.path), **expected(run, planned(run, asked))})
    if as_json:
        view.print_json(rows)
        return
    table = Table("run", "arms", "to do", "hours (two cores)", "disk, GB", box=None)
    for row in rows:
        hours = "unknown" if row["cpu_hours"] is None else f"{row['cpu_hours']:.2f}"
        disk = "unknown" if row["disk_gb"] is None else f"{row['disk_gb']:.2f}"
        table.add_row(row["run"], str(row["arms"]), str(row["missing"]), hours, disk)
    view.stdout.print(table)


def _print_exactness(runs: list[Run], until: int | None, as_json: bool) -> None:
    from behaviortrace.causes.planning import checked_until
    from behaviortrace.causes.stage import exactness

    found = []
    for run in runs:
        step = checked_until(run, until)
        found.append({"run": str(run.path), "until": step, "largest": exactness(run, step)})
    if as_json:
        view.print_json(found)
        return
    for row in found:
        view.stdout.print(
            f"{row['run']}: replayed to step {row['until']}, no weight differs by more than "
            f"{row['largest']:.1e}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def _told(path: Path, runs: list[Run]) -> dict[str, pl.DataFrame]:
    """What the leave-outs say, with checklists and pages brought up to date."""
    from behaviortrace.causes.pooling import pooled
    from behaviortrace.causes.stage import kept, told_again

    if not (path / _SWEEP).is_file():
        told_again(runs[0])
        return kept(runs[0])
    from behaviortrace.sweep.stage import merge_again

    merge_again(path)
    return pooled(runs)


def _print(path: Path, tables: dict[str, pl.DataFrame], as_json: bool) -> None:
    if as_json:
        view.print_json({"run": str(path), **{n: f.to_dicts() for n, f in tables.items()}})
        return
    _print_effects(tables["effects"])
    if not tables["lds"].is_empty():
        _print_lds(tables["lds"])


def _print_effects(effects: pl.DataFrame) -> None:
    table = Table(
        "removed", "against", "rollouts", "s_b without", "control", "nothing", "effect [95%]",
        title="What removal does to s_b", title_justify="left",
    )  # fmt: skip
    for row in effects.iter_rows(named=True):
        table.add_row(
            row["removal"],
            row["control"],
            f"{row['size']:.0f}",
            f"{row['rate']:.3f}",
            f"{row['rate_control']:.3f}",
            f"{row['rate_nothing']:.3f}",
            _interval(row["effect"], row["lo"], row["hi"]),
        )
    view.stdout.print(table)


def _print_lds(lds: pl.DataFrame) -> None:
    table = Table("ranking", "of", "LDS [95%]", title_justify="left")
    table.title = "Linear datamodelling score"
    for row in lds.iter_rows(named=True):
        table.add_row(row["ranking"], row["measure"], _interval(row["lds"], row["lo"], row["hi"]))
    view.stdout.print(table)


def _interval(point: float | None, lo: float | None, hi: float | None) -> str:
    if point is None:
        return "undefined"
    if lo is None or hi is None:
        return f"{point:+.3f} (no interval)"
    return f"{point:+.3f} [{lo:+.3f}, {hi:+.3f}]"


def _numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise BehaviorTraceError(f"--seeds {text!r} must be numbers such as 0,1,2") from error
    if len(set(found)) < len(found) or any(n < 0 for n in found):
        raise BehaviorTraceError(f"--seeds {text!r} must be different numbers from 0 on")
    return found
