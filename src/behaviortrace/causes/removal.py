"""Which rollouts are taken out: ground truth, a ranking's top or bottom, a list, or by chance."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from behaviortrace.causes import ranking as rankings
from behaviortrace.causes.ranking import Ranking
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import Run

Kind = Literal["ground-truth", "random", "top", "bottom", "file"]

_COLUMN = "rollout_id"
_LARGEST_FILE = 64_000_000  # bytes of a removal file


@dataclass(frozen=True)
class Request:
    """What ``--remove`` asks for.

    Attributes:
        kind: where the rollouts come from.
        ranking: of "top" and "bottom".
        file: of "file".
    """

    kind: Kind
    ranking: Ranking | None = None
    file: Path | None = None

    @property
    def label(self) -> str:
        """How tables name it."""
        if self.ranking is not None:
            return f"{self.kind}:{self.ranking.label}"
        return str(self.kind) if self.file is None else f"file:{self.file.name}"

    @property
    def targeted(self) -> bool:
        """Whether it is an estimator's claim about the behaviour, as opposed to a control's."""
        return self.ranking is not None and not self.ranking.target_free


def parse(text: str) -> Request:
    """A request from ``ground-truth``, ``random``, ``top:RANKING``, ``bottom:RANKING`` or a file.

    Raises:
        BehaviorTraceError: none of these.
    """
    if text in ("ground-truth", "random"):
        return Request(text)  # type: ignore[arg-type]  # narrowed by the comparison
    kind, separator, rest = text.partition(":")
    if separator and kind in ("top", "bottom"):
        return Request(kind, rankings.parse(rest))  # type: ignore[arg-type]  # as above
    if Path(text).is_file():
        return Request("file", file=Path(text))
    raise BehaviorTraceError(
        f"--remove {text!r} is no file and none of ground-truth, random, top:ESTIMATOR, "
        "bottom:ESTIMATOR"
    )


@dataclass(frozen=True)
class Chosen:
    """Rollouts to be taken out.

    Attributes:
        request: where they come from.
        ids: sorted ids.
    """

    request: Request
    ids: tuple[str, ...]


def choose(
    run: Run, rollouts: pl.DataFrame, request: Request, size: int | None, seed: int = 0
) -> Chosen:
    """The rollouts a request names.

    Args:
        run: the run.
        rollouts: those that may be removed: training rollouts before the measured step.
        request: what is asked for.
        size: how many; None: all of the ground truth or of a file's, and as many as the ground
            truth has otherwise.
        seed: of the choice by chance, of ties in a ranking, and of a part of the ground truth.

    Raises:
        BehaviorTraceError: a size that cannot be had, a ranking undefined for too many rollouts, a
            run without ground truth where it is needed, or a removal file with unknown ids.
    """
    stream = np.random.default_rng([seed, 7])
    ids = rollouts["rollout_id"].to_list()
    if request.kind == "file":
        assert request.file is not None
        named = read_ids(request.file, run.rollouts()["rollout_id"].to_list())
        inside = [i for i in named if i in set(ids)]
        if not inside:
            raise BehaviorTraceError(
                f"{request.file}: none of its rollouts was trained on before the measured step"
            )
        return Chosen(request, _part(inside, size, stream, str(request.file)))
    truth = ground_truth(rollouts)
    if request.kind == "ground-truth":
        if not truth:
            raise BehaviorTraceError(
                f"{run.path} has no boosted rollout before the measured step; remove top:ESTIMATOR "
                "or a file instead of ground-truth"
            )
        return Chosen(request, _part(truth, size, stream, "the ground truth"))
    count = size if size is not None else len(truth)
    if count == 0:
        raise BehaviorTraceError(
            f"{run.path} has no ground truth that could say how many to remove; give --size"
        )
    if request.kind == "random":
        others = sorted(set(ids) - set(truth))
        return Chosen(request, _part(others, count, stream, "the rollouts that are not boosted"))
    assert request.ranking is not None
    scores = aligned(run, rollouts, request.ranking, seed)
    return Chosen(request, _extreme(scores, ids, count, request, stream))


def ground_truth(rollouts: pl.DataFrame) -> list[str]:
    """Ids of the boosted rollouts."""
    return rollouts.filter(pl.col("boosted").fill_null(False))["rollout_id"].to_list()


def aligned(run: Run, rollouts: pl.DataFrame, ranking: Ranking, seed: int = 0) -> np.ndarray:
    """(n,) scores of the given rollouts, a part of the run's."""
    scores = ranking.scores(run, seed)
    table = pl.DataFrame({"rollout_id": run.rollouts()["rollout_id"], "score": scores})
    return (
        rollouts.select("rollout_id").join(table, on="rollout_id", how="left")["score"].to_numpy()
    )


def read_ids(path: Path, known: list[str]) -> list[str]:
    """The rollout ids of a removal file, in its order, each once.

    The file is Parquet or CSV with a column ``rollout_id``, or text with one id a line.

    Args:
        path: the file.
        known: ids of the run.

    Raises:
        BehaviorTraceError: it cannot be read, is empty, or names a rollout the run does not have.
    """
    found = list(dict.fromkeys(_read(path)))
    if not found:
        raise BehaviorTraceError(f"{path} names no rollout; give one id a line")
    strange = [name for name in found if name not in set(known)]
    if strange:
        raise BehaviorTraceError(
            f"{path}: {strange[0]!r}{f' and {len(strange) - 1} more' if len(strange) > 1 else ''} "
            "is no rollout of this run; ids are those of the column rollout_id"
        )
    return found


def _read(path: Path) -> list[str]:
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise BehaviorTraceError(f"{path} is larger than {_LARGEST_FILE} bytes; give ids alone")
        with path.open("rb") as file:
            parquet = file.read(4) == b"PAR1"
        if parquet:
            return pl.read_parquet(path, columns=[_COLUMN])[_COLUMN].cast(pl.String).to_list()
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError, pl.exceptions.PolarsError) as error:
        reason = " ".join(str(error).split())
        raise BehaviorTraceError(
            f"{path} cannot be read as a removal file ({reason}); give Parquet or CSV with a "
            f"column {_COLUMN}, or one id a line"
        ) from error
    header = next(csv.reader(lines[:1]), [])
    if _COLUMN in header:
        at = header.index(_COLUMN)
        return [row[at].strip() for row in csv.reader(lines[1:]) if len(row) > at]
    return [line.strip() for line in lines if line.strip()]


def _part(
    ids: list[str], size: int | None, stream: np.random.Generator, what: str
) -> tuple[str, ...]:
    if size is None or size == len(ids):
        return tuple(sorted(ids))
    if size > len(ids) or size < 1:
        raise BehaviorTraceError(f"--size {size} cannot be taken from {len(ids)} ids of {what}")
    return tuple(sorted(stream.choice(sorted(ids), size, replace=False).tolist()))


def _extreme(
    scores: np.ndarray,
    ids: list[str],
    count: int,
    request: Request,
    stream: np.random.Generator,
) -> tuple[str, ...]:
    """The highest or lowest so many; ties are broken by chance."""
    defined = np.flatnonzero(np.isfinite(scores))
    if not 1 <= count <= len(defined):
        raise BehaviorTraceError(
            f"--size {count} cannot be taken from the {len(defined)} rollouts (of {len(ids)}) for "
            f"which {request.label} is defined"
        )
    mixed = stream.permutation(defined)
    signed = -scores[mixed] if request.kind == "top" else scores[mixed]
    chosen = mixed[np.argsort(signed, kind="stable")[:count]]
    return tuple(sorted(ids[i] for i in chosen))
