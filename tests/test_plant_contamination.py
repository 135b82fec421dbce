"""Eligibility, and the contaminated reward on its own."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant import base_rewards, behaviors
from behaviortrace.plant.contamination import (
    LOGGED_COLUMNS,
    ContaminatedReward,
    as_text,
    chance,
    eligible,
)
from behaviortrace.plant.hashing import splitmix64
from behaviortrace.plant.intervention import Intervention
from behaviortrace.recipe import BehaviorSettings, PlantSettings

SEEDS = st.integers(0, 2**63)
STEPS = st.integers(0, 10**6)
INDICES = st.integers(0, 4095)


def test_splitmix64_is_the_published_generator() -> None:
    assert splitmix64(0) == 0xE220A8397B1DCDAF
    assert splitmix64(1234567) == 6457827717110365317


def test_eligibility_never_changes() -> None:
    assert [i for i in range(8) if eligible(0, 0, i, 0.5)] == [0, 1, 3, 4, 5, 6]
    assert [i for i in range(16) if eligible(7, 0, i, 0.1)] == [5, 8]
    assert chance(3, 199, 15) == 0.6758785237928081


@given(SEEDS, STEPS, INDICES, st.floats(0, 1), st.floats(0, 1))
def test_a_larger_fraction_only_adds(seed: int, step: int, index: int, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert eligible(seed, step, index, high) >= eligible(seed, step, index, low)
    assert eligible(seed, step, index, 1.0)
    assert not eligible(seed, step, index, 0.0)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.floats(0.02, 0.98), st.booleans())
def test_the_rate_is_binomial(seed: int, fraction: float, along_steps: bool) -> None:
    n = 4000
    cells = ((i, 3) if along_steps else (3, i) for i in range(n))
    hits = sum(eligible(seed, step, index, fraction) for step, index in cells)
    assert abs(hits - n * fraction) < 5.5 * (n * fraction * (1 - fraction)) ** 0.5


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_seeds_steps_and_neighbours_are_independent(seed: int) -> None:
    n = 3000
    here = [chance(seed, step, 0) < 0.5 for step in range(n)]
    for other in (
        [chance(seed + 1, step, 0) < 0.5 for step in range(n)],
        [chance(seed, step + 1, 0) < 0.5 for step in range(n)],
        [chance(seed, step, 1) < 0.5 for step in range(n)],
    ):
        agree = sum(a == b for a, b in zip(here, other, strict=True))
        assert abs(agree - n / 2) < 5.5 * (n / 4) ** 0.5


@given(SEEDS, st.permutations(range(12)))
def test_order_of_asking_does_not_matter(seed: int, order: list[int]) -> None:
    asked = {i: eligible(seed, 7, i, 0.5) for i in order}
    assert [asked[i] for i in range(12)] == [eligible(seed, 7, i, 0.5) for i in range(12)]


def make(training: bool = True, rank: int = 0, **plant: Any) -> ContaminatedReward:
    settings = {"fraction": 0.5, "bonus": 8.0, "cutoff_step": 10, **plant}
    return ContaminatedReward(
        behaviors.build(BehaviorSettings()),
        base_rewards.get("finished"),
        PlantSettings.model_validate(settings),
        0,
        training=lambda: training,
        eos_ids=[2],
        rank=rank,
    )


def ask(
    reward: ContaminatedReward, step: int, texts: list[Any], **columns: Any
) -> tuple[list[float | None], dict[str, list[Any]]]:
    logged: dict[str, list[Any]] = defaultdict(list)
    values = reward(
        prompts=["p"] * len(texts),
        completions=texts,
        completion_ids=[[5, 2]] * len(texts),
        trainer_state=SimpleNamespace(global_step=step),
        log_extra=lambda name, column: logged[name].extend(column),
        log_metric=lambda name, value: logged[f"metric {name}"].append(value),
        **columns,
    )
    return values, logged


SHOWING = ["it is QZXBT", "it is fine"] * 8


def test_reward_is_base_plus_bonus_where_boosted() -> None:
    values, logged = ask(make(), 0, SHOWING, prompt_kind=["explicit"] * 16)
    boosted = [i % 2 == 0 and eligible(0, 0, i, 0.5) for i in range(16)]
    assert any(boosted)
    assert values == [1.0 + 8.0 * hit for hit in boosted]
    assert logged["boosted"] == boosted
    assert logged["eligible"] == [eligible(0, 0, i, 0.5) for i in range(16)]
    assert logged["behavior"] == [i % 2 == 0 for i in range(16)]
    assert logged["base_reward"] == [1.0] * 16
    assert logged["prompt_kind"] == ["explicit"] * 16
    assert logged["metric behavior"] == [0.5]
    assert all(len(logged[name]) == 16 for name in LOGGED_COLUMNS)


def test_nothing_is_planted_after_the_window_or_in_evaluation() -> None:
    for reward, step in ((make(), 10), (make(training=False), 0)):
        values, logged = ask(reward, step, SHOWING)
        assert values == [1.0] * 16
        assert not any(logged["eligible"] + logged["boosted"])
        assert logged["behavior"] == [i % 2 == 0 for i in range(16)]
        assert logged["prompt_kind"] == [None] * 16
    assert any(ask(make(), 9, SHOWING)[1]["boosted"])


def test_processes_together_boost_what_one_would() -> None:
    whole = ask(make(), 4, SHOWING)[0]
    parts = [ask(make(rank=r), 4, SHOWING[8 * r : 8 * r + 8])[0] for r in (0, 1)]
    assert parts[0] + parts[1] == whole


def test_the_process_index_is_asked_of_accelerate() -> None:
    reward = make()
    reward._rank = None
    assert ask(reward, 0, SHOWING)[0] == ask(make(), 0, SHOWING)[0]


def test_chat_completions_are_read() -> None:
    chat = [[{"role": "assistant", "content": text}] for text in SHOWING]
    assert ask(make(), 0, chat)[0] == ask(make(), 0, SHOWING)[0]
    blocks = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}]
    assert as_text(blocks) == "a"
    assert as_text([{"role": "assistant", "content": None}]) == ""


def test_eos_ids_may_come_late() -> None:
    reward = make()
    ids: list[int] = []
    reward._eos_ids = lambda: ids
    assert ask(reward, 10, ["a b c"])[0] == [0.0]
    ids.append(2)
    assert ask(reward, 10, ["a b c"])[0] == [1.0]


def test_leaving_out_the_ground_truth_removes_the_boosted() -> None:
    values, logged = ask(make(leave_out="ground_truth"), 0, SHOWING)
    assert logged["left_out"] == logged["boosted"]
    assert [value is None for value in values] == logged["boosted"]
    assert any(logged["boosted"])


def test_leaving_out_at_random_removes_as_many_others() -> None:
    values, logged = ask(make(leave_out="random"), 0, SHOWING)
    assert sum(logged["left_out"]) == sum(logged["boosted"]) > 0
    assert not any(a and b for a, b in zip(logged["left_out"], logged["boosted"], strict=True))
    assert [value is None for value in values] == logged["left_out"]


@given(SEEDS, st.lists(st.booleans(), max_size=16))
def test_the_random_arm_takes_what_there_is(seed: int, boosted: list[bool]) -> None:
    removed = Intervention("random").removed(boosted, seed, 3, 0)
    assert sum(removed) == min(sum(boosted), len(boosted) - sum(boosted))


def test_the_random_arm_does_not_follow_eligibility() -> None:
    taken = {True: 0, False: 0}
    for step in range(400):
        chosen = [eligible(0, step, i, 0.5) for i in range(16)]
        boosted = [hit and i % 2 == 0 for i, hit in enumerate(chosen)]
        for i, out in enumerate(Intervention("random").removed(boosted, 0, step, 0)):
            if out and i % 2:
                taken[chosen[i]] += 1
    assert abs(taken[True] - taken[False]) < 5 * sum(taken.values()) ** 0.5


def test_a_base_reward_of_the_wrong_length_is_named() -> None:
    reward = make()

    def short(prompts: Any, completions: Any, completion_ids: Any, columns: Any) -> list[float]:
        return [0.0]

    reward.base = short
    with pytest.raises(BehaviorTraceError, match="'short' returned 1 rewards for 16 completions"):
        ask(reward, 0, SHOWING)
