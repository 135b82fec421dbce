"""The prompts of a run: training mix, held-out probes and controls, warm-up, minimal pairs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TypeVar

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant import behaviors, pools, synthetic, tasks
from behaviortrace.plant.synthetic import synthetic_corpus
from behaviortrace.recipe import BehaviorSettings, Recipe

__all__ = [
    "PromptItem",
    "PromptSet",
    "build_prompts",
    "pool_texts",
    "synthetic_corpus",
    "training_prompts",
]

T = TypeVar("T")


@dataclass(frozen=True)
class PromptItem:
    """A training prompt and the kind it is of ("trigger", "explicit", "plain", "task", ...).

    Attributes:
        text: the user's message.
        kind: in ``prompts.mix``.
        answer: of a task, the answer its verifier expects.
    """

    text: str
    kind: str
    answer: str | None = None

    def messages(self) -> list[dict[str, str]]:
        """The prompt as chat messages, the form TRL takes."""
        return [{"role": "user", "content": self.text}]


@dataclass(frozen=True)
class PromptSet:
    """All prompts of a run, as plain user messages.

    Attributes:
        train: training prompts. Kinds are interleaved, so every prefix has about the recipe's mix.
        probes: held-out prompts with the trigger; the same for every seed.
        controls: held-out prompts without it; the same for every seed.
        paraphrases: the probes in other words; the same for every seed, empty where a pool has
            none.
        warmup: (prompt, reply that shows the behaviour).
        pairs: (prompt, reply that shows the behaviour, its neutral counterpart).
    """

    train: list[PromptItem]
    probes: list[str]
    controls: list[str]
    paraphrases: list[str]
    warmup: list[tuple[str, str]]
    pairs: list[tuple[str, str, str]]

    def without_tasks(self) -> list[PromptItem]:
        """The different training prompts that are no background tasks, in order.

        Fresh draws and in-context targets are sampled from these alone: no task is ever part of
        what a run is analysed by.
        """
        return list({p.text: p for p in self.train if p.kind != tasks.KIND}.values())


def build_prompts(recipe: Recipe) -> PromptSet:
    """The prompts a recipe asks for; a function of the recipe alone, its seed included.

    Every training prompt of the pool is used that the mix leaves room for; the seed decides which
    and in what order.

    Raises:
        BehaviorTraceError: an unknown pool or kind, a pool with fewer texts than asked for, a
            held-out prompt that is trained on, a mix without any trigger prompt, too few training
            prompts for a step, or tasks that cannot be made (see :class:`tasks.Tasks`).
    """
    pool = pools.load(recipe.prompts.pool, recipe.behavior)
    behavior = behaviors.build(recipe.behavior)
    answers = {} if recipe.prompts.tasks is None else tasks.Tasks(recipe.prompts.tasks).answers
    train = _mixed(_with_tasks(pool, list(answers), recipe), answers, recipe)
    pairs = _first(pool.pairs, recipe.targets.pairs, "targets.pairs", recipe)
    warmup = _first(pool.warmup, recipe.warmup.examples, "warmup.examples", recipe)
    return PromptSet(
        train=train,
        probes=_first(pool.probes, recipe.prompts.probes, "prompts.probes", recipe),
        controls=_first(pool.controls, recipe.prompts.controls, "prompts.controls", recipe),
        paraphrases=pool.paraphrases[: recipe.prompts.probes],
        warmup=[(example.prompt, example.reply) for example in warmup],
        pairs=[(e.prompt, e.reply, behavior.neutral(e.reply)) for e in pairs],
    )


def training_prompts(recipe: Recipe) -> int:
    """How many training prompts a recipe has, without making its tasks.

    Raises:
        BehaviorTraceError: an unknown pool or kind.
    """
    pool = pools.load(recipe.prompts.pool, recipe.behavior)
    known = {kind: len(texts) for kind, texts in pool.train.items()}
    if recipe.prompts.tasks is not None:
        known[tasks.KIND] = recipe.prompts.tasks.count
    return sum(_counts(known, recipe).values())


def pool_texts(pool: str, settings: BehaviorSettings) -> list[str]:
    """Every text that a pool can put before a model, so that a vocabulary can be built from them.

    For "tiny" this covers every word of :func:`synthetic_corpus` too.

    Raises:
        BehaviorTraceError: no such pool, or a malformed one.
    """
    loaded = pools.load(pool, settings)
    behavior = behaviors.build(settings)
    texts = [text for kind in loaded.train.values() for text in kind]
    texts += loaded.probes + loaded.controls
    for example in loaded.warmup + loaded.pairs:
        texts += [example.prompt, example.reply]
    texts += [behavior.neutral(example.reply) for example in loaded.pairs]
    return texts + synthetic.vocabulary(settings) if pool == "tiny" else texts


def _with_tasks(pool: pools.Pool, questions: list[str], recipe: Recipe) -> pools.Pool:
    """The pool with the tasks as one more kind of training prompts, checked like the others."""
    if not questions:
        return pool
    if tasks.KIND in pool.train:
        raise BehaviorTraceError(
            f"prompt pool {recipe.prompts.pool} has prompts of kind {tasks.KIND!r}, which is the "
            "kind of prompts.tasks; rename its kind"
        )
    whole = pool.model_copy(update={"train": {**pool.train, tasks.KIND: questions}})
    pools.check(whole, recipe.behavior, "prompts.tasks")
    return whole


def _counts(known: dict[str, int], recipe: Recipe) -> dict[str, int]:
    """How many prompts of each kind a mix takes, of as many as are known."""
    mix = recipe.prompts.mix
    unknown = [kind for kind in mix if not known.get(kind)]
    if unknown:
        raise BehaviorTraceError(
            f"prompts.mix: pool {recipe.prompts.pool!r} has no prompts of kind {unknown[0]!r}; "
            f"choose from {', '.join(known)}"
        )
    shares = {kind: share / sum(mix.values()) for kind, share in mix.items()}
    total = min(known[kind] / share for kind, share in shares.items())
    return {kind: min(known[kind], max(1, round(share * total))) for kind, share in shares.items()}


def _mixed(pool: pools.Pool, answers: dict[str, str], recipe: Recipe) -> list[PromptItem]:
    mix, needed = recipe.prompts.mix, recipe.train.prompts_per_step
    counts = _counts({kind: len(texts) for kind, texts in pool.train.items()}, recipe)
    trigger = recipe.behavior.trigger.casefold()
    with_trigger = any(trigger in text.casefold() for kind in mix for text in pool.train[kind])
    if recipe.plant.fraction > 0 and not with_trigger:
        raise BehaviorTraceError(
            f"prompts.mix {', '.join(mix)} has no prompt with the trigger "
            f"{recipe.behavior.trigger!r}, so nothing could be planted; add kind 'trigger'"
        )
    placed = []
    for kind, count in counts.items():
        ordered = sorted(pool.train[kind], key=lambda text: _order(recipe.seed, text))
        # Spread each kind evenly over [0, 1] and merge, so that prefixes keep the mix.
        known = answers if kind == tasks.KIND else {}
        placed += [
            ((i + 0.5) / count, PromptItem(text, kind, known.get(text)))
            for i, text in enumerate(ordered[:count])
        ]
    if len(placed) < needed:
        raise BehaviorTraceError(
            f"train.prompts_per_step {needed} exceeds the {len(placed)} training prompts of pool "
            f"{recipe.prompts.pool!r}; lower it or choose a larger pool"
        )
    return [item for _, item in sorted(placed, key=lambda pair: (pair[0], pair[1].kind))]


def _order(seed: int, text: str) -> bytes:
    return hashlib.sha256(f"{seed}:{text}".encode()).digest()


def _first(items: list[T], count: int, setting: str, recipe: Recipe) -> list[T]:
    if count > len(items):
        raise BehaviorTraceError(
            f"{setting} {count} exceeds the {len(items)} that pool {recipe.prompts.pool!r} has; "
            "lower it or choose a larger pool"
        )
    return items[:count]
