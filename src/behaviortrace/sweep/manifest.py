"""What ``sweep.json`` records: recipe, seeds, draws, and every run with its state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from behaviortrace import recipe as recipes
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.recipe import Recipe
from behaviortrace.run import FileEntry, atomic
from behaviortrace.run.identity import now, package_versions
from behaviortrace.run.manifest import RelativePath, Sha256
from behaviortrace.sweep.plan import Plan, family, lasting

NAME = "sweep.json"
SCHEMA_VERSION = 1

INTERRUPTED = "interrupted"
"""The note of a run whose process ended with the sweep's."""

State = Literal["waiting", "running", "finished", "failed"]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RunEntry(_Entry):
    """One run of the sweep.

    ``attempts`` counts the processes that worked at it in the sweep's last call, 0 where it was
    found finished; ``threads`` is how many such a process may compute with, ``note`` one line of
    what it lacked or why it failed.
    """

    seed: Annotated[int, Field(ge=0)]
    folder: RelativePath
    state: State = "waiting"
    attempts: Annotated[int, Field(ge=0)] = 0
    threads: Annotated[int, Field(ge=1)] | None = None
    note: str | None = None


class SweepManifest(_Entry):
    """The whole of ``sweep.json``. Frozen: a change is a new manifest, written atomically.

    ``recipe`` is what the runs have in common; its seed is that of the sweep's first run.
    ``results`` lists the merged files with their checksums, name -> file.
    """

    schema_version: Annotated[int, Field(ge=1)] = SCHEMA_VERSION
    created: str
    updated: str
    recipe: dict[str, Any]
    family: Sha256
    seeds: list[int]
    draws: list[int]
    executor: str
    workers: int
    cores: int
    packages: dict[str, str] = Field(default_factory=dict)
    runs: list[RunEntry] = Field(default_factory=list)
    results: dict[str, FileEntry] = Field(default_factory=dict)

    def with_run(self, entry: RunEntry) -> SweepManifest:
        """The manifest with another entry for the run of that seed."""
        runs = [entry if run.seed == entry.seed else run for run in self.runs]
        return self.model_copy(update={"runs": runs})

    def run(self, seed: int) -> RunEntry:
        """The entry of a seed."""
        return next(run for run in self.runs if run.seed == seed)

    def stopped(self) -> SweepManifest:
        """The manifest of a sweep of which no process is left: no run is being worked at."""
        changes = {"state": "waiting", "note": INTERRUPTED}
        runs = [r.model_copy(update=changes) if r.state == "running" else r for r in self.runs]
        return self.model_copy(update={"runs": runs})

    def common_recipe(self) -> Recipe:
        """The recipe the runs have in common."""
        return recipes.parse(self.recipe, f"in {NAME}")


class Book:
    """The manifest of a sweep on disk; one process writes it, any may read it."""

    def __init__(self, root: Path) -> None:
        self.path = root / NAME

    def read(self) -> SweepManifest | None:
        """What is on disk; None where there is no sweep yet.

        Raises:
            BehaviorTraceError: damaged, or from a newer version.
        """
        try:
            body = json.loads(self.path.read_bytes())
            version = body.get("schema_version") if isinstance(body, dict) else None
            if isinstance(version, int) and version > SCHEMA_VERSION:
                raise BehaviorTraceError(
                    f"{self.path} has schema version {version}, newer than the {SCHEMA_VERSION} "
                    "this behaviortrace reads; upgrade behaviortrace"
                )
            return SweepManifest.model_validate(body)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BehaviorTraceError(f"cannot read {self.path}: {error.strerror}") from error
        except (ValueError, ValidationError) as error:
            raise BehaviorTraceError(
                f"{self.path} is damaged; restore it from a copy, or remove it: the sweep finds "
                "its finished runs again"
            ) from error

    def write(self, manifest: SweepManifest) -> SweepManifest:
        """Replace what is on disk, whole; returns it with the time of the change."""
        sealed = manifest.model_copy(update={"updated": now()})
        atomic.write({self.path: sealed.model_dump_json(indent=1).encode() + b"\n"})
        return sealed


def read_sweep(root: Path) -> SweepManifest:
    """The manifest of a sweep that has to be there.

    Raises:
        BehaviorTraceError: there is none, or it is damaged.
    """
    known = Book(root).read()
    if known is None:
        raise BehaviorTraceError(f"{root} is not a sweep: it has no {NAME}; give the --out of one")
    return known


def begun(plan: Plan, known: SweepManifest | None) -> SweepManifest:
    """The manifest at the start of a sweep's call, every run waiting."""
    first = plan.jobs[0].recipe
    threads = {entry.seed: entry.threads for entry in known.runs} if known else {}
    return SweepManifest(
        created=known.created if known else now(),
        updated=now(),
        recipe=first.model_dump(mode="json"),
        family=family(first),
        seeds=list(plan.seeds),
        draws=list(plan.draws),
        executor=plan.executor,
        workers=plan.slots,
        cores=plan.cores,
        packages=package_versions(),
        runs=[
            RunEntry(seed=job.seed, folder=f"runs/{job.name}", threads=threads.get(job.seed))
            for job in plan.jobs
        ],
        results=known.results if known else {},
    )


def refuse_another(known: SweepManifest, recipe: Recipe, root: Path) -> None:
    """Refuse to add the runs of another recipe to a sweep.

    Raises:
        BehaviorTraceError: names the first setting that differs.
    """
    from behaviortrace.train.exactness import first_difference

    if known.family == family(recipe):
        return
    before, wanted = lasting(known.common_recipe()), lasting(recipe)
    found = first_difference({**before, "seed": 0}, {**wanted, "seed": 0})
    what = f"{found[0]} was {found[1]!r} and is now {found[2]!r}" if found else "it was changed"
    raise BehaviorTraceError(
        f"{root} holds a sweep of another recipe: {what}; give the same recipe and --set, or "
        "choose another --out"
    )
