"""Tables written by anyone, text or Parquet: read them, and refuse what cannot be judged.

Nothing is dropped or filled in silently: a missing label, group, score or fluency, and an infinite
score or fluency, is refused, in text as in Parquet, since leaving rows out is a choice that changes
a result and has to be the user's. Every refusal is one line that names the file, the column, the
first rows and the remedy. In text files rows are lines as an editor shows them, the header's being
the first; in Parquet they are counted from 1.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate import cells
from behaviortrace.evaluate.clusters import split_error, split_group
from behaviortrace.evaluate.delimited import MAX_ROWS, read_delimited
from behaviortrace.evaluate.table_file import MAX_BYTES, Opened, opened, too_large, unreadable

_NAMED = 3  # bad rows that a message names
_LISTED = 20  # columns that a message lists
_LONG = 60  # characters of a value or name that a message repeats


@dataclass(frozen=True)
class Rows:
    """Some columns of a table.

    Attributes:
        path: of the file.
        columns: names of all the file's columns, doubled ones included.
        frame: those asked for, as far as the file has them; n rows. All text unless from Parquet.
        lines: shape (n,), line of the text file on which each row begins; None for Parquet.
        separator: of the text file; None for Parquet.
    """

    path: Path
    columns: Sequence[str]
    frame: pl.DataFrame
    lines: np.ndarray | None
    separator: str | None

    def number_of(self, row: int) -> int:
        """The number by which messages call a row of the frame."""
        return row + 1 if self.lines is None else int(self.lines[row])

    @property
    def counting(self) -> str:
        """What row numbers count, for messages."""
        if self.lines is None:
            return "rows are counted from 1"
        return "rows are the file's lines, the header's among them"


def read_rows(path: str | Path, wanted: Sequence[str]) -> Rows:
    """Read columns of a table, told by its content and not by its name.

    Parquet, or text separated by comma, semicolon, tab or bar; either may be compressed by gzip or
    zstd. See :mod:`behaviortrace.evaluate.table_file` and
    :mod:`behaviortrace.evaluate.delimited`.

    Args:
        path: of the file.
        wanted: names of the columns; :func:`column` refuses those that the file lacks.

    Raises:
        BehaviorTraceError: missing, not a file, empty, too large, unreadable, or without rows.
    """
    path = Path(path)
    with opened(path) as found:
        if found.encoding is None:
            return _parquet(found, wanted, path)
        text = io.TextIOWrapper(found.stream, encoding=found.encoding, newline="")
        table = read_delimited(text, wanted, path)
    if not len(table.lines):
        raise _without_rows(path)
    return Rows(path, table.columns, table.frame, table.lines, table.separator)


def _parquet(found: Opened, wanted: Sequence[str], path: Path) -> Rows:
    """Columns of a Parquet file, after its own account of their size has been looked at.

    By pyarrow: what polars does of a damaged file can end the process.
    """
    import pyarrow  # slow to import, and not needed for text
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(found.stream, page_checksum_verification=True)
        every = file.schema_arrow.names
        names = [name for name in dict.fromkeys(wanted) if every.count(name) == 1]
        _refuse_large(file.metadata, names, path)
        read = file.read(columns=names)
        read.validate(full=True)  # text that is none would end the process later
        frame = pl.DataFrame([_series(name, read.column(name)) for name in names])
    except (
        OSError,
        UnicodeDecodeError,
        pyarrow.ArrowException,
        pl.exceptions.PolarsError,
    ) as error:
        raise unreadable(path, str(error)) from error
    return Rows(path, every, frame, None, None)


def _refuse_large(about: Any, names: Sequence[str], path: Path) -> None:
    """Refuse, by a Parquet file's metadata, what would not fit into memory, or has no rows."""
    if about.num_rows == 0:
        raise _without_rows(path)
    if about.num_rows > MAX_ROWS:
        raise too_large(path, f"{about.num_rows:,} rows, more than {MAX_ROWS:,}")
    parts = [about.row_group(number) for number in range(about.num_row_groups)]
    chunks = [part.column(number) for part in parts for number in range(about.num_columns)]
    stored = sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if any(f"{chunk.path_in_schema}.".startswith(f"{name}.") for name in names)
    )
    if max(stored, 8 * about.num_rows * len(names)) > MAX_BYTES:
        raise too_large(path, f"more than {MAX_BYTES // 2**20:,} MiB in the columns asked for")


