"""Every token's inner product with a direction in parameter space, by forward passes alone.

Along a unit direction u, ``d/de log p_t(theta + e u)`` at e = 0 is the inner product of u with the
gradient of token t's log-probability. A central difference gives it for all tokens of a batch with
two forward passes: no backward, no sketch error. The model is never written to; perturbed copies
stand in for its parameters while a forward runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl
import torch
from torch import nn

from behaviortrace.capture.batch import Row, check_rows, collate
from behaviortrace.capture.layout import Layout
from behaviortrace.capture.line import Direction, Line, choose_step
from behaviortrace.capture.objective import fused_head, plain_loss, token_logprobs
from behaviortrace.errors import BehaviorTraceError


def token_scores(
    model: nn.Module,
    rollouts: pl.DataFrame | Sequence[Row],
    target: Direction | Callable[[nn.Module], Direction],
    *,
    temperature: float = 1.0,
    pad_token_id: int | None = None,
    micro_batch: int = 8,
    step: float | None = None,
) -> list[np.ndarray]:
    """Inner product of every completion token's gradient with a target direction.

    The gradient is of *minus* the token's log-probability, as everywhere in this package: positive
    means that a descent step along the target makes the token more probable. The mean over a
    rollout's tokens is the inner product of its plain gradient with the target.

    Costs two forward passes over the rollouts, and a little to choose the step: central differences
    at e and 2e are compared on a sixteenth of the rollouts, along a ladder of steps until they
    agree. Gradients are autograd's: a padding entry of an embedding, which autograd leaves without
    gradient, is not moved.

    Args:
        model: a Hugging Face causal LM without TRL's fused head; it is not changed.
        rollouts: prompt ids and completion ids of n rollouts, or a table with those columns.
        target: one tensor a trainable parameter, or a function that makes them from the model,
            such as a partial of :func:`direction_from`.
        temperature: logits are divided by it, as in training.
        pad_token_id: any valid id, for padding; the model's own, or 0, if None.
        micro_batch: rollouts of one forward pass.
        step: length of the step along the unit target; chosen by the comparison if None.

    Returns:
        n arrays (completion tokens,) float64.

    Raises:
        BehaviorTraceError: the target does not fit the model or is zero, a rollout is empty, or no
            step is right because floating-point rounding hides the change.

    Example::

        target = functools.partial(direction_from, rows=rows, pad_token_id=0)
        scores = token_scores(model, run.rollouts(), target, temperature=0.9)
    """
    if step is not None and not step > 0:
        raise BehaviorTraceError(f"step {step:g} must be above 0, or None to have one chosen")
    rows = _rows(rollouts)
    if not rows:
        return []
    direction = list(target(model) if callable(target) else target)
    pad = _pad(model) if pad_token_id is None else pad_token_id
    training = model.training
    model.eval()
    try:
        with fused_head(model, temperature), Line(model, direction, pad, micro_batch) as line:
            known: dict[int, np.ndarray] = {}
            if step is None:
                step, known = choose_step(line, rows)
            rest = [i for i in range(len(rows)) if i not in known]
            known |= line.slopes(step, rows, rest)
    finally:
        model.train(training)
    return [-line.norm * known[i] for i in range(len(rows))]


def direction_from(
    model: nn.Module,
    rows: Sequence[Row],
    token_mask: Sequence[Sequence[bool]] | None = None,
    *,
    weights: Sequence[float] | None = None,
    temperature: float = 1.0,
    pad_token_id: int | None = None,
    micro_batch: int = 8,
) -> list[torch.Tensor]:
    """A weighted sum of rows' plain gradients, whole, by ordinary backward passes.

    Args:
        model: a Hugging Face causal LM without TRL's fused head; its gradients are left untouched.
        rows: prompt ids and completion ids of each row.
        token_mask: per row, which completion tokens the gradient looks at; None for all.
        weights: one a row; 1 / n each if None. A minimal pair is two rows with weights 1 and -1.
        temperature: of the log-probabilities, as in training.
        pad_token_id: any valid id, for padding; the model's own, or 0, if None.
        micro_batch: rows of one backward.

    Returns:
        One tensor a trainable parameter, of its shape and dtype.

    Raises:
        BehaviorTraceError: no row, an empty one, a mask that fits no token, or a wrong number of
            weights.
    """
    if not rows:
        raise BehaviorTraceError("a direction needs at least one row; none was given")
    if weights is not None and len(weights) != len(rows):
        raise BehaviorTraceError(f"{len(weights)} weights for {len(rows)} rows; give one a row")
    check_rows(rows, token_mask)
    pad = _pad(model) if pad_token_id is None else pad_token_id
    share = list(weights) if weights is not None else [1 / len(rows)] * len(rows)
    parameters = Layout(model).parameters
    total = [torch.zeros_like(p) for p in parameters]
    training, device = model.training, next(model.parameters()).device
    model.eval()
    try:
        with fused_head(model, temperature), torch.enable_grad():
            for at in range(0, len(rows), micro_batch):
                masks = None if token_mask is None else token_mask[at : at + micro_batch]
                batch = collate(rows[at : at + micro_batch], pad, masks, device)
                loss = plain_loss(token_logprobs(model, batch), batch.mask)
                weight = torch.tensor(share[at : at + micro_batch], device=device)
                found = torch.autograd.grad((loss * weight).sum(), parameters, allow_unused=True)
                for one, gradient in zip(total, found, strict=True):
                    if gradient is not None:
                        one += gradient
    finally:
        model.train(training)
    return total


def _rows(rollouts: pl.DataFrame | Sequence[Row]) -> list[Row]:
    if isinstance(rollouts, pl.DataFrame):
        missing = [n for n in ("prompt_ids", "completion_ids") if n not in rollouts.columns]
        if missing:
            raise BehaviorTraceError(
                f"the table of rollouts has no column {missing[0]!r}; token scores need token ids"
            )
        columns = (rollouts["prompt_ids"].to_list(), rollouts["completion_ids"].to_list())
        rows: list[Row] = [(p or [], c or []) for p, c in zip(*columns, strict=True)]
    else:
        rows = list(rollouts)
    check_rows(rows)
    return rows


def _pad(model: nn.Module) -> int:
    known = getattr(getattr(model, "config", None), "pad_token_id", None)
    return int(known) if isinstance(known, int) and known >= 0 else 0
