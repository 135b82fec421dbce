"""What is recorded of a rollout: TRL's sampling and rewards, tied to rows of its micro-batches."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import torch

from behaviortrace.capture import seam
from behaviortrace.capture.recorder import Recorder
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


class RolloutRecorder(Recorder):
    """Records the rollouts of a ``GRPOTrainer`` or ``RLOOTrainer``."""

    METHODS = (*seam.ROLLOUT_METHODS, *Recorder.METHODS)

    generation: pl.DataFrame | None = None
    sampled = (-1, 0)  # step, and rollouts sampled for it so far by all processes

    def on_generate_and_score_completions(self, original: Any) -> Any:
        """Wrap sampling: note what was sampled, and number the rows before TRL shuffles them."""

        def generate(inputs: Any) -> Any:
            training = bool(self.trainer.model.training)
            batch = original(inputs)
            if training:
                seam.check_batch(batch)
                self._note_generation(batch)
                count = batch["prompt_ids"].shape[0]
                batch[seam.ROW_KEY] = torch.arange(count, device=batch["prompt_ids"].device)
            return batch

        return generate

    def on_calculate_rewards(self, original: Any) -> Any:
        """Wrap the reward functions: keep what they saw, said and logged."""

        def calculate(inputs: Any, prompts: Any, completions: Any, completion_ids: Any) -> Any:
            rewards = original(inputs, prompts, completions, completion_ids)
            n, rank = len(prompts), self.ranks.rank
            weights = self.trainer.reward_weights.to(rewards.device)
            local = rewards[rank * n : (rank + 1) * n]
            total = (local * weights).nansum(1)
            total[torch.isnan(local).all(1)] = torch.nan
            self.rewarded = {
                "prompts": prompts,
                "completions": completions,
                "completion_ids": completion_ids,
                "rewards": total,
                "extras": {k: list(v) for k, v in self.trainer._pending_extra_logs.items()},
            }
            return rewards

        return calculate

    def _note_generation(self, batch: dict[str, Any]) -> None:
        args, world = self.trainer.args, self.ranks.count
        step, generations = self.trainer.state.global_step, self.trainer.num_generations
        count = batch["prompt_ids"].shape[0]
        before = self.sampled[1] if self.sampled[0] == step else 0
        self.sampled = (step, before + count * world)
        per_step = args.per_device_train_batch_size * args.gradient_accumulation_steps * world
        self.uses, self.totals = {}, {}
        self.generation = generation_frame(
            step=step,
            first=before + self.ranks.rank * count,
            generations=generations,
            groups_per_step=-(-max(per_step, count * world) // generations),
            batch=batch,
            **self.rewarded,
        )

    def on_compute_loss(self, original: Any) -> Any:
        """Wrap the loss of a micro-batch."""

        def compute(model: Any, inputs: dict[str, Any]) -> Any:
            if seam.ROW_KEY in inputs and model.training:
                self.current = inputs[seam.ROW_KEY].tolist()
                mask = scored = inputs["completion_mask"]
                if inputs.get("tool_mask") is not None:
                    mask = mask * inputs["tool_mask"]
                self.begin(inputs, mask, scored)
            return original(model, inputs)

        return compute

    def describe(self) -> pl.DataFrame:
        """See :meth:`Recorder.describe`."""
        assert self.generation is not None
        return self.generation[self.current]