def _series(name: str, values: Any) -> pl.Series:
    """An Arrow column as a series: categories as text, decimals of any width as float64."""
    if str(values.type).startswith("decimal"):
        values = values.cast("float64")
    series = pl.Series(name, values)
    return series.cast(pl.String) if series.dtype in (pl.Categorical, pl.Enum) else series


def _without_rows(path: Path) -> BehaviorTraceError:
    return BehaviorTraceError(f"{path} has a header but no rows; give a table with rows")


def column(rows: Rows, name: str, option: str) -> pl.Series:
    """A column by name.

    Args:
        rows: as :func:`read_rows` gave them.
        name: of the column.
        option: the option that named the column, such as "--score", for the message.

    Raises:
        BehaviorTraceError: no such column (the message lists those there are), or two of them.
    """
    number = list(rows.columns).count(name)
    if number > 1:
        raise BehaviorTraceError(
            f"{rows.path} has more than one column {name!r}; rename all but one"
        )
    if not number:
        raise BehaviorTraceError(
            f"{rows.path} has no column {name!r} for {option}; its columns are "
            f"{_listed(rows.columns)}"
        )
    return rows.frame[name]


def labels(rows: Rows, name: str) -> np.ndarray:
    """A binary label column as bool, shape (n,). It may hold 0/1 or true/false.

    Raises:
        BehaviorTraceError: the column is missing, has missing values, or holds anything else.
    """
    values = column(rows, name, "--label")
    _refuse_missing(rows, values, "label every row 0 or 1, or drop those rows")
    text = values.dtype == pl.String
    found = cells.truth(values).fill_null(cells.decimal(values)) if text else _floats(values)
    binary = None if found is None else found.is_in([0.0, 1.0]).fill_null(False)
    if found is None or binary is None or not binary.all():
        wrong = pl.Series([True] * len(values)) if binary is None else ~binary
        raise BehaviorTraceError(
            f"{rows.path}: label column {name!r} is not binary: {_named(rows, values, wrong, 1)}; "
            "use 0/1 or true/false"
        )
    return (found == 1.0).to_numpy()


def numbers(rows: Rows, name: str, option: str) -> np.ndarray:
    """A column of finite numbers as float64, shape (n,).

    Raises:
        BehaviorTraceError: the column is missing, not numeric, or holds missing or infinite values
            (the message says how many, and the first rows).
    """
    values = column(rows, name, option)
    remedy = "fill them or drop those rows"
    found = _text_floats(rows, values) if values.dtype == pl.String else _floats(values)
    if found is None:
        raise BehaviorTraceError(
            f"{rows.path}: column {name!r} holds {values.dtype}, not numbers; give a column of "
            "numbers"
        )
    _refuse_missing(rows, values, remedy)
    _refuse(rows, values, found.is_infinite(), "infinite value", remedy)
    return found.to_numpy()


def keys(rows: Rows, name: str, option: str) -> np.ndarray:
    """A column of identities (groups, steps) as integer codes, shape (n,).

    Where all are numbers they are compared and ordered as numbers, else as text.

    Raises:
        BehaviorTraceError: the column is missing, or has missing values.
    """
    values = column(rows, name, option)
    if values.dtype.is_nested() or values.dtype in (pl.Binary, pl.Object):
        raise BehaviorTraceError(
            f"{rows.path}: column {name!r} holds {values.dtype}; {option} needs numbers or text"
        )
    _refuse_missing(rows, values, f"{option} needs a value in every row")
    text = values.dtype == pl.String
    ranked = cells.ranks(values) if text else values.rank("dense")
    return ranked.to_numpy().astype(np.int64) - 1


