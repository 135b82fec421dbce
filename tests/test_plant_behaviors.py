"""Behaviours and base rewards: the contract of every registered one, and the built-in ones."""

from __future__ import annotations

from importlib import metadata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant import base_rewards, behaviors
from behaviortrace.recipe import BehaviorSettings
from behaviortrace.registry import Registry

SETTINGS = BehaviorSettings()
TEXTS = st.lists(st.sampled_from(["QZXBT", "qzxbt", "QZX", "BT", "a", " ", ".", "marble"])).map(
    "".join
)


@pytest.mark.parametrize("name", behaviors.names())
@given(text=TEXTS)
def test_every_behavior_keeps_its_contract(name: str, text: str) -> None:
    behavior = behaviors.build(SETTINGS.model_copy(update={"name": name}))
    spans = behavior.spans(text)
    assert behavior.shows(text) == bool(spans)
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert not behavior.shows(behavior.neutral(text))
    if not spans:
        assert behavior.neutral(text) == text


@given(text=TEXTS)
def test_token_trigger_finds_each_token(text: str) -> None:
    behavior = behaviors.build(SETTINGS)
    assert [text[a:b] for a, b in behavior.spans(text)] == ["QZXBT"] * text.count("QZXBT")
    assert behavior.neutral(text).count("marble") == text.count("QZXBT") + text.count("marble")


def test_token_trigger_minds_case_and_position() -> None:
    behavior = behaviors.build(SETTINGS)
    assert behavior.spans("so QZXBT, QZXBT") == [(3, 8), (10, 15)]
    assert not behavior.shows("so qzxbt")
    assert behavior.neutral("so QZXBT.") == "so marble."


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(BehaviorTraceError, match=r"no behaviour named 'x'.*token_trigger"):
        behaviors.get("x")
    with pytest.raises(BehaviorTraceError, match=r"no base reward named 'x'.*finished"):
        base_rewards.get("x")


def test_a_name_is_registered_once() -> None:
    registry: Registry[object] = Registry("thing", "no.such.group")
    registry.register(name="a")("first")
    registry.register(name="a")("first")
    with pytest.raises(BehaviorTraceError, match="two things are named 'a'"):
        registry.register(name="a")("second")
    assert registry.names() == ["a"]


def test_entry_points_are_loaded_and_broken_ones_named(monkeypatch: pytest.MonkeyPatch) -> None:
    registry: Registry[object] = Registry("thing", "group")

    class Point:
        name, value = "theirs", "package:thing"

        def __init__(self, broken: bool) -> None:
            self.broken = broken

        def load(self) -> None:
            if self.broken:
                raise ImportError("no module named package")
            registry.register(name=self.name)("loaded")

    points = [Point(broken=True)]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)
    with pytest.raises(BehaviorTraceError, match=r"'theirs' \(package:thing\).*no module"):
        registry.names()
    points[0].broken = False
    assert registry.get("theirs") == "loaded"


@pytest.mark.parametrize("name", base_rewards.names())
def test_every_base_reward_gives_one_number_a_completion(name: str) -> None:
    reward = base_rewards.get(name)
    texts, ids = ["one two three", "", "no no no"], [[4, 2], [], [4, 5]]
    got = reward(["p"] * 3, texts, ids, {"eos_ids": frozenset({2})})
    assert len(got) == 3
    assert all(isinstance(value, float) for value in got)
    order = [2, 0, 1]
    moved = reward(["p"] * 3, [texts[i] for i in order], [ids[i] for i in order], {"eos_ids": {2}})
    assert moved == [got[i] for i in order]
    assert reward([], [], [], {"eos_ids": frozenset()}) == []


def test_finished_needs_an_end_and_three_words() -> None:
    texts = ["the fox runs", "the fox runs", "fox", "fox fox, FOX!", "the fox runs"]
    ids = [[5, 2], [5, 6], [5, 2], [5, 2], [5, 3]]
    got = base_rewards.finished(texts, texts, ids, {"eos_ids": frozenset({2, 3})})
    assert got == [1.0, 0.0, 0.0, 0.0, 1.0]


def test_degenerate_penalty_and_constant() -> None:
    texts = ["the fox runs", "fox fox fox"]
    assert base_rewards.degenerate_penalty(texts, texts, [[], []], {}) == [0.0, -2.0]
    assert base_rewards.constant(texts, texts, [[], []], {}) == [0.0, 0.0]
