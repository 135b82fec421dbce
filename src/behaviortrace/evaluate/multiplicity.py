"""Several estimators judged at once: how sure may one be of each?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's adjusted p-values: reject those at most 0.05 and the chance of any error is 5%.

    It needs no independence, which estimators judged on the same rollouts do not have.

    Args:
        p: shape (n,), p-values; NaN is an undefined test and is left out of the family.

    Returns:
        Shape (n,), at least ``p``, at most 1; NaN where ``p`` is.

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
        [0.03, 0.06, 0.06]
    """
    p = np.asarray(p, dtype=np.float64)
    out = np.full(p.shape, np.nan)
    order = np.argsort(p, kind="stable")[: np.count_nonzero(~np.isnan(p))]
    stepped = p[order] * np.arange(len(order), 0, -1)
    out[order] = np.minimum(1.0, np.maximum.accumulate(stepped))
    return out


def with_holm(frame: pl.DataFrame, family: Sequence[str], claims: pl.Expr) -> pl.DataFrame:
    """The frame with ``p_holm``: its column ``p`` adjusted inside each family.

    Args:
        frame: with a column ``p``; null is an undefined test.
        family: columns whose values name a family.
        claims: which rows are claims; the others, such as controls, get null.
    """
    numbered = frame.with_row_index("row")
    adjusted = np.full(frame.height, np.nan)
    for _, rows in numbered.filter(claims).group_by(*family):
        adjusted[rows["row"].to_numpy()] = holm(rows["p"].fill_null(np.nan).to_numpy())
    return frame.with_columns(pl.Series("p_holm", adjusted).replace(np.nan, None))
