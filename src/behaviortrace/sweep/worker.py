"""One run of a sweep, in a process of its own that may be killed at any moment.

``python -m behaviortrace.sweep.worker`` reads a job from its standard input. What became of it is
told by a file, so that it is told alike whoever started the process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import Run
from behaviortrace.sweep.locks import alone, run_lock
from behaviortrace.sweep.plan import Job
from behaviortrace.sweep.standing import further_draws, open_run

_TELL_SECONDS = 0.25  # least time between two reports of progress
_PARENT_SECONDS = 0.1  # between two looks at whether the sweep is still there
_LOCK_SECONDS = 60.0  # how long a process of an earlier sweep may take to notice its parent's end


class Beacon:
    """A progress callback that keeps one small file up to date.

    The file holds a JSON object: ``pid``, ``stage``, ``done``, ``total`` and ``seconds_left``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told = 0.0

    def __call__(self, stage: str, done: int, total: int, seconds_left: float | None) -> None:
        """Tell where the work stands; at most four times a second, but every begin and end."""
        moment = time.monotonic()
        if 0 < done < total and moment - self._told < _TELL_SECONDS:
            return
        self._told = moment
        standing = {"stage": stage, "done": done, "total": total, "seconds_left": seconds_left}
        with suppress(OSError):  # work does not fail for want of telling
            _put(self._path, {"pid": os.getpid(), **standing})


def work(job: Job) -> None:
    """Train, analyse and verify one run, or go on with it where it stopped.

    Raises:
        BehaviorTraceError: what the user can mend.
    """
    progress = Beacon(job.aside("progress"))
    progress("start", 0, 1, None)  # the imports below take seconds

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


def guarded(text: str) -> None:
    """Work at a job, given as text, and leave its outcome in the job's file, whatever happens.

    The outcome is a JSON object: ``ended`` ("finished"; "refused": the user has something to mend,
    another try is useless; "broken": another try may do) and ``reason``, one line.
    """
    job = Job.parse(text)
    outcome = {"ended": "finished", "reason": None}
    try:
        work(job)
    except BehaviorTraceError as error:
        outcome = {"ended": "refused", "reason": " ".join(str(error).split())}
    except Exception as error:  # told by the outcome, with its traceback in the run's log
        traceback.print_exc()
        what = " ".join(str(error).split())
        outcome = {"ended": "broken", "reason": f"{type(error).__name__}: {what}"}
    _put(job.aside("outcome"), outcome)


def _damaged_draws(run: Run) -> list[str]:
    problems = run.verify()
    return [
        name
        for name in run.draws()
        if any(p.startswith((f"draws/{name}/", f"draws/{name} ")) for p in problems)
    ]


def _put(path: Path, data: dict[str, Any]) -> None:
    """Replace a small file whole; unlike a run's files it need not survive a power cut."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(data), encoding="utf-8")
    os.replace(aside, path)


def _follow(parent: int) -> None:
    """End this process soon after its parent has ended, so that no run is worked at unseen."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Entry of a process that a sweep starts: its parent's id as argument, a job on stdin."""
    _follow(int(sys.argv[1]))
    guarded(sys.stdin.read())


if __name__ == "__main__":
    main()
