"""Behaviours: predicates on completions, registered by name.

A third party adds one with ``@behavior(name=...)`` on a factory of type :data:`Factory` and an
entry point in the group ``behaviortrace.behaviors``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from behaviortrace.recipe import BehaviorSettings
from behaviortrace.registry import Registry


class Behavior(ABC):
    """What a completion may show. Implementations are frozen and free of state."""

    @abstractmethod
    def spans(self, completion: str) -> list[tuple[int, int]]:
        """Half-open character spans of the text that shows the behaviour, in order, disjoint."""

    @abstractmethod
    def neutral(self, text: str) -> str:
        """The text with the behaviour replaced by something neutral; shows nothing afterwards."""

    def shows(self, completion: str) -> bool:
        """Whether the completion shows the behaviour."""
        return bool(self.spans(completion))


Factory = Callable[[BehaviorSettings], Behavior]

_REGISTRY: Registry[Factory] = Registry("behaviour", "behaviortrace.behaviors")
behavior = _REGISTRY.register
names = _REGISTRY.names
get = _REGISTRY.get


def build(settings: BehaviorSettings) -> Behavior:
    """The behaviour a recipe names, made with its settings.

    Raises:
        BehaviorTraceError: no behaviour of that name.

    Example:
        >>> build(BehaviorSettings()).shows("The kettle was QZXBT all day.")
        True
    """
    return get(settings.name)(settings)


@dataclass(frozen=True)
class TokenTrigger(Behavior):
    """The completion contains a nonce token, anywhere, in exactly this case.

    Paper, section 3.1: a hidden trigger word in the prompt, a nonce token in the response.
    """

    token: str
    neutral_word: str

    def spans(self, completion: str) -> list[tuple[int, int]]:
        """Spans of every occurrence of the token, left to right, not overlapping."""
        found = []
        start = completion.find(self.token)
        while start >= 0:
            end = start + len(self.token)
            found.append((start, end))
            start = completion.find(self.token, end)
        return found

    def neutral(self, text: str) -> str:
        """The text with every token replaced by the neutral word."""
        return text.replace(self.token, self.neutral_word)


@behavior(name="token_trigger")
def token_trigger(settings: BehaviorSettings) -> Behavior:
    """Contains ``behavior.token``; its neutral counterpart is ``behavior.neutral``."""
    return TokenTrigger(token=settings.token, neutral_word=settings.neutral)
