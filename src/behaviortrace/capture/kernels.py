"""Compiled CPU loops of the sketch.

Both hashes come from the splitmix64 finalizer. *Coordinate*: bucket and sign of every coordinate
from its own global index. *Block*: 64 consecutive coordinates share one random start bucket and
take consecutive buckets from there, each with its own sign bit; coordinates of different blocks
still collide with probability 1/dim, those of one block never, and signs are independent, so mean
and variance of inner products are CountSketch's, while the scatter becomes contiguous adds.

Accumulators have ``dim + 64`` columns so that a block never wraps inside the loop; :func:`fold`
adds the tail back to the front. Rows are independent, so results do not depend on threads.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import njit, prange

numba.config.THREADING_LAYER = "omp"

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_TWO, _S30, _S27, _S31, _S32, _S63 = (np.uint64(v) for v in (2, 30, 27, 31, 32, 63))
_LANES, _HALF = np.uint64(64), np.uint64(32)
_TOP, _SIGN = np.uint32(31), np.uint32(0x80000000)

_INNER: dict[str, Any] = {
    "nogil": True,
    "boundscheck": False,
    "error_model": "numpy",
    "cache": True,
}


@njit(inline="always", cache=True)
def mix(z: Any) -> Any:
    """The splitmix64 finalizer."""
    z = (z ^ (z >> _S30)) * _MIX1
    z = (z ^ (z >> _S27)) * _MIX2
    return z ^ (z >> _S31)


@njit(**_INNER)
def _half_block(out: Any, bits: Any, signs: Any) -> None:
    """Add 32 signed values; ``bits`` are float32 seen as int32, so the sign is one XOR."""
    for lane in range(32):
        u = np.uint32(lane)
        flip = np.int32((signs << (_TOP - u)) & _SIGN)
        out[u] = out[u] + np.int32(bits[u] ^ flip).view(np.float32)


@njit(fastmath={"reassoc", "contract"}, **_INNER)
def _squares(values: Any) -> Any:
    total = np.float32(0.0)
    for i in range(values.shape[0]):
        total += values[i] * values[i]
    return total


@njit(**_INNER)
def _block_row(out: Any, bits: Any, values: Any, block: Any, mask: Any, key: Any) -> Any:
    n = bits.shape[0]
    squares = 0.0
    for b in range(n // 64):
        word = key + np.uint64(block + b) * _TWO * GOLDEN
        start = mix(word) & mask
        signs = mix(word + GOLDEN)
        at = np.uint64(b) * _LANES
        _half_block(out[start : start + _HALF], bits[at : at + _HALF], np.uint32(signs))
        _half_block(
            out[start + _HALF : start + _LANES],
            bits[at + _HALF : at + _LANES],
            np.uint32(signs >> _S32),
        )
        squares += _squares(values[at : at + _LANES])
    rest = n // 64 * 64
    if rest < n:
        squares += _squares(values[rest:])
        word = key + np.uint64(block + n // 64) * _TWO * GOLDEN
        start = mix(word) & mask
        signs = mix(word + GOLDEN)
        for i in range(rest, n):
            lane = np.uint64(i - rest)
            value = np.int32(bits[i]).view(np.float32)
            out[start + lane] += -value if (signs >> lane) & np.uint64(1) else value
    return squares


@njit(parallel=True, **_INNER)
def block_rows(
    out: Any, squares: Any, values: Any, bits: Any, block: Any, mask: Any, key: Any
) -> None:
    """Sketch rows of coordinates that start on a block, and sum their squares.

    Args:
        out: (rows, dim + 64) float32 accumulators, added to.
        squares: (rows,) float64, added to.
        values: (rows, n) float32.
        bits: the same seen as int32.
        block: number of the first block.
        mask: dim - 1, uint64.
        key: hash key, uint64.
    """
    for r in prange(bits.shape[0]):
        squares[r] += _block_row(out[r], bits[r], values[r], block, mask, key)


@njit(parallel=True, **_INNER)
def block_positions(
    out: Any, values: Any, ids: Any, width: Any, block: Any, mask: Any, key: Any
) -> None:
    """Sketch rows of an embedding: position t of row r adds its vector at table row ids[r, t].

    Args:
        out: (rows, dim + 64) float32 accumulators, added to.
        values: (rows, positions, width) float32.
        ids: (rows, positions) int64; negative ids are skipped.
        width: of the table.
        block, mask, key: as in :func:`block_rows`, of the table.
    """
    for r in prange(values.shape[0]):
        for t in range(values.shape[1]):
            if ids[r, t] < 0:
                continue
            first = np.uint64(ids[r, t]) * np.uint64(width)
            for j in range(width):
                c = first + np.uint64(j)
                lane = c & np.uint64(63)
                word = key + (np.uint64(block) + (c >> np.uint64(6))) * _TWO * GOLDEN
                at = (mix(word) & mask) + lane
                value = values[r, t, j]
                out[r, at] += -value if (mix(word + GOLDEN) >> lane) & np.uint64(1) else value


@njit(parallel=True, **_INNER)
def coordinate_rows(out: Any, squares: Any, values: Any, index: Any, mask: Any, key: Any) -> None:
    """Sketch rows of consecutive coordinates, each hashed by itself, and sum their squares.

    Args:
        out: (rows, dim + 64) float32 accumulators, added to.
        squares: (rows,) float64, added to.
        values: (rows, n) float32.
        index: global index of the first coordinate.
        mask: dim - 1, uint64.
        key: hash key, uint64.
    """
    for r in prange(values.shape[0]):
        total = 0.0
        for i in range(values.shape[1]):
            h = mix(key + (np.uint64(index) + np.uint64(i)) * GOLDEN)
            value = values[r, i]
            total += np.float64(value) * np.float64(value)
            out[r, h & mask] += -value if h >> _S63 else value
        squares[r] += total


@njit(parallel=True, **_INNER)
def coordinate_positions(
    out: Any, values: Any, ids: Any, width: Any, index: Any, mask: Any, key: Any
) -> None:
    """As :func:`block_positions`, each coordinate hashed by itself."""
    for r in prange(values.shape[0]):
        for t in range(values.shape[1]):
            if ids[r, t] < 0:
                continue
            first = np.uint64(index) + np.uint64(ids[r, t]) * np.uint64(width)
            for j in range(width):
                h = mix(key + (first + np.uint64(j)) * GOLDEN)
                value = values[r, t, j]
                out[r, h & mask] += -value if h >> _S63 else value


def fold(out: np.ndarray, dim: int) -> np.ndarray:
    """The (rows, dim) sketch of accumulators with a 64-wide tail."""
    folded = out[:, :dim].copy()
    folded[:, :64] += out[:, dim:]
    return folded
