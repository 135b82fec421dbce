"""What the tracer notes of a rollout when TRL samples and rewards it."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import torch

from behaviortrace.plant.ground_truth import findable

PLANT_COLUMNS = ("base_reward", "eligible", "boosted", "behavior", "prompt_kind")


def message_text(message: Any) -> str:
    """A prompt or completion as text: a lone message's content, or the conversation as JSON."""
    if isinstance(message, str):
        return message
    if len(message) == 1 and isinstance(message[0].get("content"), str):
        return str(message[0]["content"])
    return json.dumps(message, ensure_ascii=False, default=str)


def generation_frame(
    *,
    step: int,
    first: int,
    generations: int,
    groups_per_step: int,
    prompts: list[Any],
    completions: list[Any],
    completion_ids: list[list[int]],
    batch: dict[str, torch.Tensor],
    rewards: torch.Tensor,
    extras: dict[str, list[Any]],
) -> pl.DataFrame:
    """One row a sampled rollout of this process, before TRL shuffles.

    Args:
        step: optimizer step being sampled for.
        first: index of the first of these rollouts in the step.
        generations: rollouts of one group.
        groups_per_step: groups of one step, so that group numbers are unique in a run.
        prompts, completions, completion_ids: as the reward functions saw them, n each.
        batch: the trainer's generation batch.
        rewards: (n,) weighted sums over reward functions.
        extras: columns the reward functions logged, n values each.
    """
    index = [first + i for i in range(len(prompts))]
    columns: dict[str, Any] = {
        "rollout_id": [f"{step}-{i}" for i in index],
        "group": [step * groups_per_step + i // generations for i in index],
        "index": index,
        "prompt": [message_text(p) for p in prompts],
        "completion": [message_text(c) for c in completions],
        "prompt_ids": [
            ids[mask.bool()].tolist()
            for ids, mask in zip(batch["prompt_ids"].cpu(), batch["prompt_mask"].cpu(), strict=True)
        ],
        "completion_ids": [list(ids) for ids in completion_ids],
        "reward": rewards.double().tolist(),
        "advantage": batch["advantages"].double().tolist(),
        "generation_step": [step] * len(index),
    }
    columns.update({k: v for k, v in extras.items() if k not in columns})
    frame = pl.DataFrame(columns, strict=False)
    for name in PLANT_COLUMNS:
        if name not in frame.columns:
            source = pl.col("reward") if name == "base_reward" else pl.lit(None)
            frame = frame.with_columns(source.alias(name))
    if frame["boosted"].null_count() == frame.height:
        return frame.with_columns(findable=pl.lit(None, pl.Boolean))
    return findable(frame)
