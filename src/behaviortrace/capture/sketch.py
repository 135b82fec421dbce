"""CountSketch of gradients: linear, unbiased for inner products, blind to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch

from behaviortrace.capture import kernels
from behaviortrace.capture.hashing import Buckets, hash_key
from behaviortrace.capture.kronecker import Grid
from behaviortrace.capture.layout import BLOCK, Slot, slots_of
from behaviortrace.errors import BehaviorTraceError

Hash = Literal["block", "coordinate", "kronecker"]
"""How coordinates find their buckets; see :class:`CountSketch`."""


@dataclass(frozen=True)
class CountSketch:
    """CountSketch (Charikar et al., 2002) of a whole gradient to ``dim`` buckets.

    Every coordinate goes to one bucket with a sign, both from a splitmix64 finalizer of its index
    and the seed. Linear; inner products are unbiased with standard deviation about
    ``|a||b| / sqrt(dim)``.

    Args:
        dim: buckets, a power of two of at least 64.
        seed: of the hash.
        hash: "block" hashes 64 consecutive coordinates at a time (see
            :mod:`behaviortrace.capture.kernels`); "coordinate" hashes each by its global index;
            "kronecker" hashes rows and columns of a matrix apart (see
            :mod:`behaviortrace.capture.kronecker`), which never forms a rollout's gradient: for
            models too large for the others, with a larger error.

    Raises:
        BehaviorTraceError: if ``dim`` or ``hash`` is not as above.

    Example:
        >>> import torch
        >>> CountSketch(1024, seed=0).sketch([torch.ones(3, 5), torch.ones(7)]).shape
        torch.Size([1024])
    """

    dim: int = 65_536
    seed: int = 0
    hash: Hash = "block"

    def __post_init__(self) -> None:
        if self.dim < 64 or self.dim & (self.dim - 1):
            raise BehaviorTraceError(
                f"sketch dim {self.dim} must be a power of two of at least 64, such as 65536"
            )
        if self.hash not in get_args(Hash):
            raise BehaviorTraceError(
                f"sketch hash {self.hash!r} is unknown; choose 'block', 'coordinate' or 'kronecker'"
            )
        if self.hash == "kronecker" and self.dim < BLOCK**2:
            raise BehaviorTraceError(
                f"sketch dim {self.dim} is too small for hash 'kronecker', whose grid needs "
                f"{BLOCK**2}; raise dim or choose hash 'block'"
            )

    @cached_property
    def buckets(self) -> Buckets:
        """The hash of whatever is no matrix; of everything, unless the hash is "kronecker"."""
        return Buckets(self.dim, hash_key(self.seed), self.hash == "coordinate")

    @cached_property
    def grid(self) -> Grid:
        """The hash of matrices, for the hash "kronecker"."""
        return Grid(self.dim, hash_key(self.seed))

    def spec(self) -> dict[str, Any]:
        """What the manifest records: enough to sketch again alike."""
        return {"dim": self.dim, "seed": self.seed, "hash": self.hash}

    def accumulators(self, rows: int) -> np.ndarray:
        """Zeroed (rows, dim + 64) float32 accumulators."""
        return self.buckets.accumulators(rows)

    def add(
        self,
        out: np.ndarray,
        values: np.ndarray,
        slot: Slot,
        start: int = 0,
        squares: np.ndarray | None = None,
    ) -> None:
        """Add coordinates ``start ...`` of a parameter to accumulators.

        Args:
            out: (rows, dim + 64) float32, changed in place.
            values: (rows, n) float32, C-contiguous in its last axis.
            slot: the parameter.
            start: first coordinate in the parameter; a multiple of 64 for the block hash, and of
                64 rows for a matrix and the kronecker hash.
            squares: (rows,) float64, to which each row's sum of squares is added.
        """
        if squares is None:
            squares = np.zeros(len(values))
        if self.hash == "kronecker" and len(slot.shape) == 2:
            matrix = torch.from_numpy(values).unflatten(1, (-1, slot.shape[1]))
            squares += torch.linalg.vector_norm(matrix, dim=(1, 2)).double().numpy() ** 2
            self.grid.add_whole(torch.from_numpy(out), slot, matrix, start)
            return
        self.buckets.add(out, squares, values, slot, start)

    def add_positions(
        self, out: np.ndarray, values: np.ndarray, ids: np.ndarray, slot: Slot
    ) -> None:
        """Add embedding gradients: position t of row r adds its vector at table row ids[r, t].

        Args:
            out: (rows, dim + 64) float32, changed in place.
            values: (rows, positions, width) float32.
            ids: (rows, positions) int64; negative ids are skipped.
            slot: the table, of shape (entries, width).
        """
        if self.hash == "kronecker":
            table, where = torch.from_numpy(out), torch.from_numpy(ids)
            self.grid.add_positions(table, slot, where, torch.from_numpy(values))
        else:
            self.buckets.add_positions(out, values, ids, slot)

    def fold(self, out: np.ndarray) -> np.ndarray:
        """The (rows, dim) sketches held by accumulators."""
        return kernels.fold(out, self.dim)

    def sketch(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Sketch one gradient given as a list of tensors, in ``named_parameters()`` order.

        Args:
            gradients: one tensor a trainable parameter, of the parameter's shape.

        Returns:
            (dim,) float32 on the CPU.
        """
        slots = slots_of([(str(i), tuple(g.shape)) for i, g in enumerate(gradients)])
        out = self.accumulators(1)
        for slot, gradient in zip(slots, gradients, strict=True):
            flat = gradient.detach().to("cpu", torch.float32).reshape(1, -1).contiguous()
            if slot.size:
                self.add(out, flat.numpy(), slot)
        return torch.from_numpy(self.fold(out)[0])
