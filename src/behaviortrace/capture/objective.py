"""The one objective: mean log-probability of a completion's tokens, prompt excluded.

It goes through TRL's own fused LM head, so an attribution gradient cannot drift from training.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from trl.trainer.utils import add_fused_lm_head

from behaviortrace.capture.batch import TokenBatch


@contextmanager
def fused_head(model: nn.Module, temperature: float) -> Iterator[None]:
    """Give a causal LM TRL's fused head for a while.

    Args:
        model: a Hugging Face causal LM that does not have it yet.
        temperature: logits are divided by it, as TRL divides by the sampling temperature.
    """
    kept = model.__dict__.get("forward")
    add_fused_lm_head(model, temperature=temperature)
    try:
        yield
    finally:
        if kept is None:
            del model.__dict__["forward"]
        else:
            model.__dict__["forward"] = kept


def token_logprobs(model: nn.Module, batch: TokenBatch) -> torch.Tensor:
    """Log-probability of every completion token; call inside :func:`fused_head`.

    Returns:
        (rows, completion) float32, nats; zero at padding.
    """
    outputs = model(
        input_ids=batch.ids,
        attention_mask=batch.attention,
        position_ids=batch.position_ids,
        labels=batch.labels,
        fused_lm_head=True,
    )
    return outputs.log_probs[:, -batch.completion :]


def plain_loss(logps: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(rows,) minus the mean log-probability under the mask."""
    return -(logps * mask).sum(1) / mask.sum(1)
