"""An arm: one counterfactual training, and what the policy it ends at does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from behaviortrace.causes.measure import Measurement
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant.intervention import How
from behaviortrace.run import Run, atomic

Mode = Literal["replay", "rerun"]

FOLDER = "leave-out"
"""Of a run directory; holds one file an arm."""

NOTHING = "nothing"
"""The removal of the arm that everything is compared with."""


@dataclass(frozen=True)
class Arm:
    """What is trained and measured.

    Attributes:
        removal: label of the request, such as "top:gas"; "nothing", or "subset" of the linear
            datamodelling score.
        control: None, or how the removed set was made as a control of the removal: "random",
            "matched".
        draw: seed of a control's or subset's choice; 0 otherwise.
        ids: rollouts taken out, sorted. In a rerun the slots (step, index) of that name; empty
            where ``arm`` chooses them as training goes.
        arm: of a rerun, "ground_truth" or "random" where rollouts are chosen as training goes;
            "listed" otherwise.
        mode: "replay" or "rerun".
        how: what removal does.
        until: checkpoint that is measured.
        samples: completions of every prompt of the exam.
        seed: of the exam.
        balance: of a control, covariate -> standardised difference from what it controls for.
    """

    removal: str
    control: str | None = None
    draw: int = 0
    ids: tuple[str, ...] = ()
    arm: str = "listed"
    mode: Mode = "replay"
    how: How = "exclude"
    until: int = 0
    samples: int = 16
    seed: int = 0
    balance: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of rollouts taken out."""
        return len(self.ids)

    def dump(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {**asdict(self), "ids": list(self.ids), "balance": dict(self.balance)}

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Arm:
        """The arm that :meth:`dump` gave."""
        return cls(**{**data, "ids": tuple(data["ids"])})

    def address(self, run: Run) -> str:
        """SHA-256 of the run's training and of all that shapes the measurement, 16 digits.

        Two arms that take out the same rollouts in the same way are one training; what they are
        called and compared with is no part.
        """
        what = {k: v for k, v in self.dump().items() if k not in _NAMES}
        return hashlib.sha256(
            json.dumps([fingerprint(run), what], sort_keys=True).encode()
        ).hexdigest()[:16]


_NAMES = ("removal", "control", "draw", "balance")


@dataclass(frozen=True)
class Outcome:
    """What became of an arm.

    Attributes:
        measurement: of the policy at the arm's checkpoint.
        removed: rollouts that were taken out; in a rerun they are known only afterwards.
        seconds: that the training and the measurement took.
    """

    measurement: Measurement
    removed: int
    seconds: float


def fingerprint(run: Run) -> str:
    """SHA-256 of what a run's counterfactuals follow from: recipe, rollouts, checkpoint 0."""
    manifest = run.manifest
    shards = [[s.step, s.rank, s.table.sha256] for s in manifest.store("training")]
    start = [
        [entry.file, entry.sha256]
        for checkpoint in manifest.checkpoints
        if checkpoint.step == 0
        for entry in checkpoint.files
    ]
    recipe = {k: v for k, v in (manifest.recipe or {}).items() if k not in ("summary", "takes")}
    text = json.dumps([recipe, sorted(shards), sorted(start)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def place(run: Run, arm: Arm) -> Path:
    """The file that holds an arm's outcome."""
    return run.path / FOLDER / f"{arm.address(run)}.json"


def save(path: Path, arm: Arm, outcome: Outcome) -> None:
    """Write an arm's outcome, whole or not at all.

    Raises:
        BehaviorTraceError: the disk is full or refuses.
    """
    content = {
        "arm": arm.dump(),
        "measurement": outcome.measurement.dump(),
        "removed": outcome.removed,
        "seconds": round(outcome.seconds, 2),
    }
    atomic.write({path: (json.dumps(content, indent=1) + "\n").encode()})


def load(path: Path) -> Outcome | None:
    """An arm's outcome; None where it has none yet.

    Raises:
        BehaviorTraceError: the file is damaged.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
        measurement = Measurement.parse(data["measurement"])
        return Outcome(measurement, int(data["removed"]), float(data["seconds"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BehaviorTraceError(
            f"{path} is damaged ({type(error).__name__}); remove it to have the arm made again"
        ) from error
