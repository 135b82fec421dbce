"""The run directory as one object: create, open, append, read, verify, resume."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from behaviortrace import recipe as recipes
from behaviortrace.recipe import Recipe
from behaviortrace.records import ROLLOUT_SCHEMA, Target, conform
from behaviortrace.run import (
    atomic,
    checkpoints,
    copies,
    export,
    identity,
    inventory,
    outputs,
    resume,
    shards,
    verify,
)
from behaviortrace.run import uses as reuse
from behaviortrace.run.ledger import Ledger
from behaviortrace.run.manifest import NAME, Manifest, ShardEntry


class Run:
    """A run directory. Make one with :meth:`create` or :meth:`open`.

    Steps are 0-based optimizer steps. Checkpoint k is the model after k steps, so that the rollouts
    of steps 0 to k - 1 precede it; probes of checkpoint k have step k.

    Every method that writes raises :class:`BehaviorTraceError` when the disk is full or refuses,
    and leaves nothing half-written; every method that reads compares the file's checksum with the
    manifest's and raises :class:`BehaviorTraceError`, naming the file, where it differs.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._ledger = Ledger(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @classmethod
    def create(
        cls, path: str | Path, *, recipe: Recipe | None = None, meta: dict[str, Any] | None = None
    ) -> Run:
        """Start a new run in a directory, which is made if need be.

        Args:
            path: the run directory.
            recipe: what the run is; its pre-registration hash is recorded here, before any data.
            meta: anything else worth recording, JSON-serialisable.

        Raises:
            BehaviorTraceError: the directory already holds a run, or parts of one.
        """
        run = cls(path)
        if not (run.path / NAME).exists():
            inventory.refuse_leftovers(run.path)
        atomic.make_folder(run.path)
        run._ledger.create(identity.first_manifest(recipe, meta))
        return run

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Open an existing run.

        Raises:
            BehaviorTraceError: not a run, a damaged manifest, or one from a newer version.
        """
        run = cls(path)
        _ = run.manifest
        return run

    @property
    def manifest(self) -> Manifest:
        """The manifest as it is on disk now; frozen."""
        return self._ledger.manifest

    @property
    def recipe(self) -> Recipe | None:
        """The recipe of the run; None where it was not started from one."""
        settings = self.manifest.recipe
        return None if settings is None else recipes.parse(settings, f"in {self.path / NAME}")

    def update(self, **fields: Any) -> None:
        """Change fields of the manifest, atomically.

        ``status``, ``recipe`` and ``sketch`` are replaced; ``meta``, ``notes`` and ``seeds`` are
        merged key by key. The pre-registration hash stays that of the recipe at the start.

        Raises:
            BehaviorTraceError: another field, or a value it cannot take.
        """
        self._ledger.rewrite(lambda manifest: identity.updated(manifest, fields))

    def prepare_shard(
        self,
        store: str,
        step: int,
        rank: int,
        frame: pl.DataFrame,
        tensors: dict[str, np.ndarray] | None = None,
    ) -> ShardEntry:
        """Write a shard's files without listing them; any rank may.

        The files do not belong to the run until rank 0 has given the entry to :meth:`commit`.

        Args:
            store: "training", "optimizer", "probes" or "draws/NAME".
            step: optimizer step; for probes and draws the checkpoint's step.
            rank: process that sampled the rows; in a draw, the shard's number.
            frame: one row a rollout or probe response.
            tensors: name -> array whose first axis is the frame's rows. "plain" holds plain
                sketches, "update" update sketches where no plain ones exist.

        Raises:
            BehaviorTraceError: wrong store, rows that do not align, a shard already listed.
        """
        return shards.prepare(self._ledger, store, step, rank, frame, tensors)

    def commit(self, entries: Iterable[ShardEntry]) -> None:
        """List prepared shards in the manifest, all in one rewrite; rank 0 only.

        Raises:
            BehaviorTraceError: a shard is listed already, or its file is not as prepared.
        """
        shards.commit(self._ledger, entries)

    def write_shard(
        self,
        store: str,
        step: int,
        rank: int,
        frame: pl.DataFrame,
        tensors: dict[str, np.ndarray] | None = None,
    ) -> None:
        """Write and list one shard; :meth:`prepare_shard` then :meth:`commit`."""
        self.commit([self.prepare_shard(store, step, rank, frame, tensors)])

    def read(self, store: str = "training") -> pl.DataFrame:
        """All rows of a store, ordered by (step, rank); columns absent in a shard are null.

        Raises:
            BehaviorTraceError: no rows yet, or a damaged shard.
        """
        return shards.read_store(self._ledger, store)

    def tensor(self, store: str, name: str) -> np.ndarray:
        """One tensor of all rows, shape (n, ...), aligned with ``read(store)``.

        Rows of a shard without that tensor are NaN.

        Raises:
            BehaviorTraceError: no shard has it, shapes differ, or a damaged shard.
        """
        return shards.tensor(self._ledger, store, name)

    def rollouts(self, draw: str | None = None, *, uses: bool = False) -> pl.DataFrame:
        """One row a rollout with at least the columns of ``ROLLOUT_SCHEMA``.

        Args:
            draw: name of a draw; None: the training rollouts.
            uses: one row a use, numbered in the column ``use``. Otherwise a rollout that trained
                several steps has the row of its first use, with the ``grad_norm`` of its summed
                update, a null ``update_weight``, and the number of ``uses``.
        """
        frame = self.read(_store(draw))
        found = None if uses or draw is not None else reuse.find(frame)
        frame = frame if found is None else reuse.one_row_a_rollout(frame, found)
        return conform(frame, ROLLOUT_SCHEMA)

    def sketches(
        self, kind: shards.SketchKind = "update", draw: str | None = None, *, uses: bool = False
    ) -> np.ndarray:
        """Sketches, shape (n, dim), float32, rows aligned with ``rollouts(draw, uses=uses)``.

        Args:
            kind: "plain": of the gradient of minus the mean token log-probability; "update": of the
                loss that training minimised, either stored, or ``update_weight`` times plain.
            draw: name of a draw; None: the training rollouts.
            uses: one row a use; otherwise the plain sketch of a rollout's first use, and the sum
                of its updates.

        Rows whose sketch is not defined are NaN.

        Raises:
            BehaviorTraceError: no row has one, or a damaged shard.
        """
        rows = shards.sketches(self._ledger, _store(draw), kind)
        found = None if uses or draw is not None else reuse.find(self.read())
        if found is None:
            return rows
        return rows[found.first] if kind == "plain" else reuse.summed(rows, found)

    def draws(self) -> list[str]:
        """Names of the stored draws, sorted."""
        stores = {shard.store for shard in self.manifest.shards}
        return sorted(s.removeprefix("draws/") for s in stores if s.startswith("draws/"))

    def drop_draw(self, name: str) -> None:
        """Remove a draw, so that it can be drawn again; nothing happens where there is none."""
        if name in self.draws():
            shards.drop(self._ledger, f"draws/{name}")
            self.clean()

    def checkpoints(self) -> dict[int, Path]:
        """Step -> folder of the complete checkpoints, in order of their steps."""
        return checkpoints.complete(self._ledger)

    def add_checkpoint(self, step: int, path: str | Path) -> None:
        """List a finished checkpoint folder inside ``checkpoints/``; its files are flushed, hashed.

        Raises:
            BehaviorTraceError: not such a folder, an empty one, or a step already listed.
        """
        checkpoints.add(self._ledger, step, Path(path))

    def save_table(self, name: str, frame: pl.DataFrame) -> None:
        """Store a table as Parquet, replacing an earlier one.

        Args:
            name: "scores/NAME" or "results/NAME".
            frame: the table.
        """
        outputs.save_table(self._ledger, name, frame)

    def table(self, name: str) -> pl.DataFrame:
        """A stored table.

        Raises:
            BehaviorTraceError: not made yet (names the command that makes it), or damaged.
        """
        return outputs.read_saved_table(self._ledger, name)

    def save_json(self, name: str, data: Any) -> None:
        """Store a JSON document, replacing an earlier one; NaN and infinities become null.

        Args:
            name: "results/NAME" or "scores/NAME".
            data: dataclasses, mappings, lists, numbers, NumPy values; keys become strings.
        """
        outputs.save_json(self._ledger, name, data)

    def json(self, name: str) -> Any:
        """A stored JSON document.

        Raises:
            BehaviorTraceError: not made yet (names the command that makes it), or damaged.
        """
        return outputs.read_json(self._ledger, name)

    def has(self, name: str) -> bool:
        """Whether a table or JSON document of that name is stored."""
        return name in self.manifest.tables or name in self.manifest.jsons

    def save_target(self, target: Target) -> None:
        """Store a target, replacing an earlier one of the same name and step."""
        outputs.save_target(self._ledger, target)

    def targets(self) -> dict[str, list[Target]]:
        """Name -> the stored targets of that name, in order of their checkpoint steps."""
        return outputs.read_targets(self._ledger)

    def target_notes(self) -> dict[str, dict[int, dict[str, Any]]]:
        """Name -> checkpoint step -> ``meta`` of the stored target; a copy has it too."""
        return outputs.read_target_notes(self._ledger)

    def export(self, path: str | Path) -> Run:
        """A copy without weights and sketches: rows, scores, results, report, target descriptions.

        Evaluating, checking and reporting take rows alone, so they can be repeated on the copy;
        drawing, scoring and resuming are refused. Its manifest is the run's, with what was left out
        by name, size and hash. The steps' tables are packed into one file.

        Args:
            path: a directory that does not exist or is empty. Written whole or not at all.

        Raises:
            BehaviorTraceError: the run is not evaluated or is damaged, the directory is not empty,
                or it cannot be written.
        """
        export.export(self._ledger, Path(path))
        return Run.open(path)

    def refuse_copy(self, what: str) -> None:
        """Refuse what a copy without weights and sketches cannot do; ``what`` names it.

        Raises:
            BehaviorTraceError: the run is such a copy.
        """
        copies.refuse_copy(self._ledger, what)

    def verify(self) -> list[str]:
        """Every problem of the run, one line each; empty if it is sound.

        Looked at: the manifest's own digest and counts; presence, size, checksum and row count of
        every file; files that are not listed; gaps in steps, ranks and draws; repeated rollout ids;
        lineage; the pre-registration hash.
        """
        return verify.verify(self._ledger)

    def clean(self) -> list[str]:
        """Remove unfinished writes and unlisted files; the paths removed, relative to the run."""
        return inventory.clean(self._ledger)

    def resume_point(self) -> resume.ResumePoint:
        """Where :meth:`begin_resume` would go back to; changes nothing."""
        return resume.resume_point(self._ledger, self.manifest)

    def resume_from(self, step: int) -> None:
        """Go back to a step that a trainer goes on from by a checkpoint of its own.

        Dropped: shards of steps from there on, probes and listed checkpoints after it, and
        everything downstream. It is recorded in the lineage. Nothing happens to checkpoints that
        are not listed.

        Args:
            step: what ``trainer.state.global_step`` is once its checkpoint is loaded; above 0.

        Raises:
            BehaviorTraceError: an earlier step is damaged or missing, or the packages that compute
                have changed since.
        """
        resume.resume_from(self._ledger, step)

    def begin_resume(self, *, exact: bool = True) -> int:
        """Go back to the last complete checkpoint and record it in the lineage.

        A checkpoint that is damaged, or whose own probes or any shard before it are damaged or
        missing, is passed over and the reason recorded. Dropped: shards of steps from there on,
        probes after it, later checkpoints, and everything downstream (draws, targets, scores,
        results, report). All that is kept is sound but for checkpoints before the chosen one.

        Args:
            exact: refuse where the packages that compute have changed since; False goes on and
                records the change.

        Returns:
            The step to go on from. 0 means from ``checkpoints()[0]`` where there is one, otherwise
            from the very start.

        Raises:
            BehaviorTraceError: the resume could not be exact (says why).
        """
        return resume.begin_resume(self._ledger, exact=exact)


def _store(draw: str | None) -> str:
    return "training" if draw is None else f"draws/{draw}"
