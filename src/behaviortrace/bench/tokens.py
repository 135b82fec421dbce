"""What scores of every token cost, in forward passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from behaviortrace.bench.timing import interleaved, paired_ratio
from behaviortrace.bench.workload import Workload
from behaviortrace.capture.batch import collate
from behaviortrace.capture.directional import direction_from, token_scores
from behaviortrace.capture.objective import fused_head, token_logprobs

REPEATS = 4
"""Times the rollouts are scored: choosing the step is paid once a call, not once a rollout."""
MICRO_BATCH = 8


def bench_tokens(model: nn.Module, work: Workload, rounds: int) -> dict[str, Any]:
    """Scores of every token of some rollouts against one target, over one forward pass of them.

    Args:
        model: a Hugging Face causal LM without TRL's fused head.
        work: the rollouts.
        rounds: timed rounds, after one untimed.

    Returns:
        ``passes`` (median of the rounds' ratios), ``rollouts``, and ``forward`` and ``scores``
        seconds of every round.
    """
    prompt = work.ids.shape[1] - work.completion
    rows = [(ids[:prompt], ids[prompt:]) for ids in work.ids.tolist()] * REPEATS
    direction = direction_from(model, rows[:2], pad_token_id=0)
    device = work.ids.device

    def forward() -> None:
        with torch.no_grad(), fused_head(model, 1.0):
            for at in range(0, len(rows), MICRO_BATCH):
                token_logprobs(model, collate(rows[at : at + MICRO_BATCH], 0, None, device))

    def scores() -> None:
        token_scores(model, rows, direction, pad_token_id=0, micro_batch=MICRO_BATCH)

    arms: dict[str, Callable[[], Any]] = {"forward": forward, "scores": scores}
    seconds = interleaved(arms, rounds)
    passes = paired_ratio(seconds["scores"], seconds["forward"])
    return {"passes": passes, "rollouts": len(rows), **seconds}
