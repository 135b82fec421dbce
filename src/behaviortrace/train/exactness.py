"""When a resumed training equals an unbroken one, and the reasons to refuse when it would not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.recipe import Recipe
from behaviortrace.run import Run

NOTE = "training_machine"
"""Key in the manifest's notes under which :func:`machine` is kept."""


def machine() -> dict[str, Any]:
    """What else decides the bits of a training step: the device, and how the CPU takes its sums."""
    cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def resume_step(run: Run, recipe: Recipe) -> int:
    """The step training would go on from, once it is sure that it can do so exactly.

    Nothing is changed in the run; a training that is finished may be met on any machine.

    On the CPU the continuation is equal bit for bit; on CUDA, up to the order in which its kernels
    take their sums. That the packages are the same is checked by :meth:`Run.begin_resume`.

    Raises:
        BehaviorTraceError: another recipe, another kind of machine, or a checkpoint inside a batch
            that is used for several steps; the message says which.
    """
    _same_recipe(run, recipe)
    point = run.resume_point()
    if point.checkpoint is None or point.step >= recipe.train.steps:
        return point.step
    _same_machine(run.manifest.notes.get(NOTE))
    if point.step % recipe.train.iterations:
        raise BehaviorTraceError(
            f"cannot resume at checkpoint {point.step}: with train.iterations "
            f"{recipe.train.iterations} it lies inside a batch of rollouts that is not saved; "
            "start again in another --out"
        )
    return point.step


def _same_recipe(run: Run, recipe: Recipe) -> None:
    if run.recipe is None:
        raise BehaviorTraceError(
            f"{run.path} holds no recipe, so its training cannot be resumed; use another --out"
        )
    difference = first_difference(run.recipe.model_dump(), recipe.model_dump())
    if difference:
        setting, before, now = difference
        raise BehaviorTraceError(
            f"cannot resume with another recipe: {setting} was {before!r} and is now {now!r}; "
            "give the recipe the run began with, or another --out"
        )


def _same_machine(recorded: Mapping[str, Any] | None) -> None:
    if recorded is None:
        return
    now = machine()
    # The number of threads is restored, not compared.
    for key in ("device", "cpu_capability"):
        if recorded.get(key) != now[key]:
            raise BehaviorTraceError(
                f"an exact resume needs the same machine, but {key} was {recorded.get(key)!r} and "
                f"is now {now[key]!r}; resume where the run began, or start again in another --out"
            )


def first_difference(
    before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = ""
) -> tuple[str, Any, Any] | None:
    """The first setting whose value differs: (dotted name, before, now); None if all are equal."""
    for key in [*before, *(k for k in now if k not in before)]:
        a, b = before.get(key), now.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            deeper = first_difference(a, b, f"{prefix}{key}.")
            if deeper:
                return deeper
        elif a != b:
            return f"{prefix}{key}", a, b
    return None
