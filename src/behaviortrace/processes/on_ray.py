"""Runs of a sweep as tasks of a Ray cluster on this machine (extra ``ray``)."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.processes.job import Job
from behaviortrace.processes.threads import environment


class RayExecutor:
    """Runs as Ray tasks, each in a worker process of its own, kept to its share of the cores.

    A cluster is started on this machine and stopped at the end, unless the caller has connected to
    one already. Ray's own retries are off: a lost task is started again as any lost run is.

    Args:
        workers: tasks at a time.
        threads: of a task, for which it claims as many of the cluster's CPUs.

    Raises:
        BehaviorTraceError: Ray does not start.
    """

    def __init__(self, workers: int, threads: int) -> None:
        import ray

        self._ray: Any = ray
        self._owned = not self._ray.is_initialized()
        if self._owned:
            self._begin(workers * threads)
        gpus = self._ray.cluster_resources().get("GPU", 0)
        as_task = self._ray.remote(
            num_cpus=threads,
            num_gpus=min(1.0, gpus / workers),
            max_calls=1,  # a process a run: nothing of one run reaches the next
            max_retries=0,
            runtime_env={"env_vars": environment(threads)},
        )
        self._task = as_task(_work)

    def start(self, job: Job, slot: int) -> Any:
        """Submit the run as a task."""
        job.log.parent.mkdir(parents=True, exist_ok=True)
        return self._task.remote(job.module, str(job.log), job.dump())

    def ended(self, handle: Any) -> str | None:
        """How a task ended; None while it works."""
        ready, _ = self._ray.wait([handle], timeout=0)
        if not ready:
            return None
        try:
            self._ray.get(handle)
        except self._ray.exceptions.RayError as error:
            first = next(iter(str(error).splitlines()), "")
            return f"lost by Ray: {type(error).__name__}: {first}"
        return "ended"

    def close(self) -> None:
        """Stop the cluster, and with it whatever still works."""
        if self._owned:
            self._ray.shutdown()

    def _begin(self, cpus: int) -> None:
        ours = signal.getsignal(signal.SIGTERM)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # tell nobody what is run here
        try:
            self._ray.init(
                address="local",
                num_cpus=cpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
            )
        except Exception as error:  # Ray raises many kinds; the reason is passed on
            first = next(iter(str(error).splitlines()), type(error).__name__)
            raise BehaviorTraceError(
                f"Ray does not start on this machine: {first}; use --executor local"
            ) from error
        if threading.current_thread() is threading.main_thread():
            # Ray's own handler would end this process before its runs are recorded as stopped.
            signal.signal(signal.SIGTERM, ours or signal.SIG_DFL)


def _work(module: str, log_file: str, text: str) -> None:
    """What a Ray task does: one run, its output in the run's log."""
    from behaviortrace.processes.worker import guarded

    with (
        open(log_file, "a", encoding="utf-8") as log,
        redirect_stdout(log),
        redirect_stderr(log),
    ):
        guarded(module, text)
