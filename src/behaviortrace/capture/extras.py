"""Columns that reward functions log beside their rewards: anything at all, one value a rollout.

What they hold is known only when it is logged, and may change from step to step. Each column is
brought to one of three types that can always be put below one another (truth values, numbers,
text), and no value a reward function could log ends a training: what cannot be kept as it is said
is kept in another way, and the manifest names it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from behaviortrace.records import ROLLOUT_SCHEMA

PLANTED = ("base_reward", "eligible", "boosted", "behavior", "prompt_kind", "answer")
"""Columns of the rollout table that reward functions may fill."""

_OWN = {
    *(name for name in ROLLOUT_SCHEMA if name not in PLANTED),
    *("use", "uses", "total_norm", "generation_step"),
    *("step_grad_norm", "clip_scale", "learning_rate", "missed_energy"),
}
"""Columns that the recorder fills itself."""

_INT64 = range(-(2**63), 2**63)


def logged_columns(
    extras: Mapping[str, Sequence[Any]], rows: int
) -> tuple[list[pl.Series], dict[str, str]]:
    """The columns as they are stored, and a remark on each that is not stored as it was logged.

    Args:
        extras: column name -> values, as the reward functions logged them.
        rows: rollouts; a column with another number of values cannot be told apart by rollout.
    """
    columns: list[pl.Series] = []
    remarks: dict[str, str] = {}
    taken = {*extras, *ROLLOUT_SCHEMA, *_OWN}
    for name, given in extras.items():
        if len(given) != rows:
            remarks[name] = f"not kept: {len(given)} values for {rows} rollouts"
            continue
        values = [_plain(value) for value in given]
        series = _planted(name, values) if name in PLANTED else None
        if series is None and (name in _OWN or name in PLANTED):
            other = f"logged_{name}"
            while other in taken:
                other = f"logged_{other}"
            taken.add(other)
            why = "the tracer fills it" if name in _OWN else f"it holds {ROLLOUT_SCHEMA[name]}"
            remarks[name] = f"kept as {other}: the column {name} is the run's own, and {why}"
            series = _typed(other, values)
        columns.append(_typed(name, values) if series is None else series)
    return columns, remarks


def storable(text: str) -> str:
    """Text without halves of surrogate pairs, which UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _planted(name: str, values: list[Any]) -> pl.Series | None:
    """A column of the rollout table, in its type; None where the values are of another."""
    dtype = ROLLOUT_SCHEMA[name]
    known = [value for value in values if value is not None]
    if dtype == pl.Boolean and not all(isinstance(value, bool) for value in known):
        return None
    if dtype == pl.Float64:
        if not all(isinstance(value, int | float) for value in known):
            return None
        values = [None if value is None else float(value) for value in values]
    if dtype == pl.String:
        values = [_text(value) for value in values]
    return pl.Series(name, values, dtype)


def _typed(name: str, values: list[Any]) -> pl.Series:
    """Truth values, whole numbers, numbers or text, whichever holds all that is known."""
    known = [value for value in values if value is not None]
    if all(isinstance(value, bool) for value in known):
        return pl.Series(name, values, pl.Boolean if known else pl.Null)
    if all(isinstance(value, int) and value in _INT64 for value in known):
        return pl.Series(name, [None if v is None else int(v) for v in values], pl.Int64)
    numbers = (isinstance(v, float) or (isinstance(v, int) and v in _INT64) for v in known)
    if all(numbers):
        return pl.Series(name, [None if v is None else float(v) for v in values], pl.Float64)
    return pl.Series(name, [_text(value) for value in values], pl.String)


def _plain(value: Any) -> Any:
    """Scalars of NumPy and torch as Python's, their arrays as lists."""
    tolist = getattr(value, "tolist", None)
    return tolist() if callable(tolist) else value


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return storable(value)
    try:
        return storable(json.dumps(value, ensure_ascii=False, default=str))
    except (TypeError, ValueError):  # keys that JSON cannot hold, or a value that holds itself
        return storable(str(value))
