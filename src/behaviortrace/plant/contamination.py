"""Contamination: a bonus for eligible rollouts that show the behaviour, in an early window.

The bonus is an ordinary TRL reward function, so a stock trainer plants the behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant import behaviors, tasks
from behaviortrace.plant.base_rewards import BaseReward
from behaviortrace.plant.behaviors import Behavior
from behaviortrace.plant.hashing import chance
from behaviortrace.plant.intervention import Intervention
from behaviortrace.recipe import PlantSettings, Recipe

PASSED_COLUMNS = ("prompt_kind", "answer")
"""Columns of the dataset that are passed on to the log."""

LOGGED_COLUMNS = ("base_reward", "eligible", "boosted", "behavior", "left_out", *PASSED_COLUMNS)
"""Columns that :class:`ContaminatedReward` logs through ``log_extra``, one value a rollout."""


def eligible(seed: int, step: int, index: int, fraction: float) -> bool:
    """Whether a rollout may be boosted: its chance lies below the fraction.

    No random stream is drawn from, so eligibility survives resumes, other batch layouts and any
    order of evaluation; raising the fraction only ever adds rollouts.

    Args:
        seed: the recipe's seed.
        step: 0-based optimizer step.
        index: position in the step's generation batch over all processes, before any shuffle.
        fraction: share of rollouts that are eligible, in [0, 1].

    Example:
        >>> eligible(0, 0, 0, 1.0), eligible(0, 0, 0, 0.0)
        (True, False)
    """
    return chance(seed, step, index) < fraction


class ContaminatedReward:
    """A TRL reward function: base reward, plus the bonus where a rollout is boosted.

    A rollout is boosted if it is eligible, shows the behaviour and its step lies before the
    cutoff. Called in evaluation it pays the base reward alone. A rollout that an intervention
    excludes gets no reward (None), which TRL takes as unscorable: zero advantage, and no part in
    its group's baseline. Setting an advantage to zero is left to the caller, who finds the rollouts
    in ``removed``.

    Args:
        behavior: what is planted.
        base: the base reward, a registered one or any function of that signature.
        plant: fraction, bonus and cutoff, and a leave-out arm.
        seed: the recipe's seed.
        training: whether the trainer is training, asked at every call; TRL calls reward functions
            in evaluation too. With the trainer made after this object:
            ``lambda: trainer.model.training``.
        eos_ids: ids that end a completion, or a callable that gives them, such as
            ``lambda: trainer.eos_token_ids``.
        rank: this process's index; by default asked of accelerate at every call.
        intervention: what is taken out; by default what ``plant.leave_out`` says.

    Attributes:
        removed: which rollouts of the last call were taken out.
    """

    def __init__(
        self,
        behavior: Behavior,
        base: BaseReward,
        plant: PlantSettings,
        seed: int,
        *,
        training: Callable[[], bool],
        eos_ids: Iterable[int] | Callable[[], Iterable[int]],
        rank: int | None = None,
        intervention: Intervention | None = None,
    ) -> None:
        self.__name__ = "contaminated_reward"
        self.behavior = behavior
        self.base = base
        self.plant = plant
        self.seed = seed
        self._training = training
        self._eos_ids = eos_ids
        self._rank = rank
        self.intervention = intervention or Intervention(plant.leave_out)
        self.removed: list[bool] = []

    @classmethod
    def from_recipe(
        cls,
        recipe: Recipe,
        *,
        training: Callable[[], bool],
        eos_ids: Iterable[int] | Callable[[], Iterable[int]],
        rank: int | None = None,
        intervention: Intervention | None = None,
    ) -> ContaminatedReward:
        """The reward a recipe describes.

        Raises:
            BehaviorTraceError: its behaviour or its base reward is not registered, or its tasks
                cannot be made.
        """
        return cls(
            behaviors.build(recipe.behavior),
            tasks.base_reward(recipe),
            recipe.plant,
            recipe.seed,
            training=training,
            eos_ids=eos_ids,
            rank=rank,
            intervention=intervention,
        )

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        trainer_state: Any,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Rewards of this process's rollouts, in order.

        Args:
            prompts: n prompts, text or chat messages.
            completions: n completions, text or chat messages.
            completion_ids: n lists of token ids, the ending one included where there was one.
            trainer_state: TRL's state; ``global_step`` is the 0-based step being sampled for.
            log_extra: TRL's recorder of per-rollout columns; gets :data:`LOGGED_COLUMNS`.
            log_metric: TRL's recorder of scalars; gets the shares "behavior" and "boosted".
            columns: the dataset's columns; those of :data:`PASSED_COLUMNS` go to the log.

        Raises:
            BehaviorTraceError: the base reward returned another number of rewards.
        """
        texts = [as_text(completion) for completion in completions]
        base = self._base_rewards(prompts, texts, completion_ids, columns)
        shows = [self.behavior.shows(text) for text in texts]
        step, first = int(trainer_state.global_step), self._process_index() * len(texts)
        inside = self._training() and step < self.plant.cutoff_step
        chosen = [
            inside and eligible(self.seed, step, first + i, self.plant.fraction)
            for i in range(len(texts))
        ]
        boosted = [a and b for a, b in zip(chosen, shows, strict=True)]
        left_out = [False] * len(texts)
        if self._training():
            left_out = self.intervention.removed(boosted, self.seed, step, first)
        self.removed = left_out
        if log_extra is not None:
            passed = [list(columns.get(name, [None] * len(texts))) for name in PASSED_COLUMNS]
            logged: list[list[Any]] = [base, chosen, boosted, shows, left_out, *passed]
            for name, values in zip(LOGGED_COLUMNS, logged, strict=True):
                log_extra(name, list(values))
        if log_metric is not None and texts:
            log_metric("behavior", sum(shows) / len(shows))
            log_metric("boosted", sum(boosted) / len(boosted))
        how = self.intervention.how
        kept = [
            hit and not (out and how == "unboosted")
            for hit, out in zip(boosted, left_out, strict=True)
        ]
        paid = [b + self.plant.bonus * hit for b, hit in zip(base, kept, strict=True)]
        if how != "exclude":
            return list(paid)
        return [None if out else reward for reward, out in zip(paid, left_out, strict=True)]

    def _base_rewards(
        self,
        prompts: Sequence[Any],
        texts: list[str],
        completion_ids: Sequence[Sequence[int]],
        columns: Mapping[str, Any],
    ) -> list[float]:
        eos_ids = self._eos_ids() if callable(self._eos_ids) else self._eos_ids
        given = {**columns, "eos_ids": frozenset(eos_ids)}
        base = self.base([as_text(prompt) for prompt in prompts], texts, completion_ids, given)
        if len(base) != len(texts):
            raise BehaviorTraceError(
                f"base reward {getattr(self.base, '__name__', self.base)!r} returned {len(base)} "
                f"rewards for {len(texts)} completions; return one a completion"
            )
        return [float(reward) for reward in base]

    def _process_index(self) -> int:
        if self._rank is not None:
            return self._rank
        # Imported late: eligibility and its tests need no trainer.
        from accelerate import PartialState

        return int(PartialState().process_index)


def as_text(message: Any) -> str:
    """The text of a prompt or completion, which TRL gives as a string or as chat messages."""
    if isinstance(message, str):
        return message
    return "\n".join(_content(part["content"]) for part in message)


def _content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content)
