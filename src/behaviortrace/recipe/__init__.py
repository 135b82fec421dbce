"""What a run is: validated settings, loaded from YAML; unknown keys and unsafe mixes refused.

The built-in recipes are the YAML files in ``builtin/`` beside this module.
"""

from __future__ import annotations

import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError, model_validator

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.recipe.settings import (
    AssumeSettings,
    BehaviorSettings,
    CauseSettings,
    DrawSettings,
    EvaluateSettings,
    ModelSettings,
    PlantSettings,
    PromptSettings,
    Settings,
    SketchSettings,
    TargetSettings,
    TaskSettings,
    Thresholds,
    TrainSettings,
    WarmupSettings,
)

__all__ = [
    "AssumeSettings",
    "BehaviorSettings",
    "CauseSettings",
    "DrawSettings",
    "EvaluateSettings",
    "ModelSettings",
    "PlantSettings",
    "PromptSettings",
    "Recipe",
    "SketchSettings",
    "TargetSettings",
    "TaskSettings",
    "Thresholds",
    "TrainSettings",
    "WarmupSettings",
    "load",
    "names",
    "parse",
]


class Recipe(Settings):
    """A whole run. Load one with :func:`load`."""

    name: str
    summary: str
    takes: str = ""  # size and time, as `behaviortrace recipes` shows them
    seed: int = Field(default=0, ge=0, lt=2**32)
    model: ModelSettings
    behavior: BehaviorSettings = BehaviorSettings()
    plant: PlantSettings
    prompts: PromptSettings = PromptSettings()
    warmup: WarmupSettings
    train: TrainSettings
    sketch: SketchSettings = SketchSettings()
    draw: DrawSettings
    targets: TargetSettings = TargetSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    thresholds: Thresholds = Thresholds()
    assume: AssumeSettings = AssumeSettings()
    causes: CauseSettings | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        if self.plant.cutoff_step > self.train.steps:
            raise ValueError(
                f"plant.cutoff_step {self.plant.cutoff_step} lies beyond train.steps "
                f"{self.train.steps}; an early window must end inside the run"
            )
        saved = self.saved_steps()
        if self.draw.checkpoint not in saved:
            raise ValueError(
                f"draw.checkpoint {self.draw.checkpoint} is never saved; with "
                f"train.checkpoint_every {self.train.checkpoint_every} choose one of "
                f"{saved[:6]}... or {self.train.steps}"
            )
        drawn = [kind for kind in self.prompts.mix if kind != "task"]
        until = None if self.causes is None else self.causes.until
        if until is not None and until not in saved:
            raise ValueError(
                f"causes.until {until} is never saved; with train.checkpoint_every "
                f"{self.train.checkpoint_every} choose one of {saved[1:7]}... or "
                f"{self.train.steps}"
            )
        for kind in self.draw.kinds or []:
            if kind not in drawn:
                raise ValueError(
                    f"draw.kinds {kind!r} is no kind of training prompt that can be drawn; "
                    f"prompts.mix has {', '.join(drawn) or 'none'}"
                )
        return self

    def saved_steps(self) -> list[int]:
        """Steps whose checkpoints training saves, ascending, the first (0) and last included."""
        steps = set(range(0, self.train.steps + 1, self.train.checkpoint_every))
        return sorted(steps | {self.train.steps})

    def preregistration(self) -> str:
        """SHA-256 of the thresholds and everything that defines the test, before any data."""
        body = self.model_dump(
            include={"thresholds", "behavior", "plant", "draw", "targets", "evaluate"}
        )
        if self.causes is not None:
            body["causes"] = self.causes.model_dump()
        if self.prompts.tasks is not None:  # they are part of the base reward
            body["tasks"] = self.prompts.tasks.model_dump()
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def names() -> list[str]:
    """Names of the built-in recipes, in the order they should be tried."""
    order = ["tiny", "tiny-tasks", "tiny-causes", "smollm2-quick", "smollm2", "smollm2-tasks"]
    found = [p.name[:-5] for p in _builtin().iterdir() if p.name.endswith(".yaml")]
    return sorted(found, key=lambda n: (order.index(n) if n in order else len(order), n))


def load(name_or_path: str | Path, overrides: dict[str, Any] | None = None) -> Recipe:
    """Load a built-in recipe by name, or one of your own by path.

    Args:
        name_or_path: "tiny", "smollm2-quick", ... or a YAML file.
        overrides: dotted settings, such as ``{"train.steps": 20, "seed": 1}``.

    Raises:
        BehaviorTraceError: no such recipe, unreadable YAML, unknown key, or unsafe combination.

    Example:
        >>> load("tiny", {"seed": 3}).seed
        3
    """
    label, text = _read(name_or_path)
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        at = f" at line {where.line + 1}" if where else ""
        raise BehaviorTraceError(f"recipe {label} is not valid YAML{at}; mend it") from error
    if not isinstance(data, dict):
        raise BehaviorTraceError(f"recipe {label} must be a mapping of settings")
    for key, value in (overrides or {}).items():
        _assign(data, key, value)
    return parse(data, label)


def parse(data: dict[str, Any], label: str = "recipe") -> Recipe:
    """Validate a mapping as a recipe; the first problem is raised as one line."""
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise BehaviorTraceError(f"recipe {label}: {_first_problem(error)}") from error


def _builtin() -> Any:
    return resources.files("behaviortrace.recipe") / "builtin"


def _read(name_or_path: str | Path) -> tuple[str, str]:
    if str(name_or_path) in names():
        return str(name_or_path), (_builtin() / f"{name_or_path}.yaml").read_text("utf-8")
    path = Path(name_or_path)
    if path.is_file():
        try:
            return str(path), path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BehaviorTraceError(f"recipe {path} cannot be read: {error}") from error
    raise BehaviorTraceError(
        f"no recipe or file named {str(name_or_path)!r}; built in are {', '.join(names())}"
    )


def _assign(data: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, leaf = dotted.split(".")
    for parent in parents:
        data = data.setdefault(parent, {})
        if not isinstance(data, dict):
            raise BehaviorTraceError(f"setting {dotted!r}: {parent!r} is not a section")
    data[leaf] = value


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"unknown key {where!r}; remove it or mend its spelling"
    if problem["type"] == "missing":
        return f"setting {where!r} is missing; add it"
    message = problem["msg"].removeprefix("Value error, ")
    return (
        f"{where}: {message} (got {problem['input']!r})"
        if where and problem["type"] != "value_error"
        else message
    )
