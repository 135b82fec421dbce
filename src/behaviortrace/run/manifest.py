"""The manifest: what a run is, and every file that belongs to it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from behaviortrace.errors import BehaviorTraceError

SCHEMA_VERSION = 1
NAME = "manifest.json"

_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.\-]*"
_STORE = re.compile(rf"training|optimizer|probes|draws/{_WORD}")
_OUTPUT = re.compile(rf"(scores|results)(/{_WORD})+")
_TARGET = re.compile(_WORD)
_DIGEST = re.compile(rb'"digest": "([0-9a-f]{64})"\n}\n\Z')
_NO_DIGEST = b'"digest": null\n}\n'

RunStatus = Literal["created", "training", "trained", "drawn", "scored", "evaluated", "complete"]


def _relative(text: str) -> str:
    path = PurePosixPath(text)
    bad = (
        not path.parts
        or path.is_absolute()
        or ".." in path.parts
        or str(path) != text
        or any(character in text for character in "\\:\0")
    )
    if bad:
        raise ValueError(f"{text!r} is not a plain path inside the run")
    return text


def _checkpoint_folder(text: str) -> str:
    parts = PurePosixPath(_relative(text)).parts
    if len(parts) != 2 or parts[0] != "checkpoints":
        raise ValueError(f"{text!r} is not a folder of checkpoints/")
    return text


def check_store(store: str) -> str:
    """The name of a sharded store, or ValueError."""
    if not _STORE.fullmatch(store):
        raise ValueError(
            f"store {store!r} is not 'training', 'optimizer', 'probes' or 'draws/NAME'"
        )
    return store


def check_output(name: str) -> str:
    """The name of a table or a JSON document, or ValueError."""
    if not _OUTPUT.fullmatch(name):
        raise ValueError(f"name {name!r} is not 'scores/NAME' or 'results/NAME'")
    return name


def check_target(name: str) -> str:
    """The name of a target, or ValueError."""
    if not _TARGET.fullmatch(name):
        raise ValueError(f"target name {name!r} may hold letters, digits, '_', '-' and '.' only")
    return name


RelativePath = Annotated[str, AfterValidator(_relative)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileEntry(_Entry):
    """A file of the run: its path relative to the run directory, its size and its SHA-256."""

    file: RelativePath
    bytes: Count
    sha256: Sha256


class ShardEntry(_Entry):
    """One step and rank of a store: a Parquet table and, where captured, its row-aligned tensors.

    ``arrays`` names the tensors in the safetensors file. In a draw ``rank`` numbers the shards. In
    a copy without sketches one shard may hold several ``steps`` in a row, ``step`` the first.
    """

    store: Annotated[str, AfterValidator(check_store)]
    step: Count
    rank: Count
    steps: Annotated[int, Field(ge=1)] = 1
    rows: Count
    table: FileEntry
    tensors: FileEntry | None = None
    arrays: list[str] = Field(default_factory=list)

    @property
    def key(self) -> tuple[str, int, int]:
        """(store, step, rank), unique in a run."""
        return (self.store, self.step, self.rank)

    @property
    def files(self) -> list[FileEntry]:
        """The shard's one or two files."""
        return [self.table] if self.tensors is None else [self.table, self.tensors]


class CheckpointEntry(_Entry):
    """A checkpoint folder, complete when it was listed."""

    step: Count
    folder: Annotated[str, AfterValidator(_checkpoint_folder)]
    files: list[FileEntry] = Field(min_length=1)


class TableEntry(_Entry):
    """A stored table and its row count."""

    file: FileEntry
    rows: Count


class TargetEntry(_Entry):
    """A stored target: its vector, the norm of it, and its description.

    ``vector`` is None in a copy without sketches, ``norm`` in runs of earlier versions.
    """

    name: Annotated[str, AfterValidator(check_target)]
    step: Count
    vector: FileEntry | None
    norm: float | None = None
    description: FileEntry

    @property
    def files(self) -> list[FileEntry]:
        """Its one or two files."""
        return [self.description] if self.vector is None else [self.vector, self.description]


class ResumeEntry(_Entry):
    """One resume: where it went back to, from where, and what was dropped or passed over.

    ``reached`` is the number of steps recorded before, ``checkpoint`` is False where there was no
    complete checkpoint, of the run or of its trainer, and the run starts again, ``skipped`` holds
    one reason a line, ``changed`` the packages whose version differs: name -> [before, now].
    """

    at: str
    step: Count
    checkpoint: bool
    reached: Count
    dropped: dict[str, Count] = Field(default_factory=dict)
    skipped: list[str] = Field(default_factory=list)
    changed: dict[str, list[str | None]] = Field(default_factory=dict)


