"""The registry of targets: each kind is one function, declared once with its metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from behaviortrace.draws.checkpoint import Policy
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant.behaviors import Behavior
from behaviortrace.recipe import Recipe
from behaviortrace.records import Target
from behaviortrace.registry import Registry

if TYPE_CHECKING:
    from behaviortrace.plant.prompts import PromptSet


class TargetUnavailable(BehaviorTraceError):
    """A target that cannot be made here, as from responses none of which shows the behaviour."""


@dataclass(frozen=True)
class Context:
    """What a target is made from.

    Attributes:
        policy: the policy at a checkpoint, which takes the gradients.
        recipe: the run's recipe; ``recipe.targets`` bounds the number of texts.
        prompts: the run's prompts; probes and controls stay out of every target.
        behavior: the behaviour.
    """

    policy: Policy
    recipe: Recipe
    prompts: PromptSet
    behavior: Behavior


@dataclass(frozen=True)
class TargetKind:
    """A registered target.

    Attributes:
        name: how it is called, unique.
        make: :class:`Context` -> :class:`Target`.
        each_checkpoint: made at every saved checkpoint, as TracInCP needs; otherwise at the
            analysed one alone.
        reference: where it comes from.
    """

    name: str
    make: Callable[[Context], Target]
    each_checkpoint: bool
    reference: str

    def __call__(self, context: Context) -> Target:
        """The target at the context's checkpoint.

        Raises:
            TargetUnavailable: it cannot be made; the message says why.
        """
        return self.make(context)


_REGISTRY: Registry[TargetKind] = Registry("target", "behaviortrace.targets")
names = _REGISTRY.names
get = _REGISTRY.get


def target(
    *, name: str, each_checkpoint: bool, reference: str
) -> Callable[[Callable[[Context], Target]], TargetKind]:
    """Declare a function of :class:`Context` as a target kind.

    Third parties add one through an entry point in the group ``behaviortrace.targets``.

    Raises:
        BehaviorTraceError: the name is taken.
    """

    def declare(make: Callable[[Context], Target]) -> TargetKind:
        return _REGISTRY.register(name=name)(TargetKind(name, make, each_checkpoint, reference))

    return declare


def mean_direction(sketches: np.ndarray, kind: str) -> np.ndarray:
    """The mean of per-text sketches, (dim,) float32.

    Raises:
        TargetUnavailable: there is none, or one is not finite.
    """
    if len(sketches) == 0:
        raise TargetUnavailable(f"target {kind!r} has no texts")
    mean: np.ndarray = np.asarray(np.mean(sketches, axis=0, dtype=np.float64))
    if not np.isfinite(mean).all():
        raise TargetUnavailable(f"target {kind!r} has a gradient that is not finite")
    return mean.astype(np.float32)
