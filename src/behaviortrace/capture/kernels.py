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
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic

numba.config.THREADING_LAYER = "omp"

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_TWO, _S30, _S27, _S31, _S32, _S63 = (np.uint64(v) for v in (2, 30, 27, 31, 32, 63))
_LANES, _BYTES = np.uintp(64), np.uintp(4)
_WIDTH = 8  # lanes of a vector
_PIECE = 4096  # columns summed at a time
_FUSED = ("contract",)  # multiply and add may round once

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


def use_threads(count: int) -> None:
    """Let the loops use as many threads as the caller's other work, such as torch's."""
    numba.set_num_threads(max(1, min(count, numba.config.NUMBA_NUM_THREADS)))


@intrinsic
def _add_block(context: Any, out: Any, values: Any, signs: Any) -> Any:
    """Add 64 signed values at one address to 64 at another; returns their sum of squares.

    Written as LLVM vectors of eight, which every target has instructions for: from a plain loop
    the compiler makes code that counts references and checks for overlap in every block, which
    costs more than the adding. The sign is applied as one XOR.
    """
    signature = types.float32(types.uintp, types.uintp, types.uint64)

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        target, source, word = arguments
        integers = ir.VectorType(ir.IntType(32), _WIDTH)
        floats = ir.VectorType(ir.FloatType(), _WIDTH)
        unknown, zero = ir.Constant(integers, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        total = ir.Constant(floats, [0.0] * _WIDTH)
        for first in range(0, 64, _WIDTH):
            bits = builder.trunc(builder.lshr(word, ir.Constant(word.type, first)), ir.IntType(32))
            same = builder.insert_element(unknown, bits, zero)
            same = builder.shuffle_vector(same, unknown, ir.Constant(integers, [0] * _WIDTH))
            moved = builder.shl(same, ir.Constant(integers, [31 - i for i in range(_WIDTH)]))
            flip = builder.and_(moved, ir.Constant(integers, [1 << 31] * _WIDTH))
            offset = ir.Constant(source.type, 4 * first)
            at = builder.inttoptr(builder.add(source, offset), floats.as_pointer())
            x = builder.load(at, align=4)
            signed = builder.bitcast(builder.xor(builder.bitcast(x, integers), flip), floats)
            at = builder.inttoptr(builder.add(target, offset), floats.as_pointer())
            builder.store(builder.fadd(builder.load(at, align=4), signed), at, align=4)
            total = builder.fadd(total, builder.fmul(x, x, flags=_FUSED), flags=_FUSED)
        half = _WIDTH // 2
        while half:
            turned = ir.Constant(integers, [(i + half) % _WIDTH for i in range(_WIDTH)])
            total = builder.fadd(total, builder.shuffle_vector(total, total, turned))
            half //= 2
        return builder.extract_element(total, zero)

    return signature, generate


@njit(inline="never", **_INNER)
def _block_row(out: Any, values: Any, blocks: Any, block: Any, mask: Any, key: Any) -> Any:
    """Add so many whole blocks at an address to the accumulator at another; sum of squares."""
    squares = 0.0
    for b in range(blocks):
        word = key + np.uint64(block + b) * _TWO * GOLDEN
        at = out + np.uintp(mix(word) & mask) * _BYTES
        squares += _add_block(at, values + np.uintp(b) * _LANES * _BYTES, mix(word + GOLDEN))
    return squares


@njit(**_INNER)
def _block_rest(out: Any, values: Any, block: Any, mask: Any, key: Any) -> Any:
    """The same for the last block of a parameter, of fewer than 64 values."""
    squares = np.float32(0.0)
    word = key + np.uint64(block) * _TWO * GOLDEN
    start = mix(word) & mask
    signs = mix(word + GOLDEN)
    for i in range(values.shape[0]):
        value = values[i]
        squares += value * value
        out[start + np.uint64(i)] += -value if (signs >> np.uint64(i)) & np.uint64(1) else value
    return squares


@njit(parallel=True, **_INNER)
def block_rows(out: Any, squares: Any, values: Any, block: Any, mask: Any, key: Any) -> None:
    """Sketch rows of coordinates that start on a block, and sum their squares.

    Args:
        out: (rows, dim + 64) float32 accumulators, added to.
        squares: (rows,) float64, added to.
        values: (rows, n) float32, contiguous in its last axis.
        block: number of the first block.
        mask: dim - 1, uint64.
        key: hash key, uint64.
    """
    blocks = values.shape[1] // 64
    to, stride = np.uintp(out.ctypes.data), np.uintp(out.strides[0])
    of, step = np.uintp(values.ctypes.data), np.uintp(values.strides[0])
    for r in prange(values.shape[0]):
        row = np.uintp(r)
        squares[r] += _block_row(to + row * stride, of + row * step, blocks, block, mask, key)
        if blocks * 64 < values.shape[1]:
            squares[r] += _block_rest(out[r], values[r, blocks * 64 :], block + blocks, mask, key)


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


@njit(parallel=True, fastmath={"contract"}, **_INNER)
def weighted_sum(total: Any, values: Any, weight: Any) -> None:
    """Sum rows times their weights; what a matrix-vector product of a wide, short matrix is.

    A BLAS has no fast path for so few rows. Columns go in pieces that stay in the first cache, so
    the values are read once; a column is summed in the order of its rows, whatever the threads.

    Args:
        total: (n,) float32, overwritten.
        values: (rows, n) float32, at least one row, contiguous in its last axis.
        weight: (rows,) float32.
    """
    n = values.shape[1]
    for piece in prange((n + _PIECE - 1) // _PIECE):
        first = piece * _PIECE
        last = min(n, first + _PIECE)
        out = total[first:last]
        row, factor = values[0, first:last], weight[0]
        for i in range(last - first):
            out[i] = factor * row[i]
        for r in range(1, values.shape[0]):
            row, factor = values[r, first:last], weight[r]
            for i in range(last - first):
                out[i] += factor * row[i]


def fold(out: np.ndarray, dim: int) -> np.ndarray:
    """The (rows, dim) sketch of accumulators with a 64-wide tail."""
    folded = out[:, :dim].copy()
    folded[:, :64] += out[:, dim:]
    return folded
