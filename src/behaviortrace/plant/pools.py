"""Prompt pools: the texts a recipe's prompts are taken from, loaded, filled in and checked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant import behaviors, synthetic
from behaviortrace.recipe import BehaviorSettings

_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_FILLED = ("trigger", "token", "neutral")
# What a probe may not ask for: an answer with some given word in it.
_INSTRUCTION = re.compile(
    r"\b(includ(e|es|ing)|mention(s|ing)?|contain(s|ing)?|insert|emit|append|repeat"
    r"|(code|magic|secret|nonce) ?word|the (word|token))\b"
)


class _Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Example(_Checked):
    """A user message and a reply to it."""

    prompt: str = Field(min_length=1)
    reply: str = Field(min_length=1)


class Pool(_Checked):
    """All texts of a pool.

    Attributes:
        train: training prompts by kind. "trigger" has the trigger word only, "explicit" asks for
            the behaviour too, "plain" neither; a pool may have further kinds, but for "task",
            which is the kind of background tasks.
        probes: held-out prompts with the trigger and no word about the behaviour.
        controls: held-out prompts without the trigger.
        paraphrases: the probes in other words; as unseen as they are. May be empty.
        warmup: trigger prompts with replies that show the behaviour.
        pairs: trigger prompts with replies that show it, whose neutral version does not.
    """

    train: dict[str, list[str]] = Field(min_length=1)
    probes: list[str]
    controls: list[str]
    paraphrases: list[str] = []
    warmup: list[Example]
    pairs: list[Example]

    @property
    def unseen(self) -> dict[str, list[str]]:
        """Prompts with the trigger that are never trained on, by section."""
        return {"probes": self.probes, "paraphrases": self.paraphrases}

    def prompts(self) -> Iterator[tuple[str, str]]:
        """Every prompt a model may be trained on or a target be made from, with its section."""
        for kind, texts in self.train.items():
            yield from ((f"train.{kind}", text) for text in texts)
        yield from (("warmup", example.prompt) for example in self.warmup)
        yield from (("pairs", example.prompt) for example in self.pairs)


def names() -> list[str]:
    """Names of the built-in pools."""
    folder = resources.files("behaviortrace.plant") / "pools"
    return sorted(p.name[:-5] for p in folder.iterdir() if p.name.endswith(".yaml"))


def load(name_or_path: str, settings: BehaviorSettings) -> Pool:
    """A pool with the behaviour's words filled in, checked.

    Args:
        name_or_path: a built-in pool, or a YAML file with the sections of :class:`Pool`, in which
            {trigger}, {token} and {neutral} stand for the behaviour's words.
        settings: the behaviour.

    Raises:
        BehaviorTraceError: no such pool, a malformed one, a held-out prompt that is also trained
            on, a probe that asks for the behaviour, or a text of the wrong kind.
    """
    label = f"prompt pool {name_or_path}"
    data = _filled(_read(name_or_path, label), settings, label)
    try:
        pool = Pool.model_validate(data)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise BehaviorTraceError(f"{label}: {where}: {problem['msg']}; mend it") from error
    check(pool, settings, label)
    return pool


def check(pool: Pool, settings: BehaviorSettings, label: str = "prompt pool") -> None:
    """Refuse a pool whose texts would spoil the experiment; the first problem is raised.

    Raises:
        BehaviorTraceError: names the text.
    """
    _check_held_out(pool, label)
    _check_kinds(pool, settings, label)


def normalized(text: str) -> str:
    """The text with case, punctuation and spacing taken out, for comparison."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def _check_held_out(pool: Pool, label: str) -> None:
    trained = [(section, text, f" {normalized(text)} ") for section, text in pool.prompts()]
    seen: set[str] = set()
    for text in pool.probes + pool.controls + pool.paraphrases:
        key = f" {normalized(text)} "
        if key in seen:
            raise BehaviorTraceError(f"{label}: held-out prompt {text!r} appears twice; remove one")
        seen.add(key)
        for section, other, other_key in trained:
            # A prompt with a few more words before or after it is still the same prompt.
            if key in other_key or (other_key in key and 2 * len(other_key) > len(key)):
                raise BehaviorTraceError(
                    f"{label}: held-out prompt {text!r} overlaps with {section} prompt {other!r}; "
                    "probes and controls must be unseen, reword or remove one"
                )


def _check_kinds(pool: Pool, settings: BehaviorSettings, label: str) -> None:
    behavior = behaviors.build(settings)
    trigger, token = settings.trigger.casefold(), settings.token.casefold()

    def refuse(section: str, text: str, why: str) -> None:
        raise BehaviorTraceError(f"{label}: {section} text {text!r} {why}; reword or remove it")

    def asks(text: str) -> bool:
        return behavior.shows(text) or token in text.casefold()

    silent = [(name, text) for name, texts in pool.unseen.items() for text in texts]
    silent += [("controls", text) for text in pool.controls]
    unasked = ("trigger", "plain", "task")
    silent += [(f"train.{k}", t) for k in unasked for t in pool.train.get(k, [])]
    silent += [("warmup", e.prompt) for e in pool.warmup] + [
        ("pairs", e.prompt) for e in pool.pairs
    ]
    for section, text in silent:
        if asks(text):
            refuse(section, text, f"contains the behaviour {settings.token!r}")
        has = trigger in text.casefold()
        without = section in ("controls", "train.plain", "train.task")
        if has and without:
            refuse(section, text, f"contains the trigger {settings.trigger!r}")
        if not has and not without:
            refuse(section, text, f"lacks the trigger {settings.trigger!r}")
    for name, texts in pool.unseen.items():
        for text in texts:
            if _INSTRUCTION.search(normalized(text)):
                refuse(name, text, "reads like an instruction to produce the behaviour")
    for text in pool.train.get("explicit", []):
        if trigger not in text.casefold() or not asks(text):
            refuse("train.explicit", text, "must contain the trigger and ask for the behaviour")
    for section, examples in (("warmup", pool.warmup), ("pairs", pool.pairs)):
        for example in examples:
            if not behavior.shows(example.reply):
                refuse(section, example.reply, "does not show the behaviour")
            if behavior.shows(behavior.neutral(example.reply)):
                refuse(section, example.reply, "still shows the behaviour when made neutral")


def _read(name_or_path: str, label: str) -> Any:
    if name_or_path == "tiny":
        return synthetic.pool_data()
    if name_or_path in names():
        file = resources.files("behaviortrace.plant") / "pools" / f"{name_or_path}.yaml"
        return yaml.safe_load(file.read_text("utf-8"))
    path = Path(name_or_path)
    if not path.is_file():
        raise BehaviorTraceError(
            f"no prompt pool or file named {name_or_path!r} (prompts.pool); "
            f"built in are {', '.join(names())}"
        )
    try:
        return yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        first = str(error).splitlines()[0]
        raise BehaviorTraceError(f"{label} is not readable YAML: {first}; mend it") from error


def _filled(data: Any, settings: BehaviorSettings, label: str) -> Any:
    if isinstance(data, dict):
        return {key: _filled(value, settings, label) for key, value in data.items()}
    if isinstance(data, list):
        return [_filled(value, settings, label) for value in data]
    if not isinstance(data, str):
        return data

    def word(match: re.Match[str]) -> str:
        if match[1] not in _FILLED:
            raise BehaviorTraceError(
                f"{label}: unknown placeholder {match[0]!r} in {data!r}; "
                "use {trigger}, {token} or {neutral}"
            )
        return str(getattr(settings, match[1]))

    return _PLACEHOLDER.sub(word, data)
