"""A table's file, opened by what it holds and not by how it is named.

Parquet or text, either of them plain or compressed by gzip or zstd. Text is UTF-8 (with or without
a byte-order mark), or UTF-16 or UTF-32 with one, as Excel writes them. What is larger than
``MAX_BYTES`` is refused before it is held in memory.
"""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from behaviortrace.errors import BehaviorTraceError

MAX_BYTES = 2**30
"""Largest text, after decompression, and largest sum of Parquet columns that is read: 1 GiB."""

_PARQUET, _GZIP, _ZSTD = b"PAR1", b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
_MARKS = (  # UTF-32 first, since its little-endian mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_PART = 2**20  # bytes expanded at a time
_HEAD = 4096  # bytes looked at to tell text from other content


@dataclass(frozen=True)
class Opened:
    """An open table.

    Attributes:
        stream: seekable, decompressed, at its beginning.
        encoding: of the text; None for Parquet.
    """

    stream: IO[bytes]
    encoding: str | None


@contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """The content of a table's file, decompressed.

    Raises:
        BehaviorTraceError: missing, not a file, empty, above ``MAX_BYTES``, damaged, or neither
            Parquet nor text.
    """
    if not path.exists():
        raise BehaviorTraceError(f"{path}: no such file; give a CSV or Parquet table")
    if not path.is_file():
        raise BehaviorTraceError(f"{path} is not a file; give a CSV or Parquet table")
    try:
        stream = path.open("rb")
    except OSError as error:
        raise unreadable(path, error.strerror or "no access") from error
    with stream:
        held = _expanded(stream, path)
        yield Opened(held, None if _starts(held, _PARQUET) else _encoding(held, path))


def unreadable(path: Path, detail: str) -> BehaviorTraceError:
    """What to raise of a file that no table can be read from; the detail is put on one line."""
    said = " ".join(detail.split()).rstrip(".") or "damaged"
    return BehaviorTraceError(
        f"{path} cannot be read as CSV or Parquet ({said}); mend or rewrite it"
    )


def too_large(path: Path, held: str) -> BehaviorTraceError:
    """What to raise of a file that holds more than is read."""
    return BehaviorTraceError(
        f"{path} holds {held}; give a table of fewer rows, with the columns asked for only"
    )


def empty(path: Path) -> BehaviorTraceError:
    """What to raise of a file without any content."""
    return BehaviorTraceError(f"{path} is empty; give a CSV or Parquet table with rows")


def _starts(stream: IO[bytes], magic: bytes) -> bool:
    head = stream.read(len(magic))
    stream.seek(0)
    return head == magic


def _expanded(stream: IO[bytes], path: Path) -> IO[bytes]:
    """The stream itself, or what it expands to where it is compressed."""
    try:
        if _starts(stream, _GZIP):
            return _read_bounded(gzip.GzipFile(fileobj=stream), path)
        if _starts(stream, _ZSTD):
            import pyarrow  # slow to import, and rarely needed here

            return _read_bounded(pyarrow.input_stream(str(path), compression="zstd"), path)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, str(error)) from error
    if not _starts(stream, _PARQUET) and path.stat().st_size > MAX_BYTES:
        raise too_large(path, f"more than {MAX_BYTES / 2**20:,.4g} MiB of text")
    return stream


def _read_bounded(source: IO[bytes] | gzip.GzipFile, path: Path) -> IO[bytes]:
    held = io.BytesIO()
    with source:
        while part := source.read(_PART):
            held.write(part)
            if held.tell() > MAX_BYTES:
                raise too_large(path, f"more than {MAX_BYTES / 2**20:,.4g} MiB once decompressed")
    held.seek(0)
    return held


def _encoding(stream: IO[bytes], path: Path) -> str:
    head = stream.read(_HEAD)
    stream.seek(0)
    if not head:
        raise empty(path)
    if head.startswith(_WORKBOOKS):
        raise unreadable(path, "it is a workbook or a zip archive: save the sheet as CSV")
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    if b"\0" in head:
        raise unreadable(path, "it is binary, or UTF-16 without a byte-order mark")
    return "utf-8-sig"
