"""The same two hashes in torch operations, for gradients that are not on the CPU."""

from __future__ import annotations

import torch

from behaviortrace.capture.hashing import Buckets
from behaviortrace.capture.layout import BLOCK, Slot

_LOGICAL = {shift: (1 << (64 - shift)) - 1 for shift in (27, 30, 31)}


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX1 = _signed(0xBF58476D1CE4E5B9)
_MIX2 = _signed(0x94D049BB133111EB)


def _shift(z: torch.Tensor, by: int) -> torch.Tensor:
    return (z >> by) & _LOGICAL[by]


def _mix(z: torch.Tensor) -> torch.Tensor:
    z = (z ^ _shift(z, 30)) * _MIX1
    z = (z ^ _shift(z, 27)) * _MIX2
    return z ^ _shift(z, 31)


def buckets_and_signs(
    buckets: Buckets, slot: Slot, coordinates: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Buckets (int64) and signs (float32, plus or minus 1) of coordinates of a parameter."""
    key = _signed(buckets.key)
    if buckets.coordinate:
        word = _mix(key + (coordinates + slot.index) * _GOLDEN)
        return word & (buckets.dim - 1), torch.where(word < 0, -1.0, 1.0)
    lane = coordinates & (BLOCK - 1)
    seed = key + (slot.block + (coordinates >> 6)) * 2 * _GOLDEN
    bits = (_mix(seed + _GOLDEN) >> lane) & 1
    return ((_mix(seed) & (buckets.dim - 1)) + lane) & (buckets.dim - 1), 1.0 - 2.0 * bits.float()


def add(
    buckets: Buckets, out: torch.Tensor, values: torch.Tensor, slot: Slot, start: int = 0
) -> None:
    """Add coordinates ``start ...`` of a parameter, (rows, n), to (rows, dim) accumulators."""
    where = torch.arange(start, start + values.shape[1], device=values.device)
    bucket, sign = buckets_and_signs(buckets, slot, where)
    out.index_add_(1, bucket, values.float() * sign)


def add_positions(
    buckets: Buckets, out: torch.Tensor, values: torch.Tensor, ids: torch.Tensor, slot: Slot
) -> None:
    """Add embedding gradients (rows, positions, width) at table rows ``ids``; see the CPU twin."""
    width = slot.shape[1]
    lanes = torch.arange(width, device=values.device)
    for row in range(values.shape[0]):
        keep = ids[row] >= 0
        where = (ids[row][keep, None] * width + lanes).reshape(-1)
        bucket, sign = buckets_and_signs(buckets, slot, where)
        out[row].index_add_(0, bucket, values[row][keep].reshape(-1).float() * sign)
