"""What a rule is: how the parameters of one module get their gradients row by row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from behaviortrace.capture.layout import Slot
from behaviortrace.capture.sinks import RowSink

Forward = Callable[..., Any]
"""A module's forward."""


class RowEngine(Protocol):
    """What a rule asks of the engine that drives it.

    Attributes:
        armed: whether a forward that runs now is to be captured.
        sink: where rows' gradients go.
    """

    armed: bool
    sink: RowSink

    def contribute(self, parameter: torch.Tensor | None) -> Slot:
        """The slot of a parameter, for a contribution to its gradient."""

    def gave(self, parameter: torch.Tensor | None, total: torch.Tensor | None) -> None:
        """Note what a contribution adds to ``parameter.grad``."""

    def note_ids(self, weight: torch.Tensor | None, ids: torch.Tensor) -> None:
        """Remember the ids an embedding looked up, until the backward of a head tied to it."""

    def join_tied(self, slot: Slot, ids: torch.Tensor, gy: torch.Tensor) -> torch.Tensor | None:
        """Join a tied weight's two uses at the embedding; the head's weighted sum."""


class Tap(ABC):
    """Takes some parameters' gradients over from autograd, in one module's forward.

    Args:
        module: the module whose forward is wrapped.
        name: its qualified name, for messages.
        method: what is wrapped, if it is not the forward.
    """

    def __init__(self, module: nn.Module, name: str, method: str = "forward") -> None:
        self.module, self.name, self.method = module, name, method

    @abstractmethod
    def parameters(self) -> list[nn.Parameter]:
        """The parameters taken over, each once."""

    @abstractmethod
    def wrap(self, engine: RowEngine, forward: Forward) -> Forward:
        """A forward that captures while the engine is armed, and is the module's own otherwise."""


@contextmanager
def replaced(module: nn.Module, values: dict[str, torch.Tensor]) -> Iterator[None]:
    """Let a module run with other tensors in place of some of its parameters."""
    kept = {name: module._parameters[name] for name in values}
    module._parameters.update(values)  # type: ignore[arg-type]  # a plain tensor serves a forward
    try:
        yield
    finally:
        module._parameters.update(kept)


def handed(
    engine: RowEngine, parameters: Sequence[torch.Tensor], sums: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Weighted sums over rows as autograd takes them, in the parameters' own precision."""
    cast = [None if s is None else s.to(p.dtype) for p, s in zip(parameters, sums, strict=True)]
    for parameter, total in zip(parameters, cast, strict=True):
        engine.gave(parameter, total)
    return cast
