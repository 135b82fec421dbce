"""Buckets and signs of coordinates: what every hash of a sketch is made of.

Compiled loops on the CPU are in :mod:`behaviortrace.capture.kernels`, the same in torch operations
in :mod:`behaviortrace.capture.device`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from behaviortrace.capture import kernels
from behaviortrace.capture.layout import BLOCK, Slot

_U64 = (1 << 64) - 1


def mix(z: int) -> int:
    """The splitmix64 finalizer of an integer, below 2**64."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _U64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _U64
    return z ^ (z >> 31)


def hash_key(seed: int) -> int:
    """The key of a hash, from its seed."""
    return mix((seed + 0x9E3779B97F4A7C15) & _U64)


@dataclass(frozen=True)
class Buckets:
    """Sends every coordinate of a parameter to one of ``dim`` buckets, with a sign.

    Args:
        dim: buckets, a power of two of at least 64.
        key: of the hash, below 2**64.
        coordinate: hash each coordinate by its global index, not 64 consecutive ones at a time.
    """

    dim: int
    key: int
    coordinate: bool = False

    def accumulators(self, rows: int) -> np.ndarray:
        """Zeroed (rows, dim + 64) float32 accumulators."""
        return np.zeros((rows, self.dim + 64), np.float32)

    def add(
        self, out: np.ndarray, squares: np.ndarray, values: np.ndarray, slot: Slot, start: int = 0
    ) -> None:
        """Add coordinates ``start ...`` of a parameter to accumulators.

        Args:
            out: (rows, dim + 64) float32, changed in place.
            squares: (rows,) float64, to which each row's sum of squares is added.
            values: (rows, n) float32, C-contiguous in its last axis.
            slot: the parameter.
            start: first coordinate in the parameter; on a block unless each is hashed by itself.
        """
        mask, key = np.uint64(self.dim - 1), np.uint64(self.key)
        if self.coordinate:
            kernels.coordinate_rows(out, squares, values, slot.index + start, mask, key)
            return
        if start % BLOCK:
            raise ValueError(f"start {start} is not a multiple of {BLOCK}")
        kernels.block_rows(out, squares, values, slot.block + start // BLOCK, mask, key)

    def add_positions(
        self, out: np.ndarray, values: np.ndarray, ids: np.ndarray, slot: Slot
    ) -> None:
        """Add embedding gradients; see :meth:`CountSketch.add_positions`."""
        mask, key, width = np.uint64(self.dim - 1), np.uint64(self.key), slot.shape[1]
        if self.coordinate:
            kernels.coordinate_positions(out, values, ids, width, slot.index, mask, key)
        else:
            kernels.block_positions(out, values, ids, width, slot.block, mask, key)
