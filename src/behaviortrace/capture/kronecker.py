"""The product hash: a matrix is sketched by its rows and its columns, without being formed.

A coordinate (i, j) of a matrix goes to bucket (h(i), g(j)) of a grid with sign s(i) r(j), so the
sketch of an outer product is the outer product of two short sketches, and the gradient of a linear
module costs two thin projections and one small product instead of a full matrix a rollout. All
matrices of a model share one grid; vectors are hashed as ever. Linear and unbiased like the other
hashes, but coordinates of one row of a matrix collide with probability 1/columns of the grid and
not 1/dim, so the error is larger the fewer matrices a model has.

Source: Kronecker-structured count sketches (Pagh, 2013, without its convolution), shared over
modules.
"""

from __future__ import annotations

import numpy as np
import torch

from behaviortrace.capture import device, kernels
from behaviortrace.capture.hashing import Buckets, hash_key, mix
from behaviortrace.capture.layout import BLOCK, Slot


class Grid:
    """Hashes of a matrix's rows and of its columns, on one (rows, columns) grid of buckets.

    Args:
        dim: buckets of the grid, a power of two of at least 64 * 64.
        key: of the sketch.
    """

    def __init__(self, dim: int, key: int) -> None:
        bits = dim.bit_length() - 1
        rows = 1 << (bits + 1) // 2
        sides = (rows, dim // rows)
        self.left, self.right = (
            Buckets(size, hash_key(mix((key + side) % (1 << 64))))
            for side, size in enumerate(sides, start=1)
        )

    def of(self, out: torch.Tensor) -> torch.Tensor:
        """(n, rows, columns) view of (n, at least dim) accumulators."""
        size = self.left.dim * self.right.dim
        return out[:, :size].unflatten(1, (self.left.dim, self.right.dim))

    def add_outer(
        self,
        out: torch.Tensor,
        slot: Slot,
        left: torch.Tensor,
        right: torch.Tensor,
        start: int = 0,
    ) -> None:
        """Add, for each row, the sum over positions of left x right.

        Args:
            out: (n, at least dim) float32, changed in place.
            slot: the matrix.
            left: (n, positions, a) float32.
            right: (n, positions, b) float32; b is the matrix's number of columns.
            start: first coordinate of the (a, b) piece in the matrix, on a row and a block of rows.
        """
        rows = self._short(self.left, slot, left, start // right.shape[2])
        columns = self._short(self.right, slot, right, 0)
        self.of(out).baddbmm_(rows.transpose(1, 2), columns)

    def add_positions(
        self, out: torch.Tensor, slot: Slot, ids: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Add embedding gradients; see :meth:`CountSketch.add_positions`."""
        bucket, sign = device.buckets_and_signs(self.left, slot, ids.clamp(min=0))
        rows = torch.zeros(*ids.shape, self.left.dim, device=values.device)
        rows.scatter_(2, bucket[..., None], (sign * (ids >= 0))[..., None])
        columns = self._short(self.right, slot, values, 0)
        self.of(out).baddbmm_(rows.transpose(1, 2), columns)

    def add_whole(
        self, out: torch.Tensor, slot: Slot, values: torch.Tensor, start: int = 0
    ) -> None:
        """Add pieces of a matrix, (n, a, b) float32, that begin at coordinate ``start``."""
        columns = self._short(self.right, slot, values, 0)
        rows = columns.transpose(1, 2)
        both = self._short(self.left, slot, rows, start // values.shape[2])
        self.of(out).add_(both.transpose(1, 2))

    def _short(self, side: Buckets, slot: Slot, values: torch.Tensor, first: int) -> torch.Tensor:
        """Sketch the last axis of (n, positions, size) values whose first entry is ``first``."""
        if first % BLOCK:
            raise ValueError(f"row {first} is not a multiple of {BLOCK}")
        flat = values.reshape(-1, values.shape[-1]).float().contiguous()
        if flat.device.type == "cpu":
            host = side.accumulators(len(flat))
            side.add(host, np.zeros(len(flat)), flat.numpy(), slot, first)
            short = torch.from_numpy(kernels.fold(host, side.dim))
        else:
            short = torch.zeros(len(flat), side.dim, device=flat.device)
            device.add(side, short, flat, slot, first)
        return short.view(*values.shape[:-1], side.dim)