def clusters(rows: Rows, name: str, group: str) -> np.ndarray:
    """A column of clusters of groups as integer codes, shape (n,).

    Args:
        rows: as :func:`read_rows` gave them.
        name: of the column.
        group: of the groups' column.

    Raises:
        BehaviorTraceError: as :func:`keys`; or a group lies in two clusters.
    """
    code = keys(rows, name, "--cluster")
    found = split_group(keys(rows, group, "--group"), code)
    if found is not None:
        where = f"{rows.path}: --cluster {name}: "
        of = _on_one_line(rows.frame[group][found[0]])
        one, other = (_on_one_line(rows.frame[name][row]) for row in found)
        raise split_error(of, one, other, where)
    return code


def distinct(names: Sequence[str], option: str) -> list[str]:
    """The names, refused where one is given twice or none is given."""
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    if repeated:
        raise BehaviorTraceError(f"{option} {repeated[0]} is given more than once; give it once")
    if not names:
        raise BehaviorTraceError(f"no {option} is given; name at least one column")
    return list(names)


def _floats(values: pl.Series) -> pl.Series | None:
    """Numbers or truth values as float64; None for any other type."""
    known = values.dtype.is_numeric() or values.dtype in (pl.Boolean, pl.Null)
    return values.cast(pl.Float64) if known else None


def _text_floats(rows: Rows, values: pl.Series) -> pl.Series:
    """Text as float64, null where it is missing; all of it numbers, or all of it true and false."""
    absent = cells.missing(values)
    found = cells.truth(values)
    if not (found.is_not_null() | absent).all():
        found = cells.decimal(values)
    wrong = found.is_null() & ~absent
    if wrong.any():
        raise BehaviorTraceError(
            f"{rows.path}: column {values.name!r} is not numeric: "
            f"{_named(rows, values, wrong, 1)}; give a column of numbers"
        )
    doubt = cells.decimal_mark(values, rows.separator)
    if doubt is not None:
        raise BehaviorTraceError(
            f"{rows.path}: column {values.name!r} {doubt}; write all with a decimal point and "
            "without separators of thousands"
        )
    return found


def _refuse_missing(rows: Rows, values: pl.Series, remedy: str) -> None:
    _refuse(rows, values, cells.missing(values), "missing value", remedy)


def _refuse(rows: Rows, values: pl.Series, bad: pl.Series, what: str, remedy: str) -> None:
    """Refuse a column where it has bad values: how many, the first of them, and what to do."""
    number = int(bad.fill_null(False).sum())
    if number:
        raise BehaviorTraceError(
            f"{rows.path}: column {values.name!r} has {number} {what}{'s' if number > 1 else ''} "
            f"in {len(values)} rows: {_named(rows, values, bad, _NAMED)}; {remedy}"
        )


def _named(rows: Rows, values: pl.Series, bad: pl.Series, most: int) -> str:
    """The first bad values and their rows, such as ``'NA' in row 5, null in row 9, and 4 more``."""
    at = bad.fill_null(False).arg_true().to_list()
    said = [f"{_shown(values[row])} in row {rows.number_of(row)}" for row in at[:most]]
    if most > 1 and len(at) > most:
        said.append(f"and {len(at) - most} more")
    return f"{', '.join(said)} ({rows.counting})"


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return repr(_short(value)) if value.strip() else "an empty cell"
    return _on_one_line(value)


def _on_one_line(value: object) -> str:
    return _short(" ".join(str(value).split()))


def _listed(names: Sequence[str]) -> str:
    """Column names on one line."""
    shown = [_short(n) if n.isprintable() and n else repr(_short(n)) for n in names[:_LISTED]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f", and {more} more" if more else "")


def _short(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG - 3]}..."
