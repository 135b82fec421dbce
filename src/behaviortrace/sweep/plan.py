"""Which runs a sweep consists of, and what each of them is called."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from behaviortrace import recipe as recipes
from behaviortrace.draws.stage import draw_name
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.recipe import Recipe

EXECUTORS = ("local", "ray")
_SEEDS = 2**32  # as many as numpy's and transformers' generators take
_MOST = 1000  # draws, or workers
_WORDS = {"summary", "takes", "causes"}  # it shapes no training


@dataclass(frozen=True)
class Job:
    """One run of a sweep: the training of a seed, and all draws from it.

    Attributes:
        root: directory of the sweep.
        recipe: complete, with this run's seed and draws.
        threads: the run may compute with.
    """

    root: Path
    recipe: Recipe
    threads: int

    @property
    def seed(self) -> int:
        """Training seed."""
        return self.recipe.seed

    @property
    def key(self) -> int:
        """Unique in a sweep: the seed."""
        return self.seed

    @property
    def module(self) -> str:
        """The module that works at it."""
        return "behaviortrace.sweep.worker"

    @property
    def draws(self) -> list[int]:
        """Seeds of its draws."""
        return self.recipe.draw.seeds

    @property
    def draw_names(self) -> list[str]:
        """Names of its draws."""
        return [draw_name(seed) for seed in self.draws]

    @property
    def name(self) -> str:
        """Folder of the run: its seed, and the first 12 digits of its address."""
        return f"seed-{self.seed}-{address(self.recipe)[:12]}"

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.root / "runs" / self.name

    @property
    def log(self) -> Path:
        """What its process printed."""
        return self.root / "logs" / f"{self.name}.log"

    def aside(self, kind: str) -> Path:
        """Where the process tells its "progress" or its "outcome"."""
        return self.root / "progress" / f"{self.name}.{kind}"

    def dump(self) -> str:
        """As JSON text, for another process."""
        settings = self.recipe.model_dump(mode="json")
        return json.dumps(
            {"root": str(self.root.resolve()), "recipe": settings, "threads": self.threads}
        )

    @classmethod
    def parse(cls, text: str) -> Job:
        """From the text that :meth:`dump` gave."""
        data = json.loads(text)
        return cls(Path(data["root"]), recipes.parse(data["recipe"]), data["threads"])


@dataclass(frozen=True)
class Plan:
    """A sweep that is wanted.

    Attributes:
        root: its directory.
        recipe: what every run has in common; its own seed is not used.
        seeds: training seeds, ascending.
        draws: seeds of the draws from every run.
        executor: one of ``EXECUTORS``.
        workers: runs at a time, at most.
        cores: of this machine, shared out among the workers.
    """

    root: Path
    recipe: Recipe
    seeds: tuple[int, ...]
    draws: tuple[int, ...]
    executor: str = "local"
    workers: int = 1
    cores: int = 1

    @property
    def slots(self) -> int:
        """Runs at a time: as many as may be, and no more than there are."""
        return min(self.workers, len(self.seeds))

    @property
    def threads(self) -> int:
        """Threads a run may compute with: the cores divided by the slots, at least one."""
        return max(1, self.cores // self.slots)

    @property
    def jobs(self) -> list[Job]:
        """One run a seed."""
        return [Job(self.root, self._recipe(seed), self.threads) for seed in self.seeds]

    def grown(self, seeds: Sequence[int], draws: Sequence[int]) -> Plan:
        """The plan with the seeds and draws it had before too: a sweep never loses a replicate."""
        further = [seed for seed in self.draws if seed not in draws]
        return replace(
            self,
            seeds=tuple(sorted({*self.seeds, *seeds})),
            draws=(*draws, *further),
        )

    def _recipe(self, seed: int) -> Recipe:
        settings = self.recipe.model_dump(mode="json")
        settings["seed"] = seed
        settings["draw"]["seeds"] = list(self.draws)
        return recipes.parse(settings, f"{self.recipe.name} with seed {seed}")


def make_plan(
    root: Path,
    recipe: Recipe,
    seeds: Sequence[int],
    draws: int,
    *,
    executor: str = "local",
    workers: int = 1,
) -> Plan:
    """The plan of a sweep.

    Args:
        root: its directory.
        recipe: what every run has in common.
        seeds: training seeds.
        draws: draws from every run, at least one. Their seeds are the recipe's ``draw.seeds``, and
            then the numbers that follow its largest.
        executor: one of ``EXECUTORS``; "ray" needs the extra of that name.
        workers: runs at a time, at least one.

    Raises:
        BehaviorTraceError: no seed, one that is out of range or given twice, no draw or worker or
            too many, an executor that is unknown or not installed.
    """
    if executor not in EXECUTORS:
        raise BehaviorTraceError(f"--executor {executor!r} is not known; use local or ray")
    if executor == "ray" and importlib.util.find_spec("ray") is None:
        raise BehaviorTraceError(
            "--executor ray needs Ray, which is not installed; install it with: "
            "pip install 'behaviortrace[ray]', or use --executor local"
        )
    if not seeds:
        raise BehaviorTraceError("--seeds names no seed; give some, such as --seeds 0,1,2")
    for seed in seeds:
        if not 0 <= seed < _SEEDS:
            raise BehaviorTraceError(f"--seeds has {seed}; a seed is 0 or more and below 2**32")
    repeated = sorted({seed for seed in seeds if list(seeds).count(seed) > 1})
    if repeated:
        raise BehaviorTraceError(f"--seeds has {repeated[0]} more than once; give it once")
    for option, number in (("--draws", draws), ("--workers", workers)):
        if not 1 <= number <= _MOST:
            raise BehaviorTraceError(f"{option} is {number}; give 1 to {_MOST:,}")
    return Plan(
        root,
        recipe,
        tuple(sorted(seeds)),
        draw_seeds(recipe, draws),
        executor,
        workers,
        cores(),
    )


def draw_seeds(recipe: Recipe, number: int) -> tuple[int, ...]:
    """Seeds of the first draws of a recipe; more of them begin with the same ones."""
    own = recipe.draw.seeds
    following = range(max(own) + 1, max(own) + 1 + max(0, number - len(own)))
    return tuple([*own, *following][:number])


def address(recipe: Recipe) -> str:
    """SHA-256 of everything in a recipe that shapes a training and what is done with it.

    Left out are the recipe's describing texts, the seeds of the draws, and the counterfactuals: a
    further draw or a replay leaves the training what it is. So is ``assume.repeat_icc``, which
    `plan` alone reads: runs made before there was such a setting keep their names. Versions of
    packages are no part of a recipe.

    Example:
        >>> one, two = recipes.load("tiny"), recipes.load("tiny", {"draw.seeds": [100, 101]})
        >>> address(one) == address(two), address(one) == address(recipes.load("tiny", {"seed": 1}))
        (True, False)
    """
    return _digest(lasting(recipe))


def family(recipe: Recipe) -> str:
    """The same of everything that the runs of a sweep have in common: all but the seed."""
    return _digest({key: value for key, value in lasting(recipe).items() if key != "seed"})


def lasting(recipe: Recipe) -> dict[str, Any]:
    """The settings that :func:`address` is taken of."""
    settings = recipe.model_dump(mode="json")
    draw = {key: value for key, value in settings["draw"].items() if key != "seeds"}
    assume = {key: value for key, value in settings["assume"].items() if key != "repeat_icc"}
    shaping = {key: value for key, value in settings.items() if key not in _WORDS}
    return shaping | {"draw": draw, "assume": assume}


def cores() -> int:
    """Processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _digest(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
