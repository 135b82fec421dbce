"""A share of a leave-out's arms, as a job of ``behaviortrace.processes``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from behaviortrace.causes.arms import FOLDER, Arm, load, place
from behaviortrace.processes.locks import alone
from behaviortrace.run import Run

_LOCK_SECONDS = 60.0  # how long a process of an earlier call may take to notice its parent's end


@dataclass(frozen=True)
class Job:
    """Arms that one process makes, in order.

    Attributes:
        path: the run directory.
        key: number of the share.
        arms: the share.
        threads: it may compute with.
    """

    path: Path
    key: int
    arms: tuple[Arm, ...]
    threads: int

    @property
    def module(self) -> str:
        """The module that works at it."""
        return __name__

    @property
    def log(self) -> Path:
        """What its process printed."""
        return self.path / FOLDER / "logs" / f"part-{self.key}.log"

    def aside(self, kind: str) -> Path:
        """Where the process tells its "progress" or its "outcome", or holds its "lock"."""
        return self.path / FOLDER / "progress" / f"part-{self.key}.{kind}"

    def dump(self) -> str:
        """As JSON text, for another process."""
        return json.dumps(
            {
                "path": str(self.path.resolve()),
                "key": self.key,
                "arms": [arm.dump() for arm in self.arms],
                "threads": self.threads,
            }
        )


def parse(text: str) -> Job:
    """From the text that :meth:`Job.dump` gave."""
    data = json.loads(text)
    arms = tuple(Arm.parse(arm) for arm in data["arms"])
    return Job(Path(data["path"]), data["key"], arms, data["threads"])


def work(job: Job, progress: Any) -> None:
    """Make the job's arms; those that have an outcome are left as they are.

    Raises:
        BehaviorTraceError: what the user can mend.
    """
    import torch

    from behaviortrace.causes.work import Bench
    from behaviortrace.causes.work import work as make
    from behaviortrace.train.allocator import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(job.threads)
    busy = f"another process is at work in {job.path / FOLDER}; wait for it, then try again"
    with alone(job.aside("lock"), busy, _LOCK_SECONDS):
        make(Bench(Run.open(job.path), progress), job.arms)


def shares(run: Run, arms: Sequence[Arm], workers: int, threads: int) -> list[Job]:
    """The arms without an outcome, dealt out in turn to so many jobs at most.

    Raises:
        BehaviorTraceError: an outcome is damaged.
    """
    missing = {place(run, arm): arm for arm in arms if load(place(run, arm)) is None}
    left = list(missing.values())
    hands = [tuple(left[i::workers]) for i in range(workers)]
    return [Job(run.path, i, hand, threads) for i, hand in enumerate(hands) if hand]
