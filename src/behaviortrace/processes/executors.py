"""Runs of a sweep worked at side by side, and gone on with where a process was lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from behaviortrace.processes.job import Job
from behaviortrace.processes.threads import environment

ATTEMPTS = 3
"""Processes a run gets before it counts as failed."""

_LOOK_SECONDS = 0.1  # between two looks at the processes
_STOP_SECONDS = 5.0  # that a process gets to end when asked to


@dataclass(frozen=True)
class Standing:
    """Where a run of the sweep stands.

    Attributes:
        key: of the job.
        state: "running", "finished" or "failed"; "waiting" before the first process and between
            two of them.
        attempts: processes so far.
        stage: what is being done, with the units ``done`` and in all, and ``seconds_left`` of it.
        reason: why a process was lost, or the run failed; one line.
        process: id of the process that works at it.
    """

    key: int
    state: Literal["waiting", "running", "finished", "failed"] = "waiting"
    attempts: int = 0
    stage: str = ""
    done: int = 0
    total: int = 0
    seconds_left: float | None = None
    reason: str | None = None
    process: int | None = None


Watch = Callable[[Sequence[Standing]], None]
"""Called with all runs, whenever one may have moved on."""

Changed = Callable[[Any, Standing], None]
"""Called with a job whose state has changed."""


class Executor(Protocol):
    """Starts processes that work at runs."""

    def start(self, job: Job, slot: int) -> Any:
        """Begin to work at a run; a handle of the process. Slots number the workers from 0."""

    def ended(self, handle: Any) -> str | None:
        """How a process ended, in a few words; None while it works."""

    def close(self) -> None:
        """Stop whatever still works."""


def execute(
    executor: Executor,
    jobs: Sequence[Job],
    workers: int,
    *,
    changed: Changed,
    watch: Watch,
    attempts: int = ATTEMPTS,
) -> list[Standing]:
    """Work at all runs, so many at a time; one that is lost or fails does not stop the others.

    A process that is killed or breaks is followed by another, which goes on where the first one
    was. What the user has to mend is not tried again.

    Returns:
        How every run ended, in the order of the jobs.
    """
    standings = {job.key: Standing(job.key) for job in jobs}
    waiting, slots = deque(jobs), list(range(workers))
    active: list[tuple[Job, int, Any]] = []

    def settle(job: Job, standing: Standing) -> None:
        standings[job.key] = standing
        changed(job, standing)

    try:
        while waiting or active:
            while waiting and slots:
                job, slot = waiting.popleft(), slots.pop(0)
                settle(job, _started(standings[job.key]))
                active.append((job, slot, _start(executor, job, slot)))
            for entry in list(active):
                job, slot, handle = entry
                how = executor.ended(handle)
                if how is None:
                    standings[job.key] = _told(job, standings[job.key])
                    continue
                active.remove(entry)
                slots.append(slot)
                settle(job, _ended(job, standings[job.key], how, attempts))
                if standings[job.key].state == "waiting":
                    waiting.appendleft(job)
            watch(list(standings.values()))
            if active:
                time.sleep(_LOOK_SECONDS)
    finally:
        executor.close()
    return list(standings.values())


def _started(standing: Standing) -> Standing:
    attempts = standing.attempts + 1
    return Standing(standing.key, "running", attempts, "start", 0, 1, reason=standing.reason)


def _start(executor: Executor, job: Job, slot: int) -> Any:
    for kind in ("outcome", "progress"):
        job.aside(kind).unlink(missing_ok=True)
    return executor.start(job, slot)


def _told(job: Job, standing: Standing) -> Standing:
    """The standing with what the process has told meanwhile."""
    told = _read(job.aside("progress"))
    if told is None:
        return standing
    process = told.pop("pid")
    return replace(standing, **told, process=process)


def _ended(job: Job, standing: Standing, how: str, attempts: int) -> Standing:
    """The standing after a process has ended: finished, failed, or waiting for the next one."""
    outcome = _read(job.aside("outcome"))
    for kind in ("outcome", "progress"):
        job.aside(kind).unlink(missing_ok=True)
    plain = Standing(standing.key, attempts=standing.attempts)
    if outcome is not None and outcome["ended"] == "finished":
        return replace(plain, state="finished")
    if outcome is not None and outcome["ended"] == "refused":
        return replace(plain, state="failed", reason=outcome["reason"])
    reason = how if outcome is None else outcome["reason"]
    if standing.attempts < attempts:
        return replace(plain, state="waiting", reason=reason)
    told = f"{reason} (attempt {standing.attempts} of {attempts}); see {job.log}"
    return replace(plain, state="failed", reason=told)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found


class LocalExecutor:
    """Runs as processes on this machine, each kept to its share of the cores.

    Args:
        devices: CUDA devices; where there are several, each worker sees one of them.
    """

    def __init__(self, devices: Sequence[str] = ()) -> None:
        self._devices = devices
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, job: Job, slot: int) -> subprocess.Popen[bytes]:
        """Start a Python process; it ends by itself where this one ends."""
        job.log.parent.mkdir(parents=True, exist_ok=True)
        mine = environment(job.threads)
        if len(self._devices) > 1:
            mine["CUDA_VISIBLE_DEVICES"] = self._devices[slot % len(self._devices)]
        entry = "behaviortrace.processes.worker"
        command = [sys.executable, "-m", entry, str(os.getpid()), job.module]
        with open(job.log, "ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **mine},
                start_new_session=True,  # an interrupt at the terminal reaches the sweep alone
            )
        assert process.stdin is not None
        try:
            process.stdin.write(job.dump().encode())
            process.stdin.close()
        except BrokenPipeError:
            pass  # it is gone already, which is told when it is looked at
        self._processes.append(process)
        return process

    def ended(self, handle: subprocess.Popen[bytes]) -> str | None:
        """How a process ended, such as "killed by SIGKILL"; None while it works."""
        code = handle.poll()
        if code is None:
            return None
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"ended with code {code}"

    def close(self) -> None:
        """Ask whatever still works to end, and see to it that it does."""
        working = [process for process in self._processes if process.poll() is None]
        for process in working:
            process.terminate()
        for process in working:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def make_executor(name: str, workers: int, threads: int) -> Executor:
    """The executor of a name, one of ``plan.EXECUTORS``.

    Raises:
        BehaviorTraceError: Ray does not start.
    """
    if name == "ray":
        from behaviortrace.processes.on_ray import RayExecutor

        return RayExecutor(workers, threads)
    return LocalExecutor(_cuda_devices())


def _cuda_devices() -> list[str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]
