"""What the leave-outs of several training runs say together: Student's t over their seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from scipy import special

from behaviortrace.causes.effects import CURVES, EFFECTS, LDS, halving
from behaviortrace.evaluate.bootstrap import LEVEL, Interval
from behaviortrace.run import Run

_FEWEST = 3  # seeds that an interval needs
_EFFECT = ("mode", "how", "removal", "targeted", "control")
_LDS = ("ranking", "target_free", "measure")
_CURVE = ("mode", "how", "removal")


def pooled(runs: Sequence[Run]) -> dict[str, pl.DataFrame]:
    """The leave-outs of the runs that had one, together; empty where none had.

    Returns:
        "effects", "curves" and "lds" -> table.
    """
    had = [run for run in runs if run.has(EFFECTS)]
    if not had:
        return {}
    return {
        "effects": pooled_effects([run.table(EFFECTS) for run in had]),
        "curves": pooled_curves([run.table(CURVES) for run in had]),
        "lds": pooled_lds([run.table(LDS) for run in had]),
    }


def over_seeds(values: np.ndarray) -> tuple[Interval, float]:
    """Mean over seeds with Student's t interval, and a one-sided p-value of no effect.

    Args:
        values: (n,) one a training seed; NaN is left out.

    Returns:
        Bounds and p are NaN for fewer than three seeds, or seeds that agree to the last digit.

    Example:
        >>> found, p = over_seeds(np.array([0.3, 0.5, 0.4]))
        >>> round(found.lo, 2), round(found.hi, 2), round(p, 3)
        (0.15, 0.65, 0.01)
    """
    known = values[np.isfinite(values)]
    nan = float("nan")
    if len(known) == 0:
        return Interval(nan, nan, nan), nan
    mean = float(known.mean())
    if len(known) < _FEWEST or np.ptp(known) == 0:
        return Interval(mean, nan, nan), nan
    error = float(known.std(ddof=1)) / np.sqrt(len(known))
    reach = float(special.stdtrit(len(known) - 1, 0.5 + LEVEL / 2)) * error
    p = float(special.stdtr(len(known) - 1, -mean / error))
    return Interval(mean, mean - reach, mean + reach), p


def pooled_effects(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """One row a removal and control: means over runs, the effect with its interval.

    Args:
        frames: of rows of ``effects.EFFECT_SCHEMA``, one a run.
    """
    beside = ("size", "rate", "rate_nothing", "rate_control", "closure")
    further = ("effect_paraphrase", "effect_margin", "loss_change", "loss_change_control")
    return _pooled(frames, _EFFECT, "effect", (*beside, *further), tested=True)


def pooled_lds(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """One row a ranking and measure: mean score over runs with its interval."""
    return _pooled(frames, _LDS, "lds", ("subsets",), tested=False)


def pooled_curves(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Share of s_b that is left, by removal and number removed as the runs' mean.

    Sizes differ between runs, since their ground truth does; the k-th size of one run stands with
    the k-th of the others. ``halved`` is the mean number of rollouts that halve s_b over the runs
    in which any did, ``halved_runs`` their number.
    """
    numbered = [
        frame.with_columns(rank=pl.col("size").rank("dense").over(_CURVE)) for frame in frames
    ]
    shares = _pooled(numbered, (*_CURVE, "rank"), "share", ("size", "rate"), tested=False)
    halves: dict[tuple[Any, ...], list[float]] = {}
    for frame in frames:
        for key, curve in frame.group_by(*_CURVE, maintain_order=True):
            found = halving(curve.sort("size"))
            halves.setdefault(key, []).extend([] if found is None else [found])
    rows = [
        (*key, float(np.mean(found)) if found else None, len(found))
        for key, found in halves.items()
    ]
    columns: dict[str, Any] = dict.fromkeys(_CURVE, pl.String)
    table = pl.DataFrame(
        rows, schema={**columns, "halved": pl.Float64, "halved_runs": pl.Int32}, orient="row"
    )
    return shares.join(table, on=_CURVE, how="left", maintain_order="left")


def _pooled(
    frames: Sequence[pl.DataFrame],
    keys: Sequence[str],
    value: str,
    beside: Sequence[str],
    *,
    tested: bool,
) -> pl.DataFrame:
    rows: list[Mapping[str, Any]] = []
    whole = pl.concat(frames, how="vertical_relaxed") if frames else pl.DataFrame()
    if whole.is_empty():
        return pl.DataFrame()
    for key, group in whole.group_by(*keys, maintain_order=True):
        values = group[value].cast(pl.Float64).fill_null(np.nan).to_numpy()
        found, p = over_seeds(values)
        row = dict(zip(keys, key, strict=True))
        row |= {"runs": group.height, value: _defined(found.point)}
        row |= {"lo": _defined(found.lo), "hi": _defined(found.hi)}
        row |= {"p": _defined(p)} if tested else {}
        row |= {name: group[name].cast(pl.Float64).mean() for name in beside}
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def _defined(value: float) -> float | None:
    return None if np.isnan(value) else value
