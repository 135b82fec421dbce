"""Going back to the last complete checkpoint, so that training can go on as if never stopped."""

from __future__ import annotations

from dataclasses import dataclass, field

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import atomic
from behaviortrace.run.copies import refuse_copy
from behaviortrace.run.identity import now, package_versions
from behaviortrace.run.inventory import clean, damage
from behaviortrace.run.ledger import Ledger
from behaviortrace.run.manifest import CheckpointEntry, Manifest, ResumeEntry, ShardEntry

EXACT = ("torch", "trl", "transformers", "accelerate", "peft", "numpy")
"""Packages another version of which may compute other numbers."""


@dataclass(frozen=True)
class ResumePoint:
    """Where a run can go on.

    Attributes:
        checkpoint: the last complete checkpoint whose earlier steps are all sound; None: start
            again, or go on from a checkpoint that the run does not hold.
        skipped: why later checkpoints were passed over, one line each.
        elsewhere: step of a checkpoint that a trainer keeps outside the run; 0 for none.
    """

    checkpoint: CheckpointEntry | None
    skipped: list[str] = field(default_factory=list)
    elsewhere: int = 0

    @property
    def step(self) -> int:
        """The step to go on from; 0 without a checkpoint."""
        return self.elsewhere if self.checkpoint is None else self.checkpoint.step

    @property
    def again(self) -> bool:
        """Whether there is no checkpoint, so that the run starts again."""
        return self.checkpoint is None and not self.elsewhere


def resume_point(ledger: Ledger, manifest: Manifest) -> ResumePoint:
    """Choose the checkpoint to go on from; every file it depends on is hashed."""
    refuse_copy(ledger, "be trained further")
    limit, reason = _sound_steps(manifest, _problems(ledger, manifest))
    skipped: list[str] = []
    for checkpoint in sorted(manifest.checkpoints, key=lambda c: c.step, reverse=True):
        why = _unusable(ledger, checkpoint)
        if why is None and checkpoint.step > limit:
            why = reason
        if why is None:
            return ResumePoint(checkpoint, skipped)
        skipped.append(f"checkpoint {checkpoint.step} passed over: {why}")
    return ResumePoint(None, skipped)


def begin_resume(ledger: Ledger, *, exact: bool = True) -> int:
    """Drop what lies beyond the resume point; see :meth:`Run.begin_resume`.

    The manifest is rewritten before any file is removed: a process killed in between leaves strays,
    which the next resume removes.
    """
    point = resume_point(ledger, ledger.manifest)
    _go_back(ledger, point, exact=exact)
    clean(ledger)
    return point.step


def resume_from(ledger: Ledger, step: int) -> None:
    """Drop what lies beyond the checkpoint of a trainer; see :meth:`Run.resume_from`."""
    refuse_copy(ledger, "be trained further")
    manifest = ledger.manifest
    limit, reason = _sound_steps(manifest, _problems(ledger, manifest))
    if step > limit:
        raise BehaviorTraceError(
            f"{ledger.root} cannot go on from step {step}: {reason}; resume from a checkpoint at "
            f"step {limit} or before, or start again in another directory"
        )
    _go_back(ledger, ResumePoint(None, elsewhere=step), exact=True)
    # Unlisted checkpoints stay: the trainer may be reading one of them.
    clean(ledger, keep="checkpoint")


def _go_back(ledger: Ledger, point: ResumePoint, *, exact: bool) -> None:
    before, packages = ledger.manifest, package_versions()
    changed = {
        name: [before.packages.get(name), packages.get(name)]
        for name in EXACT
        if before.packages.get(name) != packages.get(name)
    }
    if exact and changed and not point.again:
        name, (old, new) = next(iter(changed.items()))
        raise BehaviorTraceError(
            f"{ledger.root} cannot be resumed exactly: it was trained with {name} {old}, this is "
            f"{name} {new}; install {name}=={old}, or start again in another directory"
        )

    def drop(manifest: Manifest) -> Manifest:
        after = manifest.model_copy(
            update={
                "status": "created" if point.again else "training",
                "shards": [shard for shard in manifest.shards if _kept(shard, point)],
                "checkpoints": [
                    c for c in manifest.checkpoints if not point.again and c.step <= point.step
                ],
                "targets": [],
                "tables": {},
                "jsons": {},
                "packages": {**manifest.packages, **packages},
            }
        )
        entry = _lineage(manifest, after, point, changed)
        return after.model_copy(update={"lineage": [*manifest.lineage, entry]})

    ledger.rewrite(drop)
    atomic.remove([ledger.root / "report"])  # it shows results that are no longer there


def _problems(ledger: Ledger, manifest: Manifest) -> dict[tuple[str, int, int], str]:
    """What is wrong with the shards of training and probes, by shard; every file is hashed."""
    problems: dict[tuple[str, int, int], str] = {}
    for shard in manifest.shards:
        if shard.store.startswith("draws/"):
            continue  # dropped by a resume whatever their state
        for file in shard.files:
            what = damage(ledger.root, file)
            if what is not None:
                problems[shard.key] = f"{file.file} {what}"
    return problems


def _sound_steps(manifest: Manifest, problems: dict[tuple[str, int, int], str]) -> tuple[int, str]:
    """How many steps, from the first on, are whole; and why no more."""
    ranks: dict[int, set[int]] = {}
    for shard in manifest.store("training"):
        ranks.setdefault(shard.step, set()).add(shard.rank)
    expected = set().union(*ranks.values())
    both = ("training", "optimizer")  # written together, and made again together
    broken = {step: what for (store, step, _), what in problems.items() if store in both}
    # Probes of checkpoint k are made where it is saved, so only an earlier one makes them again.
    probes = {step: what for (store, step, _), what in problems.items() if store == "probes"}
    step = 0 if manifest.recipe is not None else min(ranks, default=0)
    while True:
        if step in probes:
            return step - 1, probes[step]
        if step in broken:
            return step, broken[step]
        if step not in ranks:
            return step, f"step {step} is not recorded"
        if ranks[step] != expected:
            return step, f"step {step} lacks rank(s) {sorted(expected - ranks[step])}"
        step += 1


def _unusable(ledger: Ledger, checkpoint: CheckpointEntry) -> str | None:
    for checksum in (False, True):  # sizes of all files first: hashing takes a second a gigabyte
        for file in checkpoint.files:
            what = damage(ledger.root, file, checksum=checksum)
            if what is not None:
                return f"{file.file} {what}"
    return None


def _kept(shard: ShardEntry, point: ResumePoint) -> bool:
    if point.again:
        return False
    if shard.store in ("training", "optimizer"):
        return shard.step < point.step
    return shard.store == "probes" and shard.step <= point.step


def _lineage(
    before: Manifest, after: Manifest, point: ResumePoint, changed: dict[str, list[str | None]]
) -> ResumeEntry:
    training = [shard.step for shard in before.shards if shard.store == "training"]
    dropped = {
        name: len(getattr(before, name)) - len(getattr(after, name))
        for name in ("shards", "checkpoints", "targets", "tables", "jsons")
    }
    return ResumeEntry(
        at=now(),
        step=point.step,
        checkpoint=not point.again,
        reached=max(training, default=-1) + 1,
        dropped={name: count for name, count in dropped.items() if count},
        skipped=point.skipped,
        changed=changed,
    )
