"""One of the processes that ``test_capture_processes`` trains with, or the only one.

Arguments: a folder, rows a micro-batch, micro-batches a step.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from trl import GRPOTrainer

from behaviortrace.capture import CountSketch, Tracer
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import Run
from tests.models import VOCABULARY
from tests.trainers import grpo


class SameEverywhere(GRPOTrainer):
    """Samples what only the prompt and the place in the global batch decide."""

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **named: Any) -> Any:
        first = self.accelerator.process_index * len(prompt_ids)
        return [completion(ids, first + i) for i, ids in enumerate(prompt_ids)], None


def completion(prompt: list[int], index: int) -> list[int]:
    """One to six tokens, and the end of the text."""
    start = sum(prompt) + 5 * index
    return [4 + (start + 11 * j * j) % (VOCABULARY - 4) for j in range(1 + start % 6)] + [2]


def trainer(folder: Path, rows: int, micro_batches: int) -> GRPOTrainer:
    """Two steps of so many micro-batches a process."""
    return grpo(
        folder / "out",
        trainer=SameEverywhere,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=micro_batches,
        max_completion_length=8,
    )


def train(folder: Path, rows: int, micro_batches: int) -> None:
    """Train with a tracer."""
    traced = trainer(folder, rows, micro_batches)
    with Tracer(folder / "run", CountSketch(1024, seed=1)).attach(traced):
        traced.train()
    if traced.accelerator.is_main_process:
        torch.save([p.detach() for p in traced.model.parameters()], folder / "parameters.pt")


def refusals(folder: Path, rows: int) -> None:
    """What goes wrong in one process ends all of them, each with the reason."""
    said = []
    traced = trainer(folder, rows, 1)
    rank = traced.accelerator.process_index
    try:
        with Tracer(folder / "run", CountSketch(1024, seed=1)).attach(traced):
            traced.train()
    except BehaviorTraceError as error:
        said.append(str(error))
    original = Run.prepare_shard

    def full(self: Run, *args: Any) -> Any:
        if rank == 1:
            raise BehaviorTraceError("the disk of rank 1 is full")
        return original(self, *args)

    Run.prepare_shard = full  # type: ignore[method-assign]  # the point of it
    try:
        with Tracer(folder / "other", CountSketch(1024, seed=1)).attach(traced):
            traced.train()
    except BehaviorTraceError as error:
        said.append(str(error))
    (folder / f"said-{rank}.txt").write_text("\n".join(said))


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    refusals(Path(sys.argv[1]), int(sys.argv[2]))
    # What was to be shown is on the disk. Gloo's threads may abort, or wait for ever on the other
    # process, where they are taken down after a training that was refused midway.
    sys.stdout.flush()
    os._exit(0)
