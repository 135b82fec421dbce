"""The first k coordinates of every gradient: an embedding that misses what lies elsewhere.

Kept to demonstrate pitfall P3 of the paper; nothing else should use it.
"""

from __future__ import annotations

import numpy as np
import torch

from behaviortrace.capture.layout import Slot
from behaviortrace.capture.sinks import RowSink
from behaviortrace.errors import BehaviorTraceError


class SliceSink(RowSink):
    """Keeps the first coordinates of rows' gradients and drops the rest.

    Args:
        dim: how many coordinates, in ``named_parameters()`` order.

    Raises:
        BehaviorTraceError: ``dim`` is below 1.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim < 1:
            raise BehaviorTraceError(f"slice size {dim} keeps nothing; give 1 or more")
        self.dim = dim
        self._kept = torch.zeros(0)

    def _begin(self, on: torch.device) -> None:
        self._kept = torch.zeros(self.rows, self.dim, device=on)

    def _take(self, slot: Slot, flat: torch.Tensor, start: int) -> None:
        self.squares += (flat.double() ** 2).sum(1)
        at = slot.index + start
        room = max(0, min(flat.shape[1], self.dim - at))
        if room:
            self._kept[:, at : at + room] += flat[:, :room]

    def _take_positions(self, slot: Slot, ids: torch.Tensor, gradients: torch.Tensor) -> None:
        width, room = slot.shape[1], min(slot.size, self.dim - slot.index)
        if room <= 0:
            return
        entries = -(-room // width)  # table rows that the slice reaches, the last one in part
        for row, (row_ids, row_gradients) in enumerate(zip(ids, gradients, strict=True)):
            used = (row_ids >= 0) & (row_ids < entries)
            table = torch.zeros(entries, width, device=gradients.device)
            table.index_add_(0, row_ids[used], row_gradients[used])
            self._kept[row, slot.index : slot.index + room] += table.view(-1)[:room]

    def sketches(self) -> np.ndarray:
        """(rows, dim) float32 of the micro-batch."""
        return self._kept.cpu().numpy()
