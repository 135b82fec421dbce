"""Files that are whole or absent: temporary name, flush, fsync, rename, fsync of the folder.

Only :class:`OSError` is cleaned up after. A killed process leaves temporary files behind, which
:func:`is_temporary` recognises.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from behaviortrace.errors import BehaviorTraceError

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}

Staged = dict[Path, Path]
"""Final path -> temporary file that holds its content."""


def is_temporary(path: Path) -> bool:
    """Whether a file name is that of an unfinished write."""
    return _TEMPORARY.fullmatch(path.name) is not None


def sha256_bytes(content: bytes) -> str:
    """SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def sha256_file(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_error(path: Path, error: OSError) -> BehaviorTraceError:
    """The one line a user sees when a file cannot be written."""
    if error.errno in _NO_SPACE:
        return BehaviorTraceError(
            f"no space left on the disk to write {path}; free some, then resume the run"
        )
    reason = error.strerror or str(error)
    return BehaviorTraceError(
        f"cannot write {path}: {reason}; check that its folder exists and may be written"
    )


def stage(files: Mapping[Path, bytes]) -> Staged:
    """Write every file under a temporary name in its own folder, flushed to the disk.

    Raises:
        BehaviorTraceError: a file cannot be written; none of the temporary files is left.
    """
    staged: Staged = {}
    for path in files:
        make_folder(path.parent)
    for path, content in files.items():
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        staged[path] = temporary
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            discard(staged)
            raise write_error(path, error) from error
    return staged


def place(staged: Staged) -> None:
    """Rename staged files into place; if one cannot be, none is left in place.

    Raises:
        BehaviorTraceError: a file cannot be renamed.
    """
    placed: list[Path] = []
    for path, temporary in staged.items():
        try:
            os.replace(temporary, path)
        except OSError as error:
            discard(staged)
            remove(placed)
            raise write_error(path, error) from error
        placed.append(path)
    for folder in {path.parent for path in staged}:
        sync_folder(folder)


def write(files: Mapping[Path, bytes]) -> None:
    """Put files in place, all of them or none."""
    place(stage(files))


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of ``path`` at the end: whole, or not at all.

    Raises:
        BehaviorTraceError: ``path`` is there and not an empty folder, or cannot be written.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise BehaviorTraceError(f"{path} is not empty; choose another --out")
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    make_folder(aside)
    try:
        yield aside
        if path.exists():
            path.rmdir()
        os.replace(aside, path)
        sync_folder(path.parent)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        remove([aside])


def discard(staged: Staged) -> None:
    """Remove the temporary files of a write that will not be finished."""
    remove(staged.values())


def remove(paths: Iterable[Path]) -> None:
    """Remove files and whole folders; a symbolic link is removed, never followed.

    Raises:
        BehaviorTraceError: something cannot be removed.
    """
    for path in paths:
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            reason = error.strerror or str(error)
            raise BehaviorTraceError(
                f"cannot remove {path}: {reason}; remove it yourself, then try again"
            ) from error


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, each new name flushed to the disk.

    Raises:
        BehaviorTraceError: it cannot be created.
    """
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        if folder == folder.parent:
            break
        folder = folder.parent
    for new in reversed(missing):
        try:
            new.mkdir(exist_ok=True)
        except OSError as error:
            raise write_error(new, error) from error
        sync_folder(new.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's own entries, so that a rename in it survives a power cut.

    Raises:
        BehaviorTraceError: the disk refuses.
    """
    if os.name == "nt":  # folders cannot be opened there; NTFS journals the rename itself
        return
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def sync_tree(folder: Path) -> None:
    """Flush every file and folder below a folder that something else has written."""
    for parent, _, names in os.walk(folder):
        for name in names:
            _sync(Path(parent) / name, os.O_RDONLY)
        sync_folder(Path(parent))


def _sync(path: Path, flags: int) -> None:
    try:
        descriptor = os.open(path, flags)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise write_error(path, error) from error
