"""One run of a sweep, as a job of ``behaviortrace.processes``."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.processes.locks import alone, run_lock
from behaviortrace.run import Run
from behaviortrace.sweep.plan import Job
from behaviortrace.sweep.standing import further_draws, open_run

_LOCK_SECONDS = 60.0  # how long a process of an earlier sweep may take to notice its parent's end


parse = Job.parse


def work(job: Job, progress: Any) -> None:
    """Train, analyse and verify one run, or go on with it where it stopped.

    Args:
        job: the run.
        progress: called with every stage.

    Raises:
        BehaviorTraceError: what the user can mend.
    """
    import torch

    from behaviortrace.pipeline import analyse
    from behaviortrace.train.allocator import keep_freed_memory
    from behaviortrace.train.grpo import run_training

    keep_freed_memory()
    torch.set_num_threads(job.threads)
    busy = f"another process is at work in {job.path}; wait for it, then try again"
    with alone(run_lock(job.root, job.name), busy, _LOCK_SECONDS):  # two would spoil the run
        run = open_run(job)
        known = run is not None
        run = run or Run.create(job.path, recipe=job.recipe)
        recipe = run.recipe
        assert recipe is not None
        run_training(run, recipe, progress, resume=known)
        torch.set_num_threads(job.threads)  # a resumed training takes those it began with
        if known:
            run.clean()
            for name in _damaged_draws(run):
                run.drop_draw(name)
        analyse(run, progress, job.draws)
        compare_further_tokens(run, progress)
        problems = run.verify()
        if problems:
            raise BehaviorTraceError(f"{run.path} is damaged: {problems[0]}; remove it")


def compare_further_tokens(run: Run, progress: Any = None) -> None:
    """The token level of the draws that the run's own table is not about.

    Stored under ``results/DRAW/`` as ``token_rows`` and ``token_level``; what is stored and sound
    is left.
    """
    from behaviortrace.evaluate.token import token_level
    from behaviortrace.scores.tokens import token_rows

    assert run.recipe is not None
    settings = run.recipe.evaluate
    for name in further_draws(run):
        under = f"results/{name}"
        with suppress(BehaviorTraceError):
            for table in ("token_rows", "token_level"):
                run.table(f"{under}/{table}")
            run.json(f"{under}/token_notes")
            continue
        rows = token_rows(run, name, under=under, progress=progress)
        level = token_level(rows, settings)
        run.save_table(f"{under}/token_level", level)


def _damaged_draws(run: Run) -> list[str]:
    problems = run.verify()
    return [
        name
        for name in run.draws()
        if any(p.startswith((f"draws/{name}/", f"draws/{name} ")) for p in problems)
    ]
