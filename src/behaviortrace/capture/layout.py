"""Where every trainable coordinate sits: one global index per coordinate, tied weights once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

BLOCK = 64
"""Coordinates hashed together by the blockwise hash; every parameter starts on a block."""


@dataclass(frozen=True)
class Slot:
    """One trainable parameter.

    Attributes:
        name: as in ``named_parameters()`` (the first name of a tied weight).
        shape: of the parameter.
        size: number of coordinates.
        index: global index of its first coordinate, counting trainable coordinates in order.
        block: number of its first block; blocks do not cross parameters.
    """

    name: str
    shape: tuple[int, ...]
    size: int
    index: int
    block: int


def slots_of(shapes: Sequence[tuple[str, tuple[int, ...]]]) -> list[Slot]:
    """Slots of named shapes, in order."""
    slots: list[Slot] = []
    index = block = 0
    for name, shape in shapes:
        size = int(torch.Size(shape).numel())
        slots.append(Slot(name, tuple(shape), size, index, block))
        index += size
        block += -(-size // BLOCK)
    return slots


class Layout:
    """Slots of a model's trainable parameters, by parameter identity.

    Args:
        model: parameters with ``requires_grad`` count, in ``named_parameters()`` order; a tied
            weight appears once, under its first name.
    """

    def __init__(self, model: nn.Module) -> None:
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self.slots = slots_of([(n, tuple(p.shape)) for n, p in named])
        self.parameters = [p for _, p in named]
        self._by_id = {id(p): slot for (_, p), slot in zip(named, self.slots, strict=True)}

    @property
    def size(self) -> int:
        """Number of trainable coordinates."""
        return sum(slot.size for slot in self.slots)

    def slot(self, parameter: torch.Tensor | None) -> Slot | None:
        """The parameter's slot, or None if it is not trainable or not the model's."""
        return self._by_id.get(id(parameter))