class Manifest(_Entry):
    """What ``manifest.json`` holds. Frozen: a change is a new manifest, written atomically."""

    schema_version: Annotated[int, Field(ge=1)] = SCHEMA_VERSION
    status: RunStatus = "created"
    created: str
    recipe: dict[str, Any] | None = None
    preregistration: Sha256 | None = None
    seeds: dict[str, int | list[int]] = Field(default_factory=dict)
    sketch: dict[str, Any] | None = None
    packages: dict[str, str] = Field(default_factory=dict)
    platform: dict[str, Any] = Field(default_factory=dict)
    meta: dict[str, Any] = Field(default_factory=dict)
    notes: dict[str, Any] = Field(default_factory=dict)
    counts: dict[str, Count] = Field(default_factory=dict)
    lineage: list[ResumeEntry] = Field(default_factory=list)
    checkpoints: list[CheckpointEntry] = Field(default_factory=list)
    shards: list[ShardEntry] = Field(default_factory=list)
    targets: list[TargetEntry] = Field(default_factory=list)
    tables: dict[Annotated[str, AfterValidator(check_output)], TableEntry] = Field(
        default_factory=dict
    )
    jsons: dict[Annotated[str, AfterValidator(check_output)], FileEntry] = Field(
        default_factory=dict
    )
    left_out: list[FileEntry] = Field(default_factory=list)  # of a copy: what its run has besides
    digest: Sha256 | None = None  # of all the rest: shows damage to the manifest. Stays last

    def store(self, store: str) -> list[ShardEntry]:
        """The shards of a store, ordered by step and rank."""
        found = (shard for shard in self.shards if shard.store == store)
        return sorted(found, key=lambda shard: shard.key)

    def files(self) -> Iterator[FileEntry]:
        """Every file the manifest lists."""
        for shard in self.shards:
            yield from shard.files
        for checkpoint in self.checkpoints:
            yield from checkpoint.files
        for target in self.targets:
            yield from target.files
        yield from (table.file for table in self.tables.values())
        yield from self.jsons.values()

    def counted(self) -> dict[str, int]:
        """Rows of each store, and numbers of training steps and checkpoints."""
        counts: dict[str, int] = {}
        for shard in self.shards:
            counts[shard.store] = counts.get(shard.store, 0) + shard.rows
        steps = {
            step
            for shard in self.shards
            if shard.store == "training"
            for step in range(shard.step, shard.step + shard.steps)
        }
        return {**counts, "steps": len(steps), "checkpoints": len(self.checkpoints)}


def seal(manifest: Manifest) -> tuple[Manifest, bytes]:
    """The manifest with counts and digest brought up to date, and as bytes for ``manifest.json``.

    The digest is taken of those bytes with ``null`` in its own place, which is at the end: one pass
    over the text, as every step of training rewrites it.
    """
    blank = manifest.model_copy(update={"counts": manifest.counted(), "digest": None})
    text = blank.model_dump_json(indent=1).encode() + b"\n"
    digest = hashlib.sha256(text).hexdigest()
    end = f'"digest": "{digest}"\n}}\n'.encode()
    return blank.model_copy(update={"digest": digest}), text.removesuffix(_NO_DIGEST) + end


def digest_holds(content: bytes) -> bool:
    """Whether the bytes of a ``manifest.json`` are those that were sealed."""
    match = _DIGEST.search(content)
    if match is None:
        return False
    text = content[: match.start()] + _NO_DIGEST
    return hashlib.sha256(text).hexdigest() == match[1].decode()


def parse(content: bytes, path: Path) -> Manifest:
    """Read a manifest that anyone may have written.

    Raises:
        BehaviorTraceError: not JSON, a newer schema, an unknown key, or a path that leaves the run.
    """
    body = _body(content, path)
    version = body.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise BehaviorTraceError(
            f"{path} has schema version {version}, newer than the {SCHEMA_VERSION} this "
            "behaviortrace reads; upgrade behaviortrace"
        )
    try:
        return Manifest.model_validate(body)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        raise BehaviorTraceError(
            f"{path} is damaged at {where!r}: {message}; restore it from a copy or use a new --out"
        ) from error


def _body(content: bytes, path: Path) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BehaviorTraceError(
            f"{path} is not valid JSON; restore it from a copy or use a new --out"
        ) from error
    if not isinstance(body, dict):
        raise BehaviorTraceError(f"{path} is not a manifest; give the directory of a run")
    return body
