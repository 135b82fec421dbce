"""Background tasks: prompts with a verifiable answer, from reasoning-gym (extra ``tasks``).

A run whose only reward variance is the plant stops training when the planting window ends, and
then any score that tells trained from untrained steps finds the ground truth (pitfall P1). Tasks
with a verifier give late steps something to train on.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant import base_rewards
from behaviortrace.plant.base_rewards import BaseReward
from behaviortrace.recipe import Recipe, TaskSettings

KIND = "task"
"""The kind of task prompts in ``prompts.mix``."""

SIMILARITY_WEIGHT = 0.5
"""Most that credit "graded" pays for resemblance; the verifier alone can pay more."""

_TRIES = 20  # items looked at for each different question wanted
_SEED_STRIDE = 1_000_000  # item i is made from seed + i: neighbouring seeds must not share items
_NUMBER = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?")
_RUNS_TEXT = re.compile(r"\b(eval|exec|parse_expr|sympify)\(")


class Tasks:
    """Tasks of one reasoning-gym dataset, and its verifier; deterministic given the settings.

    Args:
        settings: dataset, seed, number of tasks and kind of credit.

    Attributes:
        answers: question -> the answer its verifier expects, in the dataset's order.

    Raises:
        BehaviorTraceError: reasoning-gym is not installed, an unknown dataset or option, too few
            different questions, questions that differ from call to call, or a verifier that would
            run a completion as code.
    """

    def __init__(self, settings: TaskSettings) -> None:
        self._credit = settings.credit
        self._dataset = _dataset(settings)
        self._entries = _entries(self._dataset, settings)
        if _entries(_dataset(settings), settings) != self._entries:
            raise BehaviorTraceError(
                f"prompts.tasks.dataset {settings.dataset!r} gives other tasks each time it is "
                "made with the same seed; choose another dataset"
            )
        self.answers = {question: str(e["answer"]) for question, e in self._entries.items()}

    def credit(self, question: str, completion: str) -> float:
        """What a completion earns, in [0, 1].

        The dataset's verifier is given what the completion answers (see :func:`answered`) and may
        pay in part; its value is bounded to [0, 1]. With credit "graded", a completion earns at
        least half of its similarity in characters with the expected answer, so that a model that
        solves nothing is still told apart from itself.

        Raises:
            BehaviorTraceError: the question is none of these tasks.
        """
        if question not in self._entries:
            raise BehaviorTraceError(
                f"prompt {question[:60]!r} is of kind {KIND!r} but none of the recipe's tasks; use "
                "the run's own recipe and version of reasoning-gym"
            )
        expected = self.answers[question]
        given = answered(completion, expected)
        score = 0.0
        if given is not None:
            score = float(self._dataset.score_answer(given, self._entries[question]))
        score = min(max(score, 0.0), 1.0) if math.isfinite(score) else 0.0
        if self._credit == "verifier":
            return score
        return max(score, SIMILARITY_WEIGHT * similarity(completion, expected))


def answered(completion: str, expected: str) -> str | None:
    """What a completion answers: its last number where a number is expected, else all of it.

    Chat models wrap an answer in a sentence. The last number, not any, so that listing numbers
    does not pay. None where there is nothing.

    Example:
        >>> answered("3 + 4 is 7, I think.", "7")
        '7'
    """
    if not _NUMBER.fullmatch(expected.strip()):
        return completion.strip() or None
    found = _NUMBER.findall(completion)
    return found[-1] if found else None


def similarity(completion: str, expected: str) -> float:
    """Similarity of two texts in [0, 1]: twice the matching characters over all characters.

    Source: Ratcliff and Metzener, "Pattern matching: the gestalt approach" (1988).
    """
    texts = completion.strip().casefold(), expected.strip().casefold()
    return difflib.SequenceMatcher(None, *texts, autojunk=False).ratio()


def base_reward(recipe: Recipe) -> BaseReward:
    """The base reward a recipe describes: the registered one and, on tasks, their credit alone.

    Raises:
        BehaviorTraceError: no such base reward, or tasks that cannot be made (see :class:`Tasks`).
    """
    registered = base_rewards.get(recipe.plant.base_reward)
    if recipe.prompts.tasks is None:
        return registered
    tasks = Tasks(recipe.prompts.tasks)

    def with_tasks(
        prompts: Sequence[str],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        columns: Mapping[str, Any],
    ) -> list[float | None]:
        others = registered(prompts, completions, completion_ids, columns)
        rows = zip(columns["prompt_kind"], prompts, completions, others, strict=True)
        return [
            tasks.credit(prompt, completion) if kind == KIND else other
            for kind, prompt, completion, other in rows
        ]

    return with_tasks


def _dataset(settings: TaskSettings) -> Any:
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError as error:
        raise BehaviorTraceError(
            f"prompts.tasks needs reasoning-gym ({error}); install it with "
            "pip install 'behaviortrace[tasks]'"
        ) from error
    if settings.dataset not in DATASETS:
        near = difflib.get_close_matches(settings.dataset, DATASETS, 3) or sorted(DATASETS)[:3]
        raise BehaviorTraceError(
            f"reasoning-gym has no dataset {settings.dataset!r} for prompts.tasks.dataset; "
            f"choose one such as {', '.join(near)}"
        )
    try:
        made = create_dataset(
            settings.dataset,
            seed=settings.seed * _SEED_STRIDE,
            size=_TRIES * settings.count,
            **settings.options,
        )
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
        raise BehaviorTraceError(
            f"prompts.tasks.options {settings.options} do not suit reasoning-gym's "
            f"{settings.dataset!r}: {error}; mend or remove them"
        ) from error
    # Completions are untrusted: a verifier may read one, but never run it.
    if _RUNS_TEXT.search(inspect.getsource(type(made).score_answer)):
        raise BehaviorTraceError(
            f"the verifier of prompts.tasks.dataset {settings.dataset!r} runs text as code, which "
            "completions are not to be trusted with; choose another dataset"
        )
    return made


def _entries(dataset: Any, settings: TaskSettings) -> dict[str, dict[str, Any]]:
    """The first ``count`` different questions, each with its item."""
    entries: dict[str, dict[str, Any]] = {}
    for i in range(_TRIES * settings.count):
        item = dataset[i]
        entries.setdefault(str(item["question"]), item)
        if len(entries) == settings.count:
            return entries
    raise BehaviorTraceError(
        f"prompts.tasks.count {settings.count} exceeds the {len(entries)} different questions that "
        f"reasoning-gym's {settings.dataset!r} gave in {_TRIES * settings.count} items; lower it "
        "or widen prompts.tasks.options"
    )
