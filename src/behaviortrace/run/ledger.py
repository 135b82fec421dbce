"""The manifest on disk: read when it has changed, rewritten whole and atomically under a lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import atomic
from behaviortrace.run.manifest import NAME, FileEntry, Manifest, parse, seal


def locate(root: Path, entry: FileEntry) -> Path:
    """Where a file listed in a directory's manifest is.

    Raises:
        BehaviorTraceError: a symbolic link on the way leads out of the directory.
    """
    path = root / entry.file
    if not path.resolve().is_relative_to(root.resolve()):
        raise BehaviorTraceError(
            f"{path} leads out of {root} by a symbolic link; put the file itself there"
        )
    return path


class Ledger:
    """The manifest of one run directory.

    Several processes may hold a ledger of the same run; each rewrite starts from what is on disk.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / NAME
        self._read: tuple[tuple[int, int, int], Manifest] | None = None

    @property
    def manifest(self) -> Manifest:
        """The manifest as it is on disk now.

        Raises:
            BehaviorTraceError: there is none, or it cannot be understood.
        """
        try:
            signature = self._signature()
            if self._read is None or self._read[0] != signature:
                self._read = (signature, parse(self.path.read_bytes(), self.path))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise BehaviorTraceError(
                f"{self.root} is not a run: it has no {NAME}; give the --out of a run"
            ) from error
        except OSError as error:
            raise BehaviorTraceError(f"cannot read {self.path}: {error.strerror}") from error
        return self._read[1]

    def create(self, manifest: Manifest) -> None:
        """Write the first manifest.

        Raises:
            BehaviorTraceError: the directory already holds a run.
        """
        with self._lock():
            if self.path.exists():
                raise BehaviorTraceError(
                    f"{self.root} already holds a run; continue it with --resume, "
                    "or choose another --out"
                )
            self._write(manifest)

    def rewrite(self, change: Callable[[Manifest], Manifest]) -> None:
        """Replace the manifest by a changed one; the old one stays whole until the new one is."""
        with self._lock():
            self._write(change(self.manifest))

    def rewrite_for(self, files: Iterable[str], change: Callable[[Manifest], Manifest]) -> None:
        """Rewrite the manifest on behalf of some files; if that fails, unlisted ones are removed.

        Raises:
            BehaviorTraceError: the manifest cannot be written, or the change is refused.
        """
        try:
            self.rewrite(change)
        except BehaviorTraceError:
            listed = {entry.file for entry in self.manifest.files()}
            atomic.remove(self.root / file for file in files if file not in listed)
            raise

    def locate(self, entry: FileEntry) -> Path:
        """Where a listed file is.

        Raises:
            BehaviorTraceError: a symbolic link on the way leads out of the run directory.
        """
        return locate(self.root, entry)

    def relative(self, path: Path) -> str:
        """A path inside the run as the manifest writes it."""
        return path.relative_to(self.root).as_posix()

    def describe(self, path: Path, content: bytes) -> FileEntry:
        """The entry of a file about to be written with this content."""
        digest = atomic.sha256_bytes(content)
        return FileEntry(file=self.relative(path), bytes=len(content), sha256=digest)

    def _write(self, manifest: Manifest) -> None:
        sealed, content = seal(manifest)
        atomic.write({self.path: content})
        self._read = (self._signature(), sealed)

    def _signature(self) -> tuple[int, int, int]:
        status = os.stat(self.path)
        return (status.st_ino, status.st_mtime_ns, status.st_size)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        lock = FileLock(self.root / ".lock")
        try:
            lock.acquire()
        except OSError as error:
            raise atomic.write_error(self.root / ".lock", error) from error
        try:
            yield
        finally:
            lock.release()
