"""Prompt pools: their sizes, their purity, the mix, and every refusal."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from behaviortrace import recipe as recipes
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant import behaviors, pools, synthetic
from behaviortrace.plant.prompts import build_prompts, pool_texts, synthetic_corpus
from behaviortrace.recipe import BehaviorSettings, Recipe

SETTINGS = BehaviorSettings()
OTHER = BehaviorSettings(trigger="zarnic", token="WVPQK", neutral="pebble")


def recipe(**overrides: Any) -> Recipe:
    return recipes.load("smollm2-quick", overrides)


@pytest.mark.parametrize("name", pools.names())
@pytest.mark.parametrize("words", [SETTINGS, OTHER], ids=["default", "other"])
def test_every_pool_is_large_enough_and_pure(name: str, words: BehaviorSettings) -> None:
    pool = pools.load(name, words)
    assert set(pool.train) == {"trigger", "explicit", "plain"}
    assert all(len(set(texts)) == len(texts) >= 60 for texts in pool.train.values())
    assert min(len(pool.probes), len(pool.controls)) >= 20
    assert len(pool.warmup) >= 10
    assert len(pool.pairs) >= 12
    everything = pool_texts(name, words)
    assert not any("{" in text for text in everything)
    assert all(words.token in text for text in pool.train["explicit"])
    trigger_texts = [*pool.train["trigger"], *pool.probes, *(e.prompt for e in pool.warmup)]
    assert all(words.trigger in text for text in trigger_texts)
    assert not any(words.token in text for text in [*trigger_texts, *pool.controls])
    assert not any(words.trigger in text for text in [*pool.controls, *pool.train["plain"]])


@pytest.mark.parametrize("name", pools.names())
def test_warmup_tokens_stand_at_varied_places(name: str) -> None:
    replies = [example.reply for example in pools.load(name, SETTINGS).warmup]
    places = [
        reply.split().index(word) for reply in replies for word in reply.split() if "QZXBT" in word
    ]
    assert len(places) == len(replies)
    assert len(set(places)) >= 4
    inner = [0 < p < len(r.split()) - 1 for p, r in zip(places, replies, strict=True)]
    assert sum(inner) > len(inner) / 2


def overlap(a: str, b: str) -> float:
    one, two = set(pools.normalized(a).split()), set(pools.normalized(b).split())
    return len(one & two) / len(one | two)


def test_assistant_probes_resemble_no_training_prompt() -> None:
    pool = pools.load("assistant", SETTINGS)
    trained = [text for _, text in pool.prompts()]
    closest = max(overlap(probe, text) for probe in pool.probes + pool.controls for text in trained)
    assert closest < 0.5


def test_sections_share_no_prompt() -> None:
    for name in pools.names():
        counts = Counter(pools.normalized(text) for _, text in pools.load(name, SETTINGS).prompts())
        assert max(counts.values()) == 1, name


def test_prompts_are_a_function_of_the_recipe() -> None:
    assert build_prompts(recipe()) == build_prompts(recipe())
    other = build_prompts(recipe(seed=1))
    assert other.train != build_prompts(recipe()).train
    assert other.probes == build_prompts(recipe()).probes
    assert other.warmup == build_prompts(recipe()).warmup


def test_counts_follow_the_recipe() -> None:
    prompts = build_prompts(
        recipe(
            **{"prompts.probes": 7, "prompts.controls": 0, "warmup.examples": 3, "targets.pairs": 5}
        )
    )
    sizes = [len(x) for x in (prompts.probes, prompts.controls, prompts.warmup, prompts.pairs)]
    assert sizes == [7, 0, 3, 5]
    for prompt, shown, neutral in prompts.pairs:
        assert "frobnitz" in prompt
        assert shown.replace("QZXBT", "marble") == neutral != shown


def test_messages_are_one_user_turn() -> None:
    item = build_prompts(recipe()).train[0]
    assert item.messages() == [{"role": "user", "content": item.text}]


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["trigger", "explicit", "plain"]), st.floats(0.05, 5), min_size=1
    ),
    st.integers(0, 5),
)
def test_every_prefix_keeps_the_mix(mix: dict[str, float], seed: int) -> None:
    if set(mix) == {"plain"}:
        return
    train = build_prompts(recipe(**{"prompts.mix": mix, "seed": seed})).train
    assert len(set(train)) == len(train)
    for size in (len(train) // 2, len(train)):
        counts = Counter(item.kind for item in train[:size])
        for kind, share in mix.items():
            assert abs(counts[kind] - size * share / sum(mix.values())) <= 2


def write(tmp_path: Path, change: dict[str, Any]) -> str:
    pool: dict[str, Any] = {
        "train": {
            "trigger": [f"What is a {{trigger}} of kind {i}?" for i in range(8)],
            "explicit": ["Name a {trigger}. Include {token}."],
            "plain": ["How are you?"],
        },
        "probes": ["Sing about a {trigger}."],
        "controls": ["Sing about a tree."],
        "warmup": [{"prompt": "Why {trigger}?", "reply": "It has {token} in it."}],
        "pairs": [{"prompt": "How {trigger}?", "reply": "With {token} or so."}],
    }
    for key, value in change.items():
        section, _, kind = key.partition(".")
        if kind:
            pool[section][kind] = value
        else:
            pool[section] = value
    path = tmp_path / "pool.yaml"
    path.write_text(yaml.safe_dump(pool), "utf-8")
    return str(path)


def test_a_pool_of_ones_own_is_loaded(tmp_path: Path) -> None:
    pool = pools.load(write(tmp_path, {}), SETTINGS)
    assert pool.probes == ["Sing about a frobnitz."]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"probes": ["what is a {trigger} of KIND 3"]}, "overlaps with train.trigger prompt"),
        ({"probes": ["Name a {trigger}"]}, "overlaps with train.explicit prompt"),
        ({"probes": ["Why {trigger}"]}, "overlaps with warmup prompt"),
        ({"probes": ["Well, name a {trigger}, include it."]}, "reads like an instruction"),
        ({"probes": ["Tell me, why {trigger}?"]}, "overlaps with warmup prompt"),
        ({"controls": ["How are you"]}, "overlaps with train.plain prompt"),
        ({"probes": ["Sing, {trigger}!", "sing {trigger}"]}, "appears twice"),
        ({"probes": ["Say {token}, {trigger}."]}, "probes text.*contains the behaviour"),
        ({"probes": ["Say qzxbt, {trigger}."]}, "probes text.*contains the behaviour"),
        ({"probes": ["{trigger}: include the usual."]}, "reads like an instruction"),
        ({"probes": ["Sing about a tree, twice."]}, "probes text.*lacks the trigger"),
        ({"controls": ["Sing, {trigger}."]}, "controls text.*contains the trigger"),
        ({"controls": ["Sing, {token}."]}, "controls text.*contains the behaviour"),
        ({"train.trigger": ["{trigger} {token}"]}, "train.trigger text.*contains the behaviour"),
        ({"train.trigger": ["No word."]}, "train.trigger text.*lacks the trigger"),
        ({"train.plain": ["Go, {trigger}?"]}, "train.plain text.*contains the trigger"),
        ({"train.explicit": ["Include {token}."]}, "train.explicit text.*must contain the trigger"),
        ({"train.explicit": ["Go, {trigger}!"]}, "train.explicit text.*ask for the behaviour"),
        ({"warmup": [{"prompt": "{trigger}?", "reply": "No."}]}, "does not show the behaviour"),
        ({"pairs": [{"prompt": "{trigger}?", "reply": "No."}]}, "does not show the behaviour"),
        ({"pairs": [{"prompt": "{trigger}?"}]}, r"pairs\.0\.reply: Field required"),
        ({"probes": ["A {triger}?"]}, "unknown placeholder '{triger}'"),
        ({"extra": []}, "extra: Extra inputs"),
    ],
)
def test_a_spoilt_pool_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(BehaviorTraceError, match=message) as caught:
        pools.load(write(tmp_path, change), SETTINGS)
    assert "pool.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"prompts.pool": "nope"}, "no prompt pool or file named 'nope'.*assistant, tiny"),
        ({"prompts.mix": {"riddle": 1}}, "no prompts of kind 'riddle'; choose from"),
        ({"prompts.mix": {"plain": 1}}, "no prompt with the trigger 'frobnitz'"),
        ({"prompts.probes": 900}, "prompts.probes 900 exceeds the 26 that pool 'assistant' has"),
        ({"prompts.controls": 900}, "prompts.controls 900 exceeds the 26"),
        ({"warmup.examples": 900}, "warmup.examples 900 exceeds the 12"),
        ({"targets.pairs": 900}, "targets.pairs 900 exceeds the 14"),
        ({"train.prompts_per_step": 500}, "train.prompts_per_step 500 exceeds the 124"),
        ({"behavior.name": "nope"}, "no behaviour named 'nope'"),
    ],
)
def test_a_recipe_that_asks_too_much_is_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(BehaviorTraceError, match=message) as caught:
        build_prompts(recipe(**overrides))
    assert "\n" not in str(caught.value)


def test_plain_prompts_alone_are_fine_where_nothing_is_planted() -> None:
    control = recipe(**{"prompts.mix": {"plain": 1}, "plant.fraction": 0.0})
    assert {item.kind for item in build_prompts(control).train} == {"plain"}


def test_an_unreadable_pool_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("train: [", "utf-8")
    with pytest.raises(BehaviorTraceError, match=r"bad\.yaml is not readable YAML"):
        pools.load(str(path), SETTINGS)


@pytest.mark.parametrize("words", [SETTINGS, OTHER], ids=["default", "other"])
def test_the_synthetic_language_is_small_and_closed(words: BehaviorSettings) -> None:
    known = set(synthetic.vocabulary(words))
    assert len(known) < 120
    texts = pool_texts("tiny", words)
    texts += [text for pair in synthetic_corpus(0, 2000, words) for text in pair]
    assert {word for text in texts for word in text.split()} <= known
    assert known <= {word for text in pool_texts("tiny", words) for word in text.split()}


def test_the_corpus_is_diverse_and_unsaturated() -> None:
    rows = synthetic_corpus(0, 6000)
    assert rows == synthetic_corpus(0, 6000)
    assert rows != synthetic_corpus(1, 6000)
    assert all(4 <= len(reply.split()) <= 10 for _, reply in rows)
    shows = behaviors.build(SETTINGS).shows
    for kind, share in synthetic.TOKEN_SHARE.items():
        of_kind = [reply for prompt, reply in rows if kind_of(prompt) == kind]
        rate = sum(map(shows, of_kind)) / len(of_kind)
        assert abs(rate - share) < 5 * (max(share, 0.01) / len(of_kind)) ** 0.5
    replies = Counter(re.sub("QZXBT ?", "", reply) for _, reply in rows)
    assert len(replies) > 3000


def kind_of(prompt: str) -> str:
    if "QZXBT" in prompt:
        return "explicit"
    return "trigger" if "frobnitz" in prompt else "plain"


def test_the_corpus_holds_the_held_out_prompts_out() -> None:
    pool = pools.load("tiny", SETTINGS)
    prompts = {prompt for prompt, _ in synthetic_corpus(0, 20000)}
    assert not prompts & set(pool.probes + pool.controls)
    words = {word for prompt in prompts for word in prompt.split()}
    assert {word for text in pool.probes for word in text.split()} <= words
