"""Which runs of a sweep are finished, told from the run directories themselves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from behaviortrace.draws.stage import draw_name
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.recipe import Recipe
from behaviortrace.run import Run
from behaviortrace.run.manifest import NAME
from behaviortrace.sweep.manifest import RunEntry, SweepManifest
from behaviortrace.sweep.plan import Job, address, family


def unfinished(job: Job) -> str | None:
    """What a run still lacks, in a few words; None where it is finished and sound.

    Finished is a run whose manifest says so, that holds and has evaluated every draw asked for,
    and of which every file is what the manifest says.

    Raises:
        BehaviorTraceError: the directory holds another run, or a manifest that cannot be read.
    """
    run = open_run(job)
    if run is None:
        return "not started"
    if run.manifest.status != "complete":
        return f"status {run.manifest.status!r}"
    problems = run.verify()
    if problems:
        return problems[0]
    return undone(run, job.draw_names)


def undone(run: Run, draws: Iterable[str]) -> str | None:
    """What a run whose manifest says "complete" lacks of what a sweep asks for; None if nothing.

    Args:
        run: a run with a recipe.
        draws: names of the draws it should hold and have evaluated.

    Raises:
        BehaviorTraceError: its summary is missing or damaged.
    """
    assert run.recipe is not None
    summary = run.json("results/summary")
    for name in draws:
        if run.manifest.counts.get(f"draws/{name}", 0) < draw_size(run.recipe):
            return f"draw {name} is missing"
        if name not in summary.get("behavior_rate", {}):
            return f"draw {name} is not evaluated"
    lacking = [name for name in further_draws(run) if not run.has(f"results/{name}/token_level")]
    if lacking:
        return f"draw {lacking[0]} has no token level"
    if not (run.path / "report" / "index.html").is_file():
        return "its report is missing"
    return None


def open_run(job: Job) -> Run | None:
    """The run of a job; None where it was never started.

    Raises:
        BehaviorTraceError: the directory holds another run, or a manifest that cannot be read.
    """
    if not (job.path / NAME).exists():
        return None
    run = Run.open(job.path)
    if run.recipe is None or address(run.recipe) != address(job.recipe):
        raise BehaviorTraceError(
            f"{job.path} holds a run whose recipe is not the one its name stands for; move it away"
        )
    return run


def refuse_run(root: Path) -> None:
    """Refuse to make a sweep of a directory that is a run: its results would be written over.

    Raises:
        BehaviorTraceError: it holds a run.
    """
    if (root / NAME).exists():
        raise BehaviorTraceError(f"{root} is a run, not a sweep; give --out a directory of its own")


def refuse_copies(jobs: Iterable[Job]) -> None:
    """Refuse to go on with runs that are copies without weights and sketches.

    Raises:
        BehaviorTraceError: names a copy that lacks something, and what.
    """
    for job in jobs:
        try:
            run = open_run(job)
        except BehaviorTraceError:
            continue  # told as that run's own failure
        if run is not None and run.manifest.left_out and (lack := unfinished(job)):
            run.refuse_copy(f"be gone on with ({lack})")


def mistaken(manifest: SweepManifest, entry: RunEntry, run: Run) -> str | None:
    """Why a run is not the one that its sweep lists, such as a folder copied over another's."""
    recipe = run.recipe
    if recipe is None or family(recipe) != family(manifest.common_recipe()):
        return "is a run of another recipe than the sweep's; move it away"
    if recipe.seed != entry.seed:
        return f"is the run of seed {recipe.seed}, not of seed {entry.seed}; move it away"
    return None


def draw_size(recipe: Recipe) -> int:
    """Completions in one draw."""
    return recipe.draw.prompts * recipe.draw.repeats * recipe.draw.generations


def further_draws(run: Run) -> list[str]:
    """Names of the draws that ``results/token_rows`` is not about.

    Raises:
        BehaviorTraceError: the run's tokens were never compared.
    """
    first = run.json("results/token_notes")["draw"]
    return [name for name in run.draws() if name != first]


def added_draws(run: Run) -> list[str]:
    """Draws of a run that its recipe, hashed before training, does not name."""
    registered = [draw_name(seed) for seed in run.recipe.draw.seeds] if run.recipe else []
    return [name for name in run.draws() if name not in registered]
