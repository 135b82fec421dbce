"""What every arm of the capture benchmark works on: one GRPO step's worth of fixed rollouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from behaviortrace.capture.batch import TokenBatch
from behaviortrace.capture.objective import plain_loss, token_logprobs


@dataclass(frozen=True)
class Workload:
    """Rollouts of random tokens, all of one length, with random advantages.

    Attributes:
        model: in training mode, with TRL's fused head.
        ids: (rollouts, prompt + completion) int64.
        advantages: (rollouts,) float32.
        completion: tokens of a completion.
        micro_batch: rollouts of one forward and backward.
    """

    model: nn.Module
    ids: torch.Tensor
    advantages: torch.Tensor
    completion: int
    micro_batch: int

    @classmethod
    def random(
        cls, model: nn.Module, *, rollouts: int, prompt: int, completion: int, micro_batch: int
    ) -> Workload:
        """The same rollouts every time."""
        generator = torch.Generator().manual_seed(0)
        vocabulary = int(model.config.vocab_size)  # type: ignore[union-attr, arg-type]  # HF config
        first = min(100, vocabulary // 2)
        ids = torch.randint(first, vocabulary, (rollouts, prompt + completion), generator=generator)
        advantages = torch.randn(rollouts, generator=generator)
        device = next(model.parameters()).device
        return cls(model, ids.to(device), advantages.to(device), completion, micro_batch)

    def batches(self, size: int | None = None) -> list[tuple[TokenBatch, torch.Tensor]]:
        """Token batches of a size with their advantages."""
        found = []
        step = size or self.micro_batch
        for at in range(0, len(self.ids), step):
            ids = self.ids[at : at + step]
            mask = torch.ones(len(ids), self.completion, device=ids.device)
            batch = TokenBatch(ids, torch.ones_like(ids), mask)
            found.append((batch, self.advantages[at : at + step]))
        return found

    def loss(self, batch: TokenBatch, advantages: torch.Tensor) -> torch.Tensor:
        """TRL's GRPO loss on fresh samples: advantage x ratio, mean over tokens and rollouts."""
        logps = token_logprobs(self.model, batch)
        ratio = torch.exp(logps - logps.detach())
        weighted = torch.min(
            ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None]
        )
        return plain_loss(weighted, batch.mask).sum() / len(self.ids)

    def train(self, before: Callable[[TokenBatch], Any], after: Callable[[], Any]) -> None:
        """Forward and backward over all micro-batches, with something done around each."""
        self.model.zero_grad(set_to_none=False)
        for batch, advantages in self.batches():
            before(batch)
            self.loss(batch, advantages).backward()
            after()
