"""What is on the disk against what the manifest lists."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import atomic
from behaviortrace.run.ledger import Ledger, locate
from behaviortrace.run.manifest import NAME, FileEntry, Manifest

STORES = (
    "rollouts",
    "sketches",
    "optimizer",
    "probes",
    "draws",
    "targets",
    "scores",
    "results",
)
"""Folders in which every file must be listed."""

# A trainer may keep other things (logs, a model card) beside its checkpoints.
_CHECKPOINT = re.compile(r"tmp.*|.*\d", re.DOTALL)

Kind = Literal["temporary", "file", "checkpoint"]


def refuse_leftovers(root: Path) -> None:
    """Refuse a directory without a manifest whose folders hold something already.

    Raises:
        BehaviorTraceError: names the folder; what lies in it would be taken for this run's.
    """
    for name in (*STORES, "checkpoints"):
        folder = root / name
        if folder.is_dir() and any(folder.iterdir()):
            raise BehaviorTraceError(
                f"{folder} holds files but {root} has no {NAME}; choose another directory"
            )


@dataclass(frozen=True)
class Stray:
    """Something in the run directory that the manifest does not list."""

    path: Path
    kind: Kind


def damage(root: Path, entry: FileEntry, *, checksum: bool = True) -> str | None:
    """What is wrong with a listed file, or None.

    Args:
        root: the directory whose manifest lists it.
        entry: the file.
        checksum: also hash it; otherwise only its presence and size are looked at.
    """
    try:
        path = locate(root, entry)
        if not path.is_file():
            return "is missing"
        size = path.stat().st_size
        if size != entry.bytes:
            return f"has {size} bytes instead of {entry.bytes}"
        if checksum and atomic.sha256_file(path) != entry.sha256:
            return "does not match its checksum"
    except BehaviorTraceError:
        return "leads out of the directory by a symbolic link"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None


def strays(ledger: Ledger, manifest: Manifest) -> list[Stray]:
    """Temporary files, unlisted files of the stores, and unlisted checkpoint folders, sorted."""
    listed = {entry.file for entry in manifest.files()}
    folders = {checkpoint.folder for checkpoint in manifest.checkpoints}
    found = []
    for parent, subfolders, names in os.walk(ledger.root):  # does not follow links
        here = Path(parent)
        relative = here.relative_to(ledger.root)
        if relative.as_posix() == "checkpoints":
            unlisted = [n for n in subfolders if _unlisted_checkpoint(n, folders)]
            found += [Stray(here / name, "checkpoint") for name in unlisted]
            subfolders[:] = [name for name in subfolders if name not in unlisted]
        links = [name for name in subfolders if (here / name).is_symlink()]
        owned = _owned(relative, folders)
        for path in (here / name for name in [*names, *links]):
            if atomic.is_temporary(path):
                found.append(Stray(path, "temporary"))
            elif owned and ledger.relative(path) not in listed:
                found.append(Stray(path, "file"))
    return sorted(found, key=lambda stray: stray.path)


def clean(ledger: Ledger, *, keep: Kind | None = None) -> list[str]:
    """Remove every stray, but for one kind; the relative paths of what was removed."""
    found = [stray for stray in strays(ledger, ledger.manifest) if stray.kind != keep]
    atomic.remove(stray.path for stray in found)
    return [ledger.relative(stray.path) for stray in found]


def _unlisted_checkpoint(name: str, folders: set[str]) -> bool:
    return f"checkpoints/{name}" not in folders and _CHECKPOINT.fullmatch(name) is not None


def _owned(relative: Path, checkpoints: set[str]) -> bool:
    parts = relative.parts
    if not parts:
        return False
    return parts[0] in STORES or "/".join(parts[:2]) in checkpoints
