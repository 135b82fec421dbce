"""Plain gradients of given completions under a given model, with the training engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from behaviortrace.capture.batch import Row, check_rows, collate
from behaviortrace.capture.engine import RowGradients
from behaviortrace.capture.objective import fused_head, plain_loss, token_logprobs
from behaviortrace.capture.sinks import sink_for
from behaviortrace.capture.sketch import CountSketch
from behaviortrace.capture.slices import SliceSink


@dataclass(frozen=True)
class Replay:
    """Gradients of replayed rows, in the order given.

    Attributes:
        plain: (n, dim) float32 sketches of the gradient of minus the mean log-probability of the
            chosen completion tokens.
        norms: (n,) float64 exact L2 norms of those gradients; of their sketches where the sketch
            never forms them.
        fluency: (n,) float64 mean log-probability of *all* completion tokens, nats.
        logps: log-probability of every completion token, one array a row.
    """

    plain: np.ndarray
    norms: np.ndarray
    fluency: np.ndarray
    logps: list[np.ndarray]


def replay(
    model: nn.Module,
    rows: Sequence[Row],
    sketch: CountSketch | SliceSink,
    *,
    pad_token_id: int,
    temperature: float = 1.0,
    micro_batch: int = 8,
    token_mask: Sequence[Sequence[bool]] | None = None,
    allow_uncovered: Collection[str] = (),
    progress: Callable[[int], None] | None = None,
) -> Replay:
    """Sketch the plain gradient of every row; batching does not change the result.

    Args:
        model: a Hugging Face causal LM without TRL's fused head; its gradients are left untouched.
        rows: prompt ids and completion ids of each row.
        sketch: what to sketch with; a slice of the gradient only to show what it misses.
        pad_token_id: any valid id, for padding.
        temperature: of the log-probabilities, as in training.
        micro_batch: rows of one backward.
        token_mask: per row, which completion tokens the gradient looks at; None for all.
        allow_uncovered: names of trainable parameters that may be left out of the sketches.
        progress: called with the number of rows done.

    Raises:
        BehaviorTraceError: empty rows, a mask that fits no token, or an uncovered parameter.
    """
    check_rows(rows, token_mask)
    count, device = len(rows), next(model.parameters()).device
    plain = np.zeros((count, sketch.dim), np.float32)
    norms, fluency = np.zeros(count), np.zeros(count)
    logps: list[np.ndarray] = []
    # Rows of like length share a batch, so that little is spent on padding.
    order = sorted(range(count), key=lambda i: len(rows[i][0]) + len(rows[i][1]))
    by_row: dict[int, np.ndarray] = {}
    sink = sketch if isinstance(sketch, SliceSink) else sink_for(sketch)
    sink.want_sum = False
    training = model.training
    model.eval()
    try:
        with fused_head(model, temperature), RowGradients(model, sink, allow_uncovered) as engine:
            for at in range(0, count, micro_batch):
                chosen = order[at : at + micro_batch]
                masks = None if token_mask is None else [token_mask[i] for i in chosen]
                batch = collate([rows[i] for i in chosen], pad_token_id, masks, device)
                engine.arm(len(chosen), batch.mask)
                values = token_logprobs(model, batch)
                plain_loss(values, batch.mask).sum().backward()
                done = engine.disarm()
                plain[chosen] = sink.sketches()
                norms[chosen] = done.norms(plain[chosen])
                for i, row in zip(chosen, values.detach().double().cpu().numpy(), strict=True):
                    by_row[i] = row[: len(rows[i][1])]
                    fluency[i] = by_row[i].mean()
                if progress is not None:
                    progress(at + len(chosen))
    finally:
        model.train(training)
    logps = [by_row[i] for i in range(count)]
    return Replay(plain, norms, fluency, logps)
