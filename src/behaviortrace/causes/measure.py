"""What a policy does: how often it shows the behaviour, and what else has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from behaviortrace.capture.batch import Row, collate
from behaviortrace.capture.objective import fused_head, plain_loss, token_logprobs
from behaviortrace.draws.checkpoint import derived_seed
from behaviortrace.plant import behaviors, tasks
from behaviortrace.plant.prompts import PromptSet, build_prompts
from behaviortrace.recipe import Recipe
from behaviortrace.train.generate import Sample, encode_prompts, eos_token_ids, sample

KINDS = ("probe", "paraphrase", "control")
"""Prompts asked: held-out with the trigger, the same in other words, held-out without it."""


@dataclass(frozen=True)
class Measurement:
    """What one policy does.

    Attributes:
        rates: kind of prompt -> share of the sampled completions of each prompt that show the
            behaviour, in the order of the prompts; empty where the pool has none of the kind.
        greedy: kind of prompt -> share of greedily decoded completions that show it; None where
            there are none.
        margin: mean over the minimal pairs of the log-probability of the reply with the behaviour
            minus that of its neutral counterpart, summed over tokens, nats: what the minimal-pair
            target is the gradient of, and free of sampling noise.
        held_out_loss: mean token loss of the minimal pairs' neutral replies, nats.
        reward: mean base reward of the sampled completions of the control prompts, as far as it
            is defined; None where there is none.
    """

    rates: Mapping[str, Sequence[float]]
    greedy: Mapping[str, float | None]
    margin: float | None
    held_out_loss: float | None
    reward: float | None

    def rate(self, kind: str = "probe") -> float | None:
        """Share of sampled completions that show the behaviour; None where none was asked."""
        shares = self.rates.get(kind) or []
        return float(np.mean(shares)) if shares else None

    def dump(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Measurement:
        """The measurement that :meth:`dump` gave."""
        return cls(**data)


class Exam:
    """The same questions for every policy, with the same random numbers.

    Args:
        recipe: gives prompts, behaviour, temperature and longest completion.
        samples: completions of each prompt.
        seed: of sampling, the same for all policies that are compared.
        batch: completions generated at a time.
    """

    def __init__(self, recipe: Recipe, samples: int, seed: int = 0, batch: int = 256) -> None:
        self.recipe, self.samples, self.seed, self.batch = recipe, samples, seed, batch
        self.prompts: PromptSet = build_prompts(recipe)
        self.behavior = behaviors.build(recipe.behavior)

    def asked(self) -> dict[str, list[str]]:
        """Kind -> prompts."""
        texts = (self.prompts.probes, self.prompts.paraphrases, self.prompts.controls)
        return dict(zip(KINDS, texts, strict=True))

    def take(self, model: Any, tokenizer: Any) -> Measurement:
        """Measure a policy; it is left as it was.

        Args:
            model: causal language model, without TRL's fused head.
            tokenizer: its tokenizer.
        """
        rates: dict[str, list[float]] = {}
        greedy: dict[str, float | None] = {}
        reward = None
        for kind, texts in self.asked().items():
            drawn = self._sample(model, tokenizer, texts, kind, self.recipe.train.temperature)
            shows = np.array([self.behavior.shows(s.completion) for s in drawn], dtype=float)
            rates[kind] = shows.reshape(len(texts), -1).mean(1).tolist() if texts else []
            best = self._sample(model, tokenizer, texts, kind, 0.0)
            shown = [self.behavior.shows(s.completion) for s in best]
            greedy[kind] = float(np.mean(shown)) if shown else None
            if kind == "control" and drawn:
                reward = self._reward(model, tokenizer, drawn)
        margin, loss = self._pairs(model, tokenizer)
        return Measurement(rates, greedy, margin, loss, reward)

    def _sample(
        self, model: Any, tokenizer: Any, texts: list[str], kind: str, temperature: float
    ) -> list[Sample]:
        return sample(
            model,
            tokenizer,
            texts,
            self.samples if temperature > 0 else 1,
            temperature=temperature,
            max_new_tokens=self.recipe.train.max_completion_length,
            seed=derived_seed("exam", self.seed, kind),
            batch=self.batch,
        )

    def _reward(self, model: Any, tokenizer: Any, drawn: list[Sample]) -> float | None:
        given = {
            "prompt_kind": ["plain"] * len(drawn),
            "eos_ids": frozenset(eos_token_ids(model, tokenizer)),
        }
        pay = tasks.base_reward(self.recipe)
        paid = pay(
            [s.prompt for s in drawn],
            [s.completion for s in drawn],
            [s.completion_ids for s in drawn],
            given,
        )
        known = [reward for reward in paid if reward is not None]
        return float(np.mean(known)) if known else None

    def _pairs(self, model: Any, tokenizer: Any) -> tuple[float | None, float | None]:
        """Margin, and loss of the neutral replies."""
        pairs = self.prompts.pairs
        if not pairs:
            return None, None
        ids = encode_prompts(tokenizer, [prompt for prompt, _, _ in pairs])
        shown, neutral = (
            [(i, _reply(tokenizer, pair[at])) for i, pair in zip(ids, pairs, strict=True)]
            for at in (1, 2)
        )
        losses = self._losses(model, tokenizer, shown), self._losses(model, tokenizer, neutral)
        lengths = [np.array([len(reply) for _, reply in rows]) for rows in (shown, neutral)]
        sums = [-loss * n for loss, n in zip(losses, lengths, strict=True)]
        return float(np.mean(sums[0] - sums[1])), float(np.average(losses[1], weights=lengths[1]))

    @torch.no_grad()
    def _losses(self, model: Any, tokenizer: Any, rows: Sequence[Row]) -> np.ndarray:
        """(n,) mean token loss of each reply, at temperature 1."""
        found: list[float] = []
        device = next(model.parameters()).device
        with fused_head(model, 1.0):
            for at in range(0, len(rows), self.recipe.train.micro_batch):
                part = rows[at : at + self.recipe.train.micro_batch]
                batch = collate(part, tokenizer.pad_token_id, None, device)
                found += plain_loss(token_logprobs(model, batch), batch.mask).tolist()
        return np.array(found)


def _reply(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
