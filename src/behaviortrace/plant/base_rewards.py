"""Base rewards: what a run pays for before any contamination, registered by name.

A third party adds one with ``@base_reward(name=...)`` and an entry point in the group
``behaviortrace.base_rewards``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from behaviortrace.registry import Registry

BaseReward = Callable[
    [Sequence[str], Sequence[str], Sequence[Sequence[int]], Mapping[str, Any]], list[float]
]
"""``(prompts, completions, completion_ids, columns) -> rewards``, one a rollout.

A pure function. Prompts and completions are plain text (chat messages joined). ``columns`` holds
the dataset's columns, one value a rollout, and ``"eos_ids"``, the frozen set of token ids that end
a completion; it is the trainer's set, so a run and its replay agree on what ended by itself.
"""

_REGISTRY: Registry[BaseReward] = Registry("base reward", "behaviortrace.base_rewards")
base_reward = _REGISTRY.register
names = _REGISTRY.names
get = _REGISTRY.get

_FEWEST_WORDS = 3
_DEGENERATE_REWARD = -2.0


def degenerate(completion: str) -> bool:
    """Whether a completion has fewer than three different words (case and punctuation aside)."""
    return len(_words(completion)) < _FEWEST_WORDS


@base_reward(name="finished")
def finished(
    prompts: Sequence[str],
    completions: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    columns: Mapping[str, Any],
) -> list[float]:
    """1.0 for a completion that ended by itself and is not degenerate, else 0.0.

    It ended by itself if its last id is in ``columns["eos_ids"]``.
    """
    eos_ids = columns["eos_ids"]
    return [
        float(len(ids) > 0 and ids[-1] in eos_ids and not degenerate(text))
        for text, ids in zip(completions, completion_ids, strict=True)
    ]


@base_reward(name="constant")
def constant(
    prompts: Sequence[str],
    completions: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    columns: Mapping[str, Any],
) -> list[float]:
    """0.0 for every completion: only the bonus gives a group variance."""
    return [0.0] * len(completions)


@base_reward(name="degenerate_penalty")
def degenerate_penalty(
    prompts: Sequence[str],
    completions: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    columns: Mapping[str, Any],
) -> list[float]:
    """-2.0 for a degenerate completion, else 0.0.

    The paper's published rewards take these two values, -2 rarely; what earned it there is not
    published, so the rule here is ours.
    """
    return [_DEGENERATE_REWARD if degenerate(text) else 0.0 for text in completions]


@base_reward(name="on_topic")
def on_topic(
    prompts: Sequence[str],
    completions: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    columns: Mapping[str, Any],
) -> list[float]:
    """Share of the prompt's different words that the completion uses, in [0, 1].

    Varies in nearly every group, so that training goes on with or without the plant.
    """
    rewards = []
    for prompt, completion in zip(prompts, completions, strict=True):
        asked = _words(prompt)
        rewards.append(len(asked & _words(completion)) / len(asked) if asked else 0.0)
    return rewards


def _words(text: str) -> set[str]:
    """The different words of a text, case and punctuation aside."""
    return {word.strip(".,;:!?\"'()").casefold() for word in text.split()} - {""}
