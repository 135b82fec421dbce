"""Slow and obvious: one rollout at a time through plain autograd, no capture code."""

from __future__ import annotations

import torch
from torch import nn


def row_gradient(
    model: nn.Module, prompt: list[int], completion: list[int], mask: list[bool] | None = None
) -> torch.Tensor:
    """Gradient of minus the mean log-probability of the chosen completion tokens, flattened."""
    ids = torch.tensor([prompt + completion])
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
    logps = torch.log_softmax(logits, -1)[range(len(completion)), completion]
    chosen = torch.tensor(mask if mask is not None else [True] * len(completion))
    parameters = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad(-logps[chosen].mean(), parameters, allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(p) if g is None else g).reshape(-1)
            for p, g in zip(parameters, grads, strict=True)
        ]
    )
