"""Delimited text as columns of text: nothing is inferred, and every row is as long as the header.

Fields may be quoted by ``"``, and then hold separators, line breaks and doubled quotes. Blank lines
are skipped. The separator is the one by which the header holds the columns that are asked for;
Excel's first line ``sep=;`` is followed.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import polars as pl

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate.table_file import MAX_BYTES, empty, too_large, unreadable

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
MAX_ROWS = 20_000_000
"""Rows above which a table is refused."""

_NAMED = re.compile(r"sep=(.)\r?\n?", re.IGNORECASE)
_PART = 65_536  # rows held as Python text at a time


@dataclass(frozen=True)
class Delimited:
    """A text table.

    Attributes:
        columns: names in the header, in order, doubled ones included.
        frame: those asked for, n rows, all text.
        lines: shape (n,), line of the file on which each row begins, from 1 on.
        separator: one of ``SEPARATORS``, or the one that the file's first line names.
    """

    columns: list[str]
    frame: pl.DataFrame
    lines: np.ndarray
    separator: str


def read_delimited(text: TextIO, wanted: Sequence[str], path: Path) -> Delimited:
    """Read the wanted columns of a text table.

    Args:
        text: opened with ``newline=""``, seekable.
        wanted: names of columns; those that the header lacks are left out of the frame.
        path: of the file, for messages.

    Raises:
        BehaviorTraceError: no content, no separator or no single one, a row of another length than
            the header, a quote that does not end, text in another encoding, too many rows.
    """
    try:
        with _long_fields():
            named = _NAMED.fullmatch(text.readline())
            skip = 1 if named else 0
            separator = named.group(1) if named else _separator(text, wanted, path)
            return _columns(_records(text, separator, skip, path), separator, wanted, path)
    except UnicodeDecodeError as error:
        kind = text.encoding.removesuffix("-sig").upper()
        raise unreadable(path, f"it is not {kind} text: save it as UTF-8") from error


@contextmanager
def _long_fields() -> Iterator[None]:
    """A completion may be longer than the reader's own limit, which is a setting of the process."""
    before = csv.field_size_limit(MAX_BYTES)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _separator(text: TextIO, wanted: Sequence[str], path: Path) -> str:
    headers = {}
    for separator in SEPARATORS:
        try:
            _, fields = next(_records(text, separator, 0, path), (0, []))
        except BehaviorTraceError:  # its quotes fit another separator
            continue
        headers[separator] = fields
    if not headers:
        raise unreadable(path, "the quotes of its header do not match")
    if not any(headers.values()):
        raise empty(path)
    several = {s: len(set(wanted) & set(f)) for s, f in headers.items() if len(f) > 1}
    if not several:
        only = _short(next(iter(headers.values()))[0])
        raise BehaviorTraceError(
            f"{path} has one column, {only!r}, where several are needed; separate them by comma, "
            "semicolon, tab or bar"
        )
    most = max(several.values())
    best = [separator for separator, found in several.items() if found == most]
    if len(best) > 1:
        between = " or ".join(SEPARATORS[separator] for separator in best)
        raise BehaviorTraceError(
            f"{path}: its header may be separated by {between}, and the columns asked for "
            f"({', '.join(map(repr, wanted))}) do not tell; use one of these signs only"
        )
    return best[0]


def _records(
    text: TextIO, separator: str, skip: int, path: Path
) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, each with the line on which it begins."""
    text.seek(0)
    for _ in range(skip):
        text.readline()
    reader = csv.reader(text, delimiter=separator, strict=True)
    while True:
        line = skip + reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise unreadable(path, f"row {line}: {error}") from error
        if fields and (len(fields) > 1 or fields[0].strip()):
            yield line, fields


def _columns(
    records: Iterator[tuple[int, list[str]]], separator: str, wanted: Sequence[str], path: Path
) -> Delimited:
    _, header = next(records, (0, []))
    if not header:
        raise empty(path)
    names = [name for name in dict.fromkeys(wanted) if name in header]
    places = [header.index(name) for name in names]
    lines, parts = array("q"), []
    held: list[list[str]] = [[] for _ in names]
    for line, fields in records:
        if len(fields) != len(header):
            raise unreadable(
                path,
                f"row {line} has {len(fields)} fields where the header has {len(header)}, "
                f"separated by {SEPARATORS.get(separator, repr(separator))}",
            )
        for column, place in zip(held, places, strict=True):
            column.append(fields[place])
        lines.append(line)
        if len(lines) > MAX_ROWS:
            raise too_large(path, f"more than {MAX_ROWS:,} rows")
        if len(lines) % _PART == 0:
            parts.append(_frame(names, held))
            held = [[] for _ in names]
    parts.append(_frame(names, held))
    return Delimited(header, pl.concat(parts), np.array(lines, dtype=np.int64), separator)


def _frame(names: Sequence[str], held: Sequence[Sequence[str]]) -> pl.DataFrame:
    return pl.DataFrame([pl.Series(n, c, pl.String) for n, c in zip(names, held, strict=True)])


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:57]}..."
