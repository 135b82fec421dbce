"""Checkpoint folders: written by the trainer, complete once the manifest lists them."""

from __future__ import annotations

from pathlib import Path

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import atomic
from behaviortrace.run.inventory import damage
from behaviortrace.run.ledger import Ledger
from behaviortrace.run.manifest import CheckpointEntry, FileEntry, Manifest


def add(ledger: Ledger, step: int, path: Path) -> None:
    """Flush, hash and list a checkpoint folder; see :meth:`Run.add_checkpoint`."""
    home = (ledger.root / "checkpoints").resolve()
    folder = path.resolve()
    if folder.parent != home or not folder.is_dir():
        raise BehaviorTraceError(f"checkpoint {path} is not a folder of {home}; save it there")
    _refuse_listed(ledger.manifest, step, folder.name)
    atomic.sync_tree(folder)
    atomic.sync_folder(home)
    try:
        files = [_entry(folder, file) for file in sorted(folder.rglob("*")) if file.is_file()]
    except OSError as error:
        raise BehaviorTraceError(f"cannot read checkpoint {path}: {error.strerror}") from error
    if not files:
        raise BehaviorTraceError(f"checkpoint {path} is empty; save the model there first")
    entry = CheckpointEntry(step=step, folder=f"checkpoints/{folder.name}", files=files)

    def listed(manifest: Manifest) -> Manifest:
        _refuse_listed(manifest, step, folder.name)
        found = sorted([*manifest.checkpoints, entry], key=lambda c: c.step)
        return manifest.model_copy(update={"checkpoints": found})

    ledger.rewrite(listed)


def complete(ledger: Ledger) -> dict[int, Path]:
    """Listed checkpoints whose files are all there in full size; see :meth:`Run.checkpoints`."""
    return {
        checkpoint.step: ledger.root / checkpoint.folder
        for checkpoint in sorted(ledger.manifest.checkpoints, key=lambda c: c.step)
        if not any(damage(ledger.root, file, checksum=False) for file in checkpoint.files)
    }


def _refuse_listed(manifest: Manifest, step: int, name: str) -> None:
    for checkpoint in manifest.checkpoints:
        if checkpoint.step == step or checkpoint.folder == f"checkpoints/{name}":
            raise BehaviorTraceError(
                f"checkpoint {checkpoint.step} in {checkpoint.folder} is listed already; "
                "resume the run to go back before it"
            )


def _entry(folder: Path, file: Path) -> FileEntry:
    return FileEntry(
        file=f"checkpoints/{folder.name}/{file.relative_to(folder).as_posix()}",
        bytes=file.stat().st_size,
        sha256=atomic.sha256_file(file),
    )
