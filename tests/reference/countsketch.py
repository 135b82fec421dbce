"""CountSketch coordinate by coordinate in Python integers."""

from __future__ import annotations

import numpy as np

_U64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _U64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _U64
    return z ^ (z >> 31)


def place(kind: str, seed: int, dim: int, index: int, block: int, within: int) -> tuple[int, int]:
    """Bucket and sign of a coordinate.

    Args:
        index: its global index.
        block: first block of its parameter.
        within: its position in the parameter.
    """
    key = mix((seed + _GOLDEN) & _U64)
    if kind == "coordinate":
        word = mix((key + index * _GOLDEN) & _U64)
        return word % dim, -1 if word >> 63 else 1
    seed_word = (key + (block + within // 64) * 2 * _GOLDEN) & _U64
    signs = mix((seed_word + _GOLDEN) & _U64)
    lane = within % 64
    return (mix(seed_word) + lane) % dim, -1 if (signs >> lane) & 1 else 1


def sides(seed: int, dim: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Seed and buckets of the row hash and of the column hash of a kronecker sketch."""
    key, bits = mix((seed + _GOLDEN) & _U64), dim.bit_length() - 1
    rows = 2 ** -(-bits // 2)
    return (mix((key + 1) & _U64), rows), (mix((key + 2) & _U64), dim // rows)


def place_in_matrix(seed: int, dim: int, block: int, i: int, j: int) -> tuple[int, int]:
    """Bucket and sign of entry (i, j) of a matrix under the kronecker hash."""
    (row_seed, rows), (column_seed, columns) = sides(seed, dim)
    row, row_sign = place("block", row_seed, rows, 0, block, i)
    column, column_sign = place("block", column_seed, columns, 0, block, j)
    return row * columns + column, row_sign * column_sign


def sketch(kind: str, seed: int, dim: int, tensors: list[np.ndarray]) -> np.ndarray:
    out = np.zeros(dim)
    index = block = 0
    for tensor in tensors:
        for within, value in enumerate(tensor.reshape(-1)):
            if kind == "kronecker" and tensor.ndim == 2:
                bucket, sign = place_in_matrix(seed, dim, block, *divmod(within, tensor.shape[1]))
            else:
                bucket, sign = place(kind, seed, dim, index + within, block, within)
            out[bucket] += sign * value
        index += tensor.size
        block += -(-tensor.size // 64)
    return out
