"""Sampling on a CPU spends its time in matrices times a few rows; take those the quick way round.

A linear module multiplies (rows, in) by a (out, in) weight. For the few rows of a decoding step
BLAS repacks the whole weight first; the transposed product reads it as it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

_FEW = 64
"""Rows up to which the transposed product is taken."""


@contextmanager
def quick_decoding(model: nn.Module) -> Iterator[None]:
    """Multiply few rows the quick way while no gradient is recorded; float32 on the CPU only.

    Forwards that record gradients run as ever, so training is left as it is; sampled logits agree
    to rounding.

    Args:
        model: its plain ``nn.Linear`` modules get another forward for a while.
    """
    chosen = [m for m in model.modules() if isinstance(m, nn.Linear) and _plain(m)]
    kept = [module.__dict__.get("forward") for module in chosen]
    for module in chosen:
        module.forward = _quick(module, module.forward)  # type: ignore[method-assign, assignment]  # undone on exit
    try:
        yield
    finally:
        for module, forward in zip(chosen, kept, strict=True):
            if forward is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = forward


def _plain(module: nn.Linear) -> bool:
    weight = module.weight
    return (
        type(module).forward is nn.Linear.forward
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
    )


def _quick(
    module: nn.Linear, forward: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[torch.Tensor], torch.Tensor]:
    def quick(x: torch.Tensor) -> torch.Tensor:
        few = 0 < x.numel() <= _FEW * module.in_features
        if torch.is_grad_enabled() or not few or torch.is_autocast_enabled("cpu"):
            return forward(x)
        out = torch.mm(module.weight, x.reshape(-1, module.in_features).t()).t()
        if module.bias is not None:
            out = out + module.bias
        return out.reshape(*x.shape[:-1], module.out_features)

    return quick
