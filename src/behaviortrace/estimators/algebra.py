"""Products of large, possibly memory-mapped float32 matrices, in float64 and without copies.

Every row's result depends on that row alone, to the last bit, so equal rows stay tied.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

_GRAM_COLUMNS = 4096
_GRAM_FLOAT64_ROWS = 4096  # above this the blocks are multiplied in float32, added in float64
_TILE = 2048  # columns of a row, which stay in cache while all vectors are multiplied with them


def products(matrix: np.ndarray, vectors: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Norm of every row, and its inner product with each vector, in one pass over the matrix.

    Args:
        matrix: (n, dim) float32; a memory map is read once and not copied.
        vectors: each (dim,).

    Returns:
        norms, (n,) float64, and one (n,) float64 array a vector. NaN rows give NaN.
    """
    n, dim = matrix.shape
    wide = np.empty((len(vectors), dim))
    for row, vector in zip(wide, vectors, strict=True):
        row[:] = vector
    squares, dots = np.zeros(n), np.zeros((n, len(vectors)))
    _add_products(np.asarray(matrix), wide, squares, dots, _TILE)
    return np.sqrt(squares), [np.ascontiguousarray(column) for column in dots.T]


@njit(parallel=True, fastmath={"reassoc", "contract"}, cache=True, nogil=True)
def _add_products(matrix: Any, vectors: Any, squares: Any, dots: Any, tile: int) -> None:
    n, dim = matrix.shape
    for i in prange(n):
        for start in range(0, dim, tile):
            stop = min(start + tile, dim)
            square = 0.0
            for j in range(start, stop):
                square += np.float64(matrix[i, j]) * np.float64(matrix[i, j])
            squares[i] += square
            for k in range(vectors.shape[0]):
                dot = 0.0
                for j in range(start, stop):
                    dot += np.float64(matrix[i, j]) * vectors[k, j]
                dots[i, k] += dot


def gram(matrix: np.ndarray) -> np.ndarray:
    """Inner products of all rows with each other, (n, n) float64.

    Takes 8 n^2 bytes for the result and as much again while it runs.

    Args:
        matrix: (n, dim) float32.
    """
    n, dim = matrix.shape
    dtype: type[np.floating] = np.float64 if n <= _GRAM_FLOAT64_ROWS else np.float32
    out = np.zeros((n, n))
    for start in range(0, dim, _GRAM_COLUMNS):
        columns = slice(start, start + _GRAM_COLUMNS)
        block: np.ndarray = np.ascontiguousarray(matrix[:, columns], dtype=dtype)
        out += block @ block.T
    return out
