"""A whole sweep: do what is missing, merge what is finished, write the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from behaviortrace import pipeline
from behaviortrace.checklist.evidence import Replicate
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.processes.executors import Standing, Watch, execute, make_executor
from behaviortrace.processes.locks import alone, sweep_lock
from behaviortrace.records import Verdict
from behaviortrace.run import Run, atomic
from behaviortrace.sweep.conclusion import conclusion
from behaviortrace.sweep.manifest import (
    Book,
    RunEntry,
    SweepManifest,
    begun,
    read_sweep,
    refuse_another,
)
from behaviortrace.sweep.merge import merge, save
from behaviortrace.sweep.page import write_report
from behaviortrace.sweep.plan import Job, Plan
from behaviortrace.sweep.replicates import summarise_replicates
from behaviortrace.sweep.standing import mistaken, refuse_copies, refuse_run, unfinished


@dataclass(frozen=True)
class Sweep:
    """What a sweep's call came to.

    Attributes:
        root: directory of the sweep.
        manifest: as it is on disk.
        replicates: the decisive result of every draw of every finished run.
        summary: what they say together.
        verdicts: seed -> checklist of each finished run.
        conclusion: what may be believed, in plain sentences.
        report: the page; None where no run has finished.
    """

    root: Path
    manifest: SweepManifest
    replicates: Sequence[Replicate]
    summary: Mapping[str, Any]
    verdicts: Mapping[int, Sequence[Verdict]]
    conclusion: str
    report: Path | None

    @property
    def failed(self) -> list[int]:
        """Seeds of the runs that failed."""
        return [run.seed for run in self.manifest.runs if run.state == "failed"]


def nothing(standings: Sequence[Standing]) -> None:
    """The callback that shows nothing."""


def sweep(plan: Plan, *, watch: Watch = nothing) -> Sweep:
    """Do what a sweep still lacks, and merge all its finished runs.

    Finished runs are recognised by their manifests and checksums and left as they are. A sweep only
    grows: seeds and draws of earlier calls stay in it, whether they are named again or not.

    Args:
        plan: what is wanted.
        watch: called with where every run stands, several times a second.

    Raises:
        BehaviorTraceError: the directory is a run, holds a sweep of another recipe or copies that
            lack something, is in use or cannot be written; or the merged results cannot be made. A
            run that fails does not raise: its entry in the manifest says so.
    """
    refuse_run(plan.root)
    atomic.make_folder(plan.root / "progress")
    with _alone(plan.root):
        book = Book(plan.root)
        known = book.read()
        if known is not None:
            refuse_another(known, plan.recipe, plan.root)
            plan = plan.grown(known.seeds, known.draws)
            refuse_copies(plan.jobs)
        book.write(begun(plan, known))
        missing = _missing(plan, book)
        if missing:
            _work(plan, missing, book, watch)
        return _merged(plan.root, book)


def preview(plan: Plan) -> tuple[Plan, list[RunEntry]]:
    """What a sweep would do. Nothing is written.

    Args:
        plan: what is wanted.

    Returns:
        The plan with what the directory already holds counted in, and each of its runs with what it
        lacks as its note.

    Raises:
        BehaviorTraceError: the directory is a run, or holds a sweep of another recipe or copies
            that lack something.
    """
    refuse_run(plan.root)
    known = Book(plan.root).read()
    if known is not None:
        refuse_another(known, plan.recipe, plan.root)
        plan = plan.grown(known.seeds, known.draws)
        refuse_copies(plan.jobs)
    manifest = begun(plan, known)
    return plan, [_stands(job, manifest.run(job.seed)) for job in plan.jobs]


def merge_again(root: Path, *, evaluate: bool = False) -> Sweep:
    """Judge and merge the finished runs of a sweep once more; nothing is trained or drawn.

    Args:
        root: directory of a sweep, or of a copy of one without weights and sketches.
        evaluate: also make the runs' result tables anew from their rows and scores.

    Raises:
        BehaviorTraceError: not a sweep, one at work, a run that is damaged, or a full disk.
    """
    read_sweep(root)  # the lock is a file, and is put into a sweep alone
    with _alone(root):
        known = read_sweep(root).stopped()  # a process that was killed could not say so
        for entry in known.runs:
            if entry.state == "finished":
                run = Run.open(root / entry.folder)
                if wrong := mistaken(known, entry, run):
                    raise BehaviorTraceError(f"{run.path} {wrong}")
                if problems := run.verify():
                    raise BehaviorTraceError(
                        f"{run.path} is damaged: {problems[0]}; 'behaviortrace verify {run.path}' "
                        "lists everything, and the sweep's own command repairs it"
                    )
                if evaluate:
                    pipeline.evaluate(run)
        book = Book(root)
        book.write(known)
        return _merged(root, book)


def _missing(plan: Plan, book: Book) -> list[Job]:
    """The runs that have something to do, each with what it lacks noted in the manifest."""
    missing = []
    manifest = _known(book)
    for job in plan.jobs:
        entry = _stands(job, manifest.run(job.seed))
        if entry.state == "waiting":
            missing.append(job)
        manifest = manifest.with_run(entry)
    book.write(manifest)
    return missing


def _stands(job: Job, entry: RunEntry) -> RunEntry:
    """The entry of a run as its directory is found."""
    try:
        lack = unfinished(job)
    except BehaviorTraceError as error:
        changes: dict[str, Any] = {"state": "failed", "note": " ".join(str(error).split())}
    else:
        changes = {"state": "waiting" if lack else "finished", "note": lack}
    return entry.model_copy(update=changes)


def _work(plan: Plan, jobs: Sequence[Job], book: Book, watch: Watch) -> None:
    """Work at the runs, their states kept in the manifest."""

    def changed(job: Job, standing: Standing) -> None:
        manifest = _known(book)
        entry = manifest.run(job.seed)
        changes = {
            "state": standing.state,
            "attempts": standing.attempts,
            "threads": job.threads,
            "note": standing.reason,
        }
        book.write(manifest.with_run(entry.model_copy(update=changes)))

    executor = make_executor(plan.executor, plan.slots, plan.threads)
    try:
        execute(executor, jobs, plan.slots, changed=changed, watch=watch)
    except BaseException:
        book.write(_known(book).stopped())
        raise


def _merged(root: Path, book: Book) -> Sweep:
    """Merge what is finished and write the report."""
    manifest = _known(book)
    folders = {run.seed: run.folder for run in manifest.runs if run.state == "finished"}
    merged = merge(root, folders)
    summary = summarise_replicates(merged.replicates) | {"effect": asdict(merged.effect)}
    page = None
    if merged.members:
        results = save(root, merged, summary)
        manifest = book.write(manifest.model_copy(update={"results": results}))
        page = write_report(root, manifest, merged, summary)
    verdicts = {member.seed: member.verdicts for member in merged.members}
    said = conclusion(list(verdicts.values()), len(manifest.runs), merged.effect)
    return Sweep(root, manifest, merged.replicates, summary, verdicts, said, page)


def _known(book: Book) -> SweepManifest:
    manifest = book.read()
    assert manifest is not None, "written before this is asked"
    return manifest


def _alone(root: Path) -> AbstractContextManager[None]:
    busy = f"another sweep is at work in {root}; wait for it, or choose another --out"
    return alone(sweep_lock(root), busy)
