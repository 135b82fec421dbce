"""Tables written by anyone, CSV or Parquet: read them, and refuse what cannot be judged.

Every refusal is one line that names the file, the column and the remedy. Rows are counted from 1,
the header left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate.clusters import split_error, split_group

_TRUE, _FALSE = ("1", "1.0", "true"), ("0", "0.0", "false")
_PARQUET_MAGIC = b"PAR1"


def read_rows(path: str | Path) -> pl.DataFrame:
    """Read a CSV or Parquet table; Parquet is recognised by its content, not only its name.

    Raises:
        BehaviorTraceError: missing, not a file, empty, unreadable, or without rows.
    """
    path = Path(path)
    if not path.exists():
        raise BehaviorTraceError(f"{path}: no such file; give a CSV or Parquet table")
    if not path.is_file():
        raise BehaviorTraceError(f"{path} is not a file; give a CSV or Parquet table")
    try:
        with path.open("rb") as stream:
            head = stream.read(len(_PARQUET_MAGIC))
        if not head:
            raise BehaviorTraceError(f"{path} is empty; give a CSV or Parquet table with rows")
        if head == _PARQUET_MAGIC:
            frame = pl.read_parquet(path)
        elif path.suffix.lower() in (".parquet", ".pq"):
            raise BehaviorTraceError(
                f"{path} is named as Parquet but is not; write it again, or rename it to .csv"
            )
        else:
            frame = pl.read_csv(path, infer_schema_length=None)
    except (OSError, pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        detail = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else "damaged"
        raise BehaviorTraceError(
            f"{path} cannot be read as CSV or Parquet ({detail}); mend or rewrite it"
        ) from error
    if frame.height == 0:
        raise BehaviorTraceError(f"{path} has a header but no rows; give a table with rows")
    return frame


def column(frame: pl.DataFrame, name: str, path: str | Path, option: str) -> pl.Series:
    """A column by name.

    Args:
        frame: as :func:`read_rows` gave it.
        name: of the column.
        path: of the file, for the message.
        option: the option that named the column, such as "--score", for the message.

    Raises:
        BehaviorTraceError: no such column (the message lists those there are), or two of them.
    """
    if name not in frame.columns:
        raise BehaviorTraceError(
            f"{path} has no column {name!r} for {option}; its columns are "
            f"{', '.join(frame.columns)}"
        )
    if f"{name}_duplicated_0" in frame.columns:
        raise BehaviorTraceError(f"{path} has more than one column {name!r}; rename all but one")
    return frame[name]


def labels(frame: pl.DataFrame, name: str, path: str | Path) -> np.ndarray:
    """A binary label column as bool, shape (n,). It may hold 0/1 or true/false.

    Raises:
        BehaviorTraceError: the column is missing, has nulls, or holds anything else.
    """
    values = column(frame, name, path, "--label")
    _refuse_nulls(values, name, path, "label every row 0 or 1, or drop the row")
    text = values.cast(pl.String, strict=False).str.strip_chars().str.to_lowercase()
    positive, negative = text.is_in(list(_TRUE)), text.is_in(list(_FALSE))
    neither = ~(positive | negative).fill_null(False)
    if neither.any():
        row = int(neither.arg_true()[0])
        raise BehaviorTraceError(
            f"{path}: label column {name!r} is not binary: {values[row]!r} in row {row + 1}; "
            "use 0/1 or true/false"
        )
    return positive.to_numpy().astype(bool)


def numbers(frame: pl.DataFrame, name: str, path: str | Path, option: str) -> np.ndarray:
    """A column of finite numbers as float64, shape (n,).

    Raises:
        BehaviorTraceError: the column is missing, not numeric, or holds null, NaN or infinity (the
            message says how many, and the first row).
    """
    values = column(frame, name, path, option)
    empty = values.null_count() == len(values)  # read from CSV as text
    if not (values.dtype.is_numeric() or values.dtype == pl.Boolean or empty):
        raise BehaviorTraceError(_not_numeric(values, name, path))
    floats = values.cast(pl.Float64).to_numpy()
    bad = ~np.isfinite(floats)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        shown = "null" if values[row] is None else str(values[row])
        raise BehaviorTraceError(
            f"{path}: column {name!r} has {int(bad.sum())} of {len(floats)} values that are not "
            f"finite (first: {shown} in row {row + 1}); fill them or drop those rows"
        )
    return floats


def keys(frame: pl.DataFrame, name: str, path: str | Path, option: str) -> np.ndarray:
    """A column of identities (groups, steps) as integer codes, shape (n,).

    Raises:
        BehaviorTraceError: the column is missing, or has nulls.
    """
    values = column(frame, name, path, option)
    _refuse_nulls(values, name, path, f"{option} needs a value in every row")
    if values.dtype.is_nested():
        raise BehaviorTraceError(
            f"{path}: column {name!r} holds {values.dtype}; {option} needs numbers or text"
        )
    return values.rank("dense").to_numpy().astype(np.int64) - 1


def clusters(frame: pl.DataFrame, name: str, group: str, path: str | Path) -> np.ndarray:
    """A column of clusters of groups as integer codes, shape (n,).

    Args:
        frame: as :func:`read_rows` gave it.
        name: of the column.
        group: of the groups' column.
        path: of the file, for the message.

    Raises:
        BehaviorTraceError: as :func:`keys`; or a group lies in two clusters.
    """
    code = keys(frame, name, path, "--cluster")
    rows = split_group(keys(frame, group, path, "--group"), code)
    if rows is not None:
        where = f"{path}: --cluster {name}: "
        one, other = (frame[name][row] for row in rows)
        raise split_error(frame[group][rows[0]], one, other, where)
    return code


def distinct(names: Sequence[str], option: str) -> list[str]:
    """The names, refused where one is given twice or none is given."""
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    if repeated:
        raise BehaviorTraceError(f"{option} {repeated[0]} is given more than once; give it once")
    if not names:
        raise BehaviorTraceError(f"no {option} is given; name at least one column")
    return list(names)


def _refuse_nulls(values: pl.Series, name: str, path: str | Path, remedy: str) -> None:
    missing = values.is_null()
    if values.dtype.is_float():
        missing = missing | values.is_nan().fill_null(True)
    if missing.any():
        raise BehaviorTraceError(
            f"{path}: column {name!r} has {int(missing.sum())} missing values (first in row "
            f"{int(missing.arg_true()[0]) + 1}); {remedy}"
        )


def _not_numeric(values: pl.Series, name: str, path: str | Path) -> str:
    if values.dtype == pl.String:
        wrong = values.cast(pl.Float64, strict=False).is_null() & values.is_not_null()
        if wrong.any():
            row = int(wrong.arg_true()[0])
            return (
                f"{path}: column {name!r} is not numeric: {values[row]!r} in row {row + 1}; "
                "give a column of numbers"
            )
    return f"{path}: column {name!r} holds {values.dtype}, not numbers; give a column of numbers"
