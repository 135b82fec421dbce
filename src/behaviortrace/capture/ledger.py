"""Whether the taps account for every gradient: what they hand over against what arrives.

A parameter that is used past the module that was tapped for it gets a share of its gradient that
no row would show.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from behaviortrace.capture.layout import Layout, Slot
from behaviortrace.errors import BehaviorTraceError

_EXACT, _ROUNDED = 1e-4, 2e-2  # relative difference that summing explains: fp32, else


class Ledger:
    """Compares, over a micro-batch, what was handed over with the gradient there is.

    Args:
        layout: of the model.
        watched: parameters whose whole gradient is compared. Of the others it is only found out
            where all of it comes from elsewhere, which costs nothing.
    """

    def __init__(self, layout: Layout, watched: Sequence[nn.Parameter]) -> None:
        self.layout, self._watched = layout, watched
        self._handed: dict[int, torch.Tensor | None] = {}
        self._before: dict[int, torch.Tensor] = {}
        self._after: dict[int, torch.Tensor] = {}
        self._without: list[tuple[Slot, nn.Parameter]] = []
        self._hooks: list[RemovableHandle] = []

    def open(self) -> None:
        """Listen to the watched parameters' gradients."""
        for parameter in self._watched:
            # Right after it is added to, and before other processes' gradients are.
            hook = parameter.register_post_accumulate_grad_hook(self._keep)
            self._hooks.append(hook)

    def close(self) -> None:
        """Stop listening."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _keep(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._after[id(parameter)] = parameter.grad.detach().clone()

    def begin(self) -> None:
        """Start a micro-batch."""
        self._handed = {id(p): None for p in self._watched}
        self._before = {id(p): p.grad.clone() for p in self._watched if p.grad is not None}
        self._after = {}
        pairs = zip(self.layout.slots, self.layout.parameters, strict=True)
        self._without = [(slot, p) for slot, p in pairs if p.grad is None]

    def gave(self, parameter: torch.Tensor, total: torch.Tensor | None) -> None:
        """Note what a tap hands over to autograd."""
        key = id(parameter)
        if total is not None and key in self._handed:
            before = self._handed[key]
            self._handed[key] = total if before is None else before + total

    def check(self, contributed: Collection[str], uncovered: Collection[str]) -> None:
        """End the micro-batch.

        Args:
            contributed: names of the parameters that rows contributed to.
            uncovered: names of those that may get gradients from elsewhere.

        Raises:
            BehaviorTraceError: a parameter got a gradient that no row accounts for, by name.
        """
        for parameter in self._watched:
            self._compare(parameter)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return  # there a gradient may come from another process
        for slot, parameter in self._without:
            if parameter.grad is None or slot.name in contributed or slot.name in uncovered:
                continue
            if bool(parameter.grad.any()):
                raise _refusal(slot.name, "all")

    def _compare(self, parameter: nn.Parameter) -> None:
        key = id(parameter)
        after, before, handed = self._after.get(key), self._before.get(key), self._handed[key]
        if after is None:
            return  # the micro-batch has no gradient for it
        arrived = after if before is None else after - before
        rest = arrived if handed is None else arrived - handed
        rounded = arrived.norm() if before is None else arrived.norm() + before.norm()
        precise = parameter.dtype in (torch.float32, torch.float64)
        if not float(rest.norm()) <= (_EXACT if precise else _ROUNDED) * float(rounded):
            slot = self.layout.slot(parameter)
            share = f"{float(rest.norm()) / float(arrived.norm()):.1%}"
            raise _refusal("" if slot is None else slot.name, share)


def _refusal(name: str, share: str) -> BehaviorTraceError:
    return BehaviorTraceError(
        f"{share} of the gradient of {name!r} is no row's: the parameter is used outside the "
        "module it belongs to, or a hook changes its gradient; freeze it"
    )
