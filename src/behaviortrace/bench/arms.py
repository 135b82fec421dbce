"""The arms of the capture benchmark: plain training, ours, and the published way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from behaviortrace.bench.workload import Workload
from behaviortrace.capture import device
from behaviortrace.capture.engine import RowGradients
from behaviortrace.capture.layout import Layout
from behaviortrace.capture.objective import plain_loss, token_logprobs
from behaviortrace.capture.sinks import sink_for
from behaviortrace.capture.sketch import CountSketch


def plain(work: Workload) -> None:
    """Forward and backward, nothing captured."""
    work.train(lambda batch: None, lambda: None)


class Traced:
    """Forward and backward with every rollout's full gradient sketched on the way.

    Args:
        work: what to train on.
        sketch: what to sketch with.
    """

    def __init__(self, work: Workload, sketch: CountSketch) -> None:
        self.work = work
        self.sink = sink_for(sketch)
        self.engine = RowGradients(work.model, self.sink)
        self.sketches = np.zeros((0, sketch.dim), np.float32)

    def __call__(self) -> None:
        """Run the arm once; ``sketches`` then holds the plain sketches, (rollouts, dim)."""
        found: list[np.ndarray] = []

        def arm(batch: Any) -> None:
            self.engine.arm(len(batch.ids), batch.mask)

        def disarm() -> None:
            self.engine.disarm()
            found.append(self.sink.sketches())

        with self.engine:
            self.work.train(arm, disarm)
        self.sketches = np.concatenate(found)


class OneAtATime:
    """The published way: a backward a rollout, and a CountSketch in torch operations.

    Args:
        work: what to train on.
        sketch: what to sketch with.
        rollouts: how many to time; the rest would take as long each.
    """

    def __init__(self, work: Workload, sketch: CountSketch, rollouts: int) -> None:
        self.work, self.sketch, self.rollouts = work, sketch, rollouts
        self.layout = Layout(work.model)
        self.sketches = np.zeros((0, sketch.dim), np.float32)

    def __call__(self) -> None:
        """Run the arm once; ``sketches`` then holds those of the rollouts timed."""
        found = []
        for batch, _ in self.work.batches(1)[: self.rollouts]:
            loss = plain_loss(token_logprobs(self.work.model, batch), batch.mask).sum()
            gradients = torch.autograd.grad(loss, self.layout.parameters)
            out = torch.zeros(1, self.sketch.dim, device=loss.device)
            for slot, gradient in zip(self.layout.slots, gradients, strict=True):
                device.add(self.sketch.buckets, out, gradient.reshape(1, -1), slot)
            found.append(out.cpu().numpy())
        self.sketches = np.concatenate(found)


def kernel_over_read(sketch: CountSketch, rows: int, floats: int) -> dict[str, float]:
    """Seconds to sketch an array larger than the caches, and to read it once.

    Args:
        sketch: what to sketch with.
        rows: of the array.
        floats: numbers in a row.

    Returns:
        "kernel" and "read" seconds, medians of five, and their "ratio".
    """
    from behaviortrace.bench.timing import median_seconds
    from behaviortrace.capture.layout import slots_of

    values = np.random.default_rng(0).normal(size=(rows, floats)).astype(np.float32)
    tensor = torch.from_numpy(values)
    (slot,) = slots_of([("values", (floats,))])
    out = sketch.accumulators(rows)
    seconds: dict[str, Callable[[], Any]] = {
        "kernel": lambda: sketch.add(out, values, slot),
        "read": lambda: tensor.sum(),
    }
    found = median_seconds(seconds, rounds=5)
    return {**found, "ratio": found["kernel"] / found["read"]}
