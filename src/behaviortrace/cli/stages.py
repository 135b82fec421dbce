"""One command per stage after training; each can be rerun alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from behaviortrace import pipeline
from behaviortrace.cli import view
from behaviortrace.errors import BehaviorTraceError

if TYPE_CHECKING:
    from behaviortrace.records import Verdict
    from behaviortrace.run import Run
    from behaviortrace.sweep.verify import Verified
    from behaviortrace.train.progress import Progress

RunPath = Annotated[Path, typer.Argument(help="Run directory.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

AFTER_TRAINING = ("trained", "drawn", "scored", "evaluated", "complete")


def open_run(path: Path, trained: bool = True) -> Run:
    """The run at a path; where ``trained``, refused before its training is finished."""
    from behaviortrace.run import Run

    run = Run.open(path)
    if trained and run.recipe is not None and run.manifest.status not in AFTER_TRAINING:
        raise BehaviorTraceError(
            f"{path} is not trained to its end (status {run.manifest.status!r}); go on with "
            f"behaviortrace run {run.recipe.name} --out {path} --resume"
        )
    return run


def draw(
    run: RunPath,
    seed: Annotated[
        list[int] | None, typer.Option(help="Seed of the draw; the recipe's if not given.")
    ] = None,
) -> None:
    """Fresh completions from the recipe's checkpoint, with their plain gradients."""
    opened = open_run(run)
    with view.progress_bars() as progress:
        names = _draw(opened, seed, progress)
    view.say(f"{run}: draws {', '.join(names)}")


def _draw(run: Run, seeds: list[int] | None, progress: Progress | None) -> list[str]:
    from behaviortrace.draws.stage import draw as take

    recipe = run.recipe
    if recipe is None:
        raise BehaviorTraceError(
            f"{run.path} has no recipe, so it is not known what to draw from; a run made by "
            "attaching a tracer can be scored with behaviortrace.scores.stage"
        )
    return [take(run, seed, progress=progress) for seed in seeds or recipe.draw.seeds]


def target(run: RunPath) -> None:
    """Take the targets: gradient directions of producing the behaviour."""
    opened = open_run(run)
    with view.progress_bars() as progress:
        missing = _targets(opened, progress)
    for name, reason in missing.items():
        view.say(f"target {name} could not be made: {reason}")
    view.say(f"{run}: targets {', '.join(opened.targets())}")


def _targets(run: Run, progress: Progress | None) -> dict[str, str]:
    from behaviortrace.targets.stage import make_targets

    return make_targets(run, progress=progress)


def score(run: RunPath) -> None:
    """Score every rollout with every estimator and control; token spans too."""
    opened = open_run(run)
    with view.progress_bars() as progress:
        rows = pipeline.score(opened, progress)
    view.say(f"{run}: {rows} scores in scores/all")


def evaluate(run: RunPath, as_json: Json = False) -> None:
    """Precision, within-group AUC with fluency control, token level; the pitfalls."""
    opened = open_run(run)
    summary = pipeline.evaluate(opened)
    if as_json:
        tables = ("step_level", "rollout_precision", "rollout_level", "token_level")
        found = {
            name: opened.table(f"results/{name}").to_dicts()
            for name in tables
            if opened.has(f"results/{name}")
        }
        view.print_json(plain({"summary": summary, **found}))
        return
    view.stdout.print(_summary_table(summary))


def check(run: RunPath, as_json: Json = False) -> None:
    """Judge the run by the checklist."""
    from behaviortrace.checklist.conclusion import conclusion
    from behaviortrace.checklist.stage import check as judge
    from behaviortrace.report.terminal import verdict_table

    verdicts = judge(open_run(run))
    if as_json:
        rows = [dataclasses.asdict(v) for v in verdicts]
        view.print_json(plain({"conclusion": conclusion(verdicts), "verdicts": rows}))
        return
    view.stdout.print(verdict_table(verdicts))
    view.stdout.print(conclusion(verdicts), markup=False)


def report(run: RunPath) -> None:
    """Write the self-contained report page."""
    from behaviortrace.report.stage import report as write

    print(write(open_run(run)))


def verify(
    run: Annotated[Path, typer.Argument(help="Run directory, or that of a sweep.")],
    as_json: Json = False,
) -> None:
    """Check a run's or sweep's integrity: checksums, counts, lineage. Exit code 1 if damaged.

    A sweep is also incomplete, with exit code 1, where a run failed, is missing or not finished.
    """
    from behaviortrace.run import Run
    from behaviortrace.sweep.manifest import NAME
    from behaviortrace.sweep.verify import verify as verify_sweep

    if (run / NAME).is_file():
        _tell_of_sweep(run, verify_sweep(run), as_json)
        return
    opened = Run.open(run)
    problems = opened.verify()
    holds = ", ".join(f"{n} {name}" for name, n in opened.manifest.counts.items())
    if as_json:
        view.print_json({"run": str(run), "sound": not problems, "problems": problems})
    elif problems:
        for problem in problems:
            view.stdout.print(problem, markup=False, highlight=False, soft_wrap=True)
    else:
        view.stdout.print(f"{run} is sound: {holds}", markup=False, highlight=False, soft_wrap=True)
    if problems:
        raise typer.Exit(1)


def _tell_of_sweep(root: Path, found: Verified, as_json: bool) -> None:
    """What is damaged and what is missing: one line each, and both in a sentence."""
    if as_json:
        told = {"run": str(root), "sound": not found.problems, "problems": found.problems}
        parts = {"damaged": found.damaged, "incomplete": found.incomplete, "states": found.states}
        view.print_json({**told, **parts})
    else:
        for problem in found.problems:
            view.stdout.print(problem, markup=False, highlight=False, soft_wrap=True)
    if found.problems:
        view.say(f"{root} {found.sentence()}")
        raise typer.Exit(1)
    if not as_json:
        said = f"{root} {found.sentence()}"
        view.stdout.print(said, markup=False, highlight=False, soft_wrap=True)


def print_result(
    run: Run, verdicts: list[Verdict], page: Path, seconds: float, as_json: bool
) -> None:
    """The verdict table, the sentence, and where the report is."""
    from behaviortrace.checklist.conclusion import conclusion
    from behaviortrace.report.terminal import verdict_table

    if as_json:
        rows = [dataclasses.asdict(v) for v in verdicts]
        result = {
            "run": str(run.path),
            "report": str(page),
            "seconds": round(seconds, 1),
            "conclusion": conclusion(verdicts),
            "verdicts": rows,
            "summary": run.json("results/summary"),
        }
        view.print_json(plain(result))
        return
    view.stdout.print(verdict_table(verdicts))
    view.stdout.print(conclusion(verdicts), markup=False)
    minutes, rest = divmod(round(seconds), 60)
    view.stdout.print(f"\nreport: {page}  ({minutes} min {rest} s)", markup=False, soft_wrap=True)


def _summary_table(summary: dict[str, Any]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for key, value in summary.items():
        table.add_row(key, "undefined" if value is None else str(value))
    return table


def plain(value: Any) -> Any:
    """JSON-ready: NaN and infinities become null."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
