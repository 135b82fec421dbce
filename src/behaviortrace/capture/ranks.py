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

    def write(self, run: Run, step: int, shards: Sequence[Shard]) -> None:
        """Write this process's shards of a step; the main one lists all of them at once.

        Raises:
            BehaviorTraceError: one of the processes could not write; in all of them.
        """
        entries: list[str] = []
        problem: str | None = None
        try:
            for store, frame, tensors in shards:
                entry = run.prepare_shard(store, step, self.rank, frame, tensors)
                entries.append(entry.model_dump_json())
        except BehaviorTraceError as error:
            if self.count == 1:
                raise
            problem = str(error)
        told = [(problem, entries)]
        if self.count > 1:
            told = gather_object(told)
        problems = [p for p, _ in told if p is not None]
        if problems:
            raise BehaviorTraceError(problems[0])
        everyones = [ShardEntry.model_validate_json(e) for _, found in told for e in found]
        self.first(lambda: run.commit(everyones))
