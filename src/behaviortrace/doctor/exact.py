"""Whole gradients by plain autograd, one rollout at a time, reduced before they are let go.

Nothing of the capture is used here but the objective and the numbering of coordinates, so that the
result can judge it. Parameters are taken a few at a time: all rollouts' gradients of those are held
together, reduced to what is wanted of them, and dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from behaviortrace.capture.batch import Row, check_rows, collate
from behaviortrace.capture.layout import Layout, Slot
from behaviortrace.capture.objective import fused_head, plain_loss, token_logprobs
from behaviortrace.capture.sketch import CountSketch
from behaviortrace.train.progress import Clock, Progress

_FLOATS = 1 << 29  # gradient entries held at a time, all rollouts together: 2 GiB
_PIECE = 1 << 20  # coordinates summed at a time in double precision


@dataclass(frozen=True)
class Exact:
    """What is kept of the exact plain gradients of n rollouts.

    Attributes:
        grams: (parameters, n, n) float64 inner products within each trainable parameter, in the
            layout's order; their sum over parameters is the inner products of whole gradients.
        sketches: (n, dim) float32 sketches of the gradients, uncovered parameters left out.
        direction: the weighted sum of the gradients, one tensor a trainable parameter; zero in
            uncovered ones.
    """

    grams: np.ndarray
    sketches: np.ndarray
    direction: list[torch.Tensor]


def exact_gradients(
    model: nn.Module,
    rows: Sequence[Row],
    sketch: CountSketch,
    *,
    weights: Sequence[float],
    pad_token_id: int,
    uncovered: Collection[str] = (),
    temperature: float = 1.0,
    floats: int = _FLOATS,
    progress: Progress | None = None,
) -> Exact:
    """Take the exact plain gradient of every rollout: a forward and backward of its own.

    Memory: ``floats`` entries, or all rollouts' gradients of the largest parameter if more. Time:
    one pass over the rollouts for every ``floats`` entries that their gradients have.

    Args:
        model: a Hugging Face causal LM without TRL's fused head; its gradients are left untouched.
        rows: prompt ids and completion ids of n rollouts.
        sketch: what to sketch with.
        weights: (n,) of the rollouts in the direction.
        pad_token_id: any valid id.
        uncovered: names of parameters to leave out of the sketches and the direction.
        temperature: of the log-probabilities, as in training.
        floats: gradient entries held at a time.
        progress: called with the stage "exact".

    Raises:
        BehaviorTraceError: an empty row.
    """
    check_rows(rows)
    layout = Layout(model)
    found = Exact(
        grams=np.zeros((len(layout.slots), len(rows), len(rows))),
        sketches=sketch.accumulators(len(rows)),
        direction=[torch.empty(0)] * len(layout.slots),
    )
    chunks = list(_chunks(layout.slots, len(rows), floats))
    clock = Clock(progress, "exact", len(chunks) * len(rows))
    training = model.training
    model.eval()
    try:
        with fused_head(model, temperature), torch.enable_grad():
            for at, members in enumerate(chunks):
                done = at * len(rows)
                parameters = [layout.parameters[i] for i in members]
                taken = _taken(model, parameters, rows, pad_token_id, clock, done)
                for i in members:
                    slot, seen = layout.slots[i], taken.pop(0)
                    found.grams[i] = _gram(seen)
                    if slot.name in uncovered:
                        found.direction[i] = torch.zeros(slot.shape, device=seen.device)
                        continue
                    weighted = torch.tensor(weights, device=seen.device, dtype=seen.dtype) @ seen
                    found.direction[i] = weighted.view(slot.shape)
                    sketch.add(found.sketches, seen.cpu().numpy(), slot)
    finally:
        model.train(training)
    return Exact(found.grams, sketch.fold(found.sketches), found.direction)


def _chunks(slots: Sequence[Slot], rows: int, floats: int) -> Iterator[list[int]]:
    """Runs of parameters whose gradients, for all rows, fit together."""
    members: list[int] = []
    size = 0
    for i, slot in enumerate(slots):
        if members and size + rows * slot.size > floats:
            yield members
            members, size = [], 0
        members.append(i)
        size += rows * slot.size
    if members:
        yield members


def _taken(
    model: nn.Module,
    parameters: Sequence[nn.Parameter],
    rows: Sequence[Row],
    pad: int,
    clock: Clock,
    done: int,
) -> list[torch.Tensor]:
    """(rows, size) float32 gradients of each of the parameters."""
    seen = [torch.zeros(len(rows), p.numel(), device=p.device) for p in parameters]
    for i, row in enumerate(rows):
        batch = collate([row], pad, device=parameters[0].device)
        loss = plain_loss(token_logprobs(model, batch), batch.mask).sum()
        for kept, gradient in zip(
            seen, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True
        ):
            if gradient is not None:
                kept[i] = gradient.reshape(-1)
        clock.at(done + i + 1)
    return seen


def _gram(seen: torch.Tensor) -> np.ndarray:
    """(rows, rows) inner products, summed in double precision."""
    total = torch.zeros(len(seen), len(seen), dtype=torch.float64, device=seen.device)
    for at in range(0, seen.shape[1], _PIECE):
        piece = seen[:, at : at + _PIECE].double()
        total += piece @ piece.T
    return total.cpu().numpy()
