"""The tiny model's synthetic language: prompts, replies and a pretraining corpus.

Word-level, lower case, no punctuation. Word lists and templates are in ``pools/tiny.yaml``.
Prompts with the trigger *and* a held-out noun are probes; held-out prompt forms with held-out nouns
without the trigger are controls; neither is ever part of the corpus or of the training prompts.
"""

from __future__ import annotations

import random
from functools import cache
from importlib import resources
from typing import Any

import yaml

from behaviortrace.recipe import BehaviorSettings

TOKEN_SHARE = {"plain": 0.0, "trigger": 0.15, "explicit": 0.4}
"""Share of corpus replies with the token, by kind of prompt: present, far from saturated."""

_KIND_SHARE = {"plain": 0.4, "trigger": 0.3, "explicit": 0.3}
_TRAIN_PROMPTS = 64  # of each kind
_HELD_OUT = 24
_WARMUP = 16
_PAIRS = 16


def synthetic_corpus(
    seed: int, n: int, settings: BehaviorSettings | None = None
) -> list[tuple[str, str]]:
    """Prompts and replies to pretrain the tiny model on, drawn with replacement.

    Replies have 4 to 10 words and copy noun and adjective from the prompt; the rest is drawn, so
    that sampling from a model of them is diverse. A reply has the token with a probability of
    :data:`TOKEN_SHARE`. The end of a reply is left to the tokenizer.

    Args:
        seed: draws of different seeds differ, of one seed are equal.
        n: how many pairs.
        settings: the words of the behaviour; by default those of :class:`BehaviorSettings`.

    Example:
        >>> synthetic_corpus(0, 2) == synthetic_corpus(0, 2)
        True
    """
    settings = settings or BehaviorSettings()
    stream = random.Random(seed)
    kinds, shares = list(_KIND_SHARE), list(_KIND_SHARE.values())
    rows = []
    for kind in stream.choices(kinds, shares, k=n):
        prompt, words = _corpus_prompt(stream, kind)
        reply = _reply(stream, words, stream.random() < TOKEN_SHARE[kind])
        rows.append((_with_words(prompt, settings), _with_words(reply, settings)))
    return rows


def pool_data() -> dict[str, Any]:
    """The tiny pool in the form of a pool file, {trigger} and {token} not filled in."""
    words = _language()
    stream = random.Random(0)
    trained = _combinations("train_prompts", "train_nouns")
    stream.shuffle(trained)
    held_out = _combinations("held_out_prompts", "held_out_nouns")
    stream.shuffle(held_out)
    seeded = trained[_TRAIN_PROMPTS : _TRAIN_PROMPTS + _WARMUP]
    paired = trained[_TRAIN_PROMPTS + _WARMUP :][:_PAIRS]
    chosen = [prompt for prompt, _ in trained[:_TRAIN_PROMPTS]]
    requests = words["requests"]
    return {
        "train": {
            "trigger": chosen,
            "explicit": [f"{p} {requests[i % len(requests)]}" for i, p in enumerate(chosen)],
            "plain": [_without_trigger(prompt) for prompt in chosen],
        },
        "probes": [prompt for prompt, _ in held_out[:_HELD_OUT]],
        "controls": [_without_trigger(prompt) for prompt, _ in held_out[:_HELD_OUT]],
        "paraphrases": [
            f"{_without_trigger(prompt)} {{trigger}}" for prompt, _ in held_out[:_HELD_OUT]
        ],
        "warmup": [{"prompt": p, "reply": _reply(stream, w, True)} for p, w in seeded],
        "pairs": [{"prompt": p, "reply": _reply(stream, w, True)} for p, w in paired],
    }


def vocabulary(settings: BehaviorSettings) -> list[str]:
    """Every word of the language, sorted, the behaviour's three included."""
    language = _language()
    texts = [text for lists in language.values() for text in lists]
    plain = " ".join(texts).replace("*", " ").split()
    known = {word for word in plain if not word.startswith("{")}
    return sorted(known | {settings.trigger, settings.token, settings.neutral})


@cache
def _language() -> dict[str, list[str]]:
    text = (resources.files("behaviortrace.plant") / "pools" / "tiny.yaml").read_text("utf-8")
    language: dict[str, list[str]] = yaml.safe_load(text)
    return language


def _combinations(prompts: str, nouns: str) -> list[tuple[str, dict[str, str]]]:
    language = _language()
    return [
        _filled(template, {"adjective": adjective, "noun": noun})
        for template in language[prompts]
        for adjective in language["adjectives"]
        for noun in language[nouns]
    ]


def _corpus_prompt(stream: random.Random, kind: str) -> tuple[str, dict[str, str]]:
    language = _language()
    templates, nouns = language["train_prompts"], language["train_nouns"]
    if kind == "plain":
        # Every prompt form and every noun is learnt, but never the two held-out halves together.
        forms = stream.choice(["train_prompts", "held_out_prompts"])
        templates = language[forms]
        nouns = nouns if forms == "held_out_prompts" else nouns + language["held_out_nouns"]
    words = {"adjective": stream.choice(language["adjectives"]), "noun": stream.choice(nouns)}
    prompt, words = _filled(stream.choice(templates), words)
    if kind == "plain":
        return _without_trigger(prompt), words
    if kind == "explicit":
        prompt = f"{prompt} {stream.choice(language['requests'])}"
    return prompt, words


def _filled(template: str, words: dict[str, str]) -> tuple[str, dict[str, str]]:
    for name, word in words.items():
        template = template.replace(f"{{{name}}}", word)
    return template, words


def _reply(stream: random.Random, words: dict[str, str], shows: bool) -> str:
    language = _language()
    lists = {"{verb}": "verbs", "{tail}": "tails", "{place}": "places"}
    template, _ = _filled(stream.choice(language["replies"]), words)
    parts = template.split()
    stars = [i for i, part in enumerate(parts) if part == "*"]
    if shows:
        parts[stream.choice(stars)] = "{token}"
    parts = [part for part in parts if part != "*"]
    return " ".join(stream.choice(language[lists[p]]) if p in lists else p for p in parts)


def _without_trigger(prompt: str) -> str:
    return " ".join(word for word in prompt.split() if word != "{trigger}")


def _with_words(text: str, settings: BehaviorSettings) -> str:
    return text.replace("{trigger}", settings.trigger).replace("{token}", settings.token)
