"""The processes that train together: who creates the run, and how their shards get into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl
import torch
from accelerate.utils import broadcast_object_list, gather_object

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import Run
from behaviortrace.run.manifest import ShardEntry

Shard = tuple[str, pl.DataFrame, dict[str, np.ndarray]]
"""Store, table and row-aligned tensors."""


class Ranks:
    """Collective work of an accelerator's processes; plain calls where there is one.

    Args:
        accelerator: the trainer's.

    Attributes:
        count: number of processes.
        rank: this one's.
        main: whether this is the one that owns the manifest.
    """

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self.count: int = accelerator.num_processes
        self.rank: int = accelerator.process_index
        self.main: bool = accelerator.is_main_process

    def first(self, work: Callable[[], None]) -> None:
        """Let the main process do something while the others wait for its end.

        Raises:
            BehaviorTraceError: as raised by the main process, in all of them.
        """
        problem: list[str | None] = [None]
        if self.main:
            try:
                work()
            except BehaviorTraceError as error:
                if self.count == 1:
                    raise
                problem = [str(error)]
        if self.count > 1:
            broadcast_object_list(problem)
            if problem[0] is not None:
                raise BehaviorTraceError(problem[0])

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Element-wise sum over the processes, float64."""
        if self.count == 1:
            return values
        here = torch.from_numpy(values).to(self.accelerator.device)
        total: torch.Tensor = self.accelerator.reduce(here, reduction="sum")
        return total.cpu().numpy()

    def commit(
        self, run: Run, prepared: Sequence[ShardEntry], problem: BehaviorTraceError | None
    ) -> None:
        """List shards that every process has prepared; the main one lists all of them at once.

        Args:
            run: the run they belong to.
            prepared: this process's.
            problem: why this process has none.

        Raises:
            BehaviorTraceError: one of the processes had a problem; in all of them.
        """
        if self.count == 1:
            if problem is not None:
                raise problem
            run.commit(prepared)
            return
        mine = (problem and str(problem), [entry.model_dump_json() for entry in prepared])
        told = gather_object([mine])
        problems = [p for p, _ in told if p is not None]
        if problems:
            raise BehaviorTraceError(problems[0])
        everyones = [ShardEntry.model_validate_json(e) for _, found in told for e in found]
        self.first(lambda: run.commit(everyones))
