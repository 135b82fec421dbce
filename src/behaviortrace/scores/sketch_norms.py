"""How well the stored sketches keep norms: each rollout's own, against the exact one beside it.

The norm of a rollout's gradient is taken from the gradient itself as it is sketched, so every
stored rollout is a test of its sketch, at no cost. Of a CountSketch the squared norm has the
mean of the exact one and a variance of at most 2 / dim of its square (Charikar et al., 2002).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

NAME = "results/sketch_norms"
FORMED_NEVER = "kronecker"
"""The hash under which gradients are never formed, so that their norms are the sketches'."""


def squared_norm_errors(sketches: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Squared norm of each sketch over the exact one, minus 1.

    Args:
        sketches: (n, dim); rows that are not defined are NaN.
        norms: (n,) exact norms; rows whose norm is zero or not known are left out.

    Returns:
        (m,) float64, m at most n.

    Example:
        >>> squared_norm_errors(np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([5.0, 0.0])).tolist()
        [0.0]
    """
    known = np.isfinite(norms) & (norms > 0) & ~np.isnan(sketches[:, 0])
    rows, size = sketches[known], norms[known]
    squares = np.array([float(np.vdot(row, row)) for row in rows.astype(np.float64, copy=False)])
    return squares / size**2 - 1


def summarise(errors: Sequence[np.ndarray], sketch: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the errors of all sources say together.

    Args:
        errors: of each source, (m,).
        sketch: the manifest's: ``dim`` and ``hash``.

    Returns:
        ``hash``, ``dim``, ``rollouts`` (that were compared), ``rms`` and ``mean`` of their errors
        (None where none was), and ``expected``, the root mean square under theory.
    """
    sketch = sketch or {}
    dim = sketch.get("dim")
    found = np.concatenate([*errors, np.empty(0)])
    return {
        "hash": sketch.get("hash"),
        "dim": dim,
        "rollouts": len(found),
        "rms": math.sqrt(float(np.mean(found**2))) if len(found) else None,
        "mean": float(found.mean()) if len(found) else None,
        "expected": math.sqrt(2 / dim) if dim else None,
    }
