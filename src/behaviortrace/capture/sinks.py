"""Where rows' gradients go, tile by tile: into sketches, or kept whole for tests.

A sink receives the gradient of every row of a micro-batch, parameter by parameter and in pieces
that stay in cache, and returns the weighted sum over rows that the optimizer sees.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch

from behaviortrace.capture import device, kernels
from behaviortrace.capture.layout import BLOCK, Layout, Slot
from behaviortrace.capture.sketch import CountSketch

_TILE = 1 << 20
"""Floats of the workspace of all rows: above it caches overflow, below it calls dominate."""


class RowSink(ABC):
    """Receives rows' gradients; see the module.

    Attributes:
        rows: rows in the micro-batch.
        weight: (rows,) float32; row gradients are multiplied by it when they are summed.
        want_sum: whether the weighted sums are wanted; if not, sums are returned as None.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.weight = torch.ones(0)
        self.want_sum = True
        self.squares = torch.zeros(0, dtype=torch.float64)

    def begin(self, rows: int, on: torch.device) -> None:
        """Start a micro-batch of so many rows."""
        self.rows = rows
        self.weight = torch.ones(rows, device=on)
        self.squares = torch.zeros(rows, dtype=torch.float64, device=on)
        self._begin(on)

    def outer(
        self,
        slot: Slot,
        left: torch.Tensor,
        right: torch.Tensor,
        start: int = 0,
        into: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """Row gradients that are outer products summed over positions.

        Args:
            slot: the parameter.
            left: (rows, positions, a) float32.
            right: (rows, positions, b) float32.
            start: first coordinate of the (a, b) piece in the parameter.
            into: (a, b) float32, contiguous, where the sum is to be written.

        Returns:
            (a, b) float32: the sum over rows of weight x left^T right; None if not wanted.
        """
        a, b = left.shape[2], right.shape[2]
        total = None
        if self.want_sum:
            total = torch.empty(a * b, device=left.device) if into is None else into.view(-1)
        unit = BLOCK // np.gcd(b, BLOCK)
        step = max(unit, _TILE // self.rows // b // unit * unit)
        work = torch.empty(self.rows * min(step, a) * b, device=left.device)
        for at in range(0, a, step):
            n = min(step, a - at)
            tile = work[: self.rows * n * b].view(self.rows, n, b)
            torch.bmm(left[:, :, at : at + n].transpose(1, 2), right, out=tile)
            flat = tile.view(self.rows, n * b)
            self._take(slot, flat, start + at * b)
            if total is not None:
                self._sum(flat, total[at * b : (at + n) * b])
        return None if total is None else total.view(a, b)

    def _sum(self, flat: torch.Tensor, out: torch.Tensor) -> None:
        """Write the weighted sum of (rows, n) to (n,)."""
        if flat.device.type == "cpu":
            kernels.weighted_sum(out.numpy(), flat.numpy(), self.weight.numpy())
        else:
            torch.mv(flat.t(), self.weight, out=out)

    def dense(self, slot: Slot, gradients: torch.Tensor) -> torch.Tensor | None:
        """Row gradients of a whole parameter, (rows, *shape); returns their weighted sum."""
        flat = gradients.reshape(self.rows, -1).float().contiguous()
        self._take(slot, flat, 0)
        return (flat.t() @ self.weight).view(slot.shape) if self.want_sum else None

    def positions(
        self,
        slot: Slot,
        ids: torch.Tensor,
        gradients: torch.Tensor,
        onto: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """Row gradients of a table, given per position; negative ids are skipped.

        Args:
            slot: the table, (entries, width).
            ids: (rows, positions) int64.
            gradients: (rows, positions, width) float32.
            onto: (entries, width) float32, a sum to add to in place.

        Returns:
            (entries, width) float32 weighted sum; None if not wanted.
        """
        used = ids >= 0
        gradients = gradients * used[..., None]
        same = (ids[:, :, None] == ids[:, None, :]).float()
        gram = torch.bmm(gradients, gradients.transpose(1, 2))
        self.squares += (gram * same).sum((1, 2)).double()
        self._take_positions(slot, ids, gradients)
        if not self.want_sum:
            return None
        weighted = gradients * self.weight[:, None, None]
        total = torch.zeros(slot.shape, device=gradients.device) if onto is None else onto
        return total.index_add_(0, ids[used], weighted[used])

    @abstractmethod
    def _begin(self, on: torch.device) -> None: ...

    @abstractmethod
    def _take(self, slot: Slot, flat: torch.Tensor, start: int) -> None:
        """Take (rows, n) coordinates ``start ...`` of a parameter; add to ``squares``."""

    @abstractmethod
    def _take_positions(self, slot: Slot, ids: torch.Tensor, gradients: torch.Tensor) -> None: ...


class SketchSink(RowSink):
    """Sketches rows as they pass; nothing of a gradient is kept.

    Args:
        sketch: what to sketch with.
    """

    def __init__(self, sketch: CountSketch) -> None:
        super().__init__()
        self.sketch = sketch
        self._host: np.ndarray | None = None
        self._device = torch.zeros(0)

    def _begin(self, on: torch.device) -> None:
        if on.type == "cpu":
            kernels.use_threads(torch.get_num_threads())
            self._host = self.sketch.accumulators(self.rows)
        else:
            self._host, self._device = None, torch.zeros(self.rows, self.sketch.dim, device=on)

    def _take(self, slot: Slot, flat: torch.Tensor, start: int) -> None:
        if self._host is not None:
            self.sketch.add(self._host, flat.numpy(), slot, start, self.squares.numpy())
        else:
            self.squares += torch.linalg.vector_norm(flat, dim=1).double() ** 2
            device.add(self.sketch.buckets, self._device, flat, slot, start)

    def _take_positions(self, slot: Slot, ids: torch.Tensor, gradients: torch.Tensor) -> None:
        if self._host is not None:
            values = gradients.contiguous().numpy()
            self.sketch.add_positions(self._host, values, ids.contiguous().numpy(), slot)
        else:
            device.add_positions(self.sketch.buckets, self._device, gradients, ids, slot)

    def sketches(self) -> np.ndarray:
        """(rows, dim) float32 of the micro-batch."""
        if self._host is not None:
            return self.sketch.fold(self._host)
        return self._device.cpu().numpy()


class KroneckerSink(SketchSink):
    """Sketches matrices from their factors; a rollout's gradient is never formed.

    Norms of rows are then not known exactly: ``squares`` is NaN.

    Args:
        sketch: with hash "kronecker".
    """

    def __init__(self, sketch: CountSketch) -> None:
        super().__init__(sketch)
        self._grid = sketch.grid

    def _begin(self, on: torch.device) -> None:
        super()._begin(on)
        self.squares.fill_(torch.nan)
        self._out = self._device if self._host is None else torch.from_numpy(self._host)

    def outer(
        self,
        slot: Slot,
        left: torch.Tensor,
        right: torch.Tensor,
        start: int = 0,
        into: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """See :meth:`RowSink.outer`."""
        self._grid.add_outer(self._out, slot, left, right, start)
        if not self.want_sum:
            return None
        flat = (left * self.weight[:, None, None]).flatten(0, 1)
        return torch.mm(flat.t(), right.flatten(0, 1), out=into)

    def _take(self, slot: Slot, flat: torch.Tensor, start: int) -> None:
        if len(slot.shape) == 2:
            self._grid.add_whole(self._out, slot, flat.unflatten(1, (-1, slot.shape[1])), start)
        else:
            super()._take(slot, flat, start)

    def _take_positions(self, slot: Slot, ids: torch.Tensor, gradients: torch.Tensor) -> None:
        self._grid.add_positions(self._out, slot, ids, gradients)


def sink_for(sketch: CountSketch) -> SketchSink:
    """The sink that sketches rows with a sketch."""
    return KroneckerSink(sketch) if sketch.hash == "kronecker" else SketchSink(sketch)


class ExactSink(RowSink):
    """Keeps every row's whole gradient: for tests and small models.

    Args:
        layout: of the model.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self._gradients = torch.zeros(0)

    def _begin(self, on: torch.device) -> None:
        self._gradients = torch.zeros(self.rows, self.layout.size, device=on)

    def _take(self, slot: Slot, flat: torch.Tensor, start: int) -> None:
        self.squares += (flat.double() ** 2).sum(1)
        at = slot.index + start
        self._gradients[:, at : at + flat.shape[1]] += flat

    def _take_positions(self, slot: Slot, ids: torch.Tensor, gradients: torch.Tensor) -> None:
        table = self._gradients[:, slot.index : slot.index + slot.size].view(-1, *slot.shape)
        for row, (row_ids, row_gradients) in enumerate(zip(ids, gradients, strict=True)):
            used = row_ids >= 0
            table[row].index_add_(0, row_ids[used], row_gradients[used])

    def gradients(self) -> torch.Tensor:
        """(rows, coordinates) float32 of the micro-batch, in the layout's order."""
        return self._gradients
