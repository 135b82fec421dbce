"""What is recorded of a rollout: TRL's sampling and rewards, tied to rows of its micro-batches."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import torch

from behaviortrace.capture import seam
from behaviortrace.capture.extras import PLANTED, logged_columns, storable
from behaviortrace.capture.recorder import Recorder
from behaviortrace.plant.ground_truth import findable
from behaviortrace.records import ROLLOUT_SCHEMA


def message_text(message: Any) -> str:
    """A prompt or completion as text: a lone message's content, or the conversation as JSON."""
    if isinstance(message, str):
        return storable(message)
    if len(message) == 1 and isinstance(message[0].get("content"), str):
        return storable(message[0]["content"])
    return storable(json.dumps(message, ensure_ascii=False, default=str))


GENERATED = (
    *("rollout_id", "group", "index", "prompt", "completion", "prompt_ids", "completion_ids"),
    *("reward", "advantage"),
)
"""Columns of the rollout table that are known once a generation batch is scored."""


def generation_frame(
    *,
    step: int,
    start: int,
    first: int,
    generations: int,
    groups_per_step: int,
    prompts: list[Any],
    completions: list[Any],
    completion_ids: list[list[int]],
    batch: dict[str, torch.Tensor],
    rewards: torch.Tensor,
    everyones: torch.Tensor,
    logged: list[pl.Series],
) -> pl.DataFrame:
    """One row a sampled rollout of this process, before TRL shuffles.

    Args:
        step: optimizer step being sampled for.
        start: index in the step of the first rollout of this batch, of any process.
        first: index of the first of these.
        generations: rollouts of one group.
        groups_per_step: groups of one step, so that group numbers are unique in a run.
        prompts, completions, completion_ids: as the reward functions saw them, n each.
        batch: the trainer's generation batch.
        rewards: (n,) weighted sums over reward functions.
        everyones: (n x processes,) those of all processes, in their order.
        logged: columns the reward functions logged, n values each.
    """
    index = [first + i for i in range(len(prompts))]
    advantages = batch["advantages"].double()
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
        # A trainer of one's own may give every token an advantage: a rollout then has no one.
        "advantage": advantages.tolist() if advantages.dim() == 1 else [None] * len(index),
    }
    frame = pl.DataFrame(columns, schema={name: ROLLOUT_SCHEMA[name] for name in GENERATED})
    frame = frame.with_columns(pl.lit(step, pl.Int64).alias("generation_step"), *logged)
    for name in PLANTED:
        if name not in frame.columns:
            source = pl.col("reward") if name == "base_reward" else pl.lit(None)
            frame = frame.with_columns(source.cast(ROLLOUT_SCHEMA[name]).alias(name))
    if frame["boosted"].null_count() == frame.height:
        return frame.with_columns(findable=pl.lit(None, pl.Boolean))
    numbers = [step * groups_per_step + (start + i) // generations for i in range(len(everyones))]
    everyone = {"group": numbers, "reward": everyones.double().tolist()}
    schema = {name: ROLLOUT_SCHEMA[name] for name in everyone}
    return findable(frame, pl.DataFrame(everyone, schema=schema))


class RolloutRecorder(Recorder):
    """Records the rollouts of a ``GRPOTrainer`` or ``RLOOTrainer``."""

    METHODS = (*seam.ROLLOUT_METHODS, *Recorder.METHODS)

    generation: pl.DataFrame | None = None
    sampled = (-1, 0)  # step, and rollouts sampled for it so far by all processes

    @property
    def sampled_here(self) -> bool:
        """See :attr:`Recorder.sampled_here`."""
        return self.generation is not None

    def forget(self) -> None:
        """See :meth:`Recorder.forget`; what the trainer holds in its buffer stays known."""
        super().forget()
        self.sampled = (-1, 0)

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
            total = (rewards * weights).nansum(1)
            total[torch.isnan(rewards).all(1)] = torch.nan
            logged, remarks = logged_columns(self.trainer._pending_extra_logs, n)
            if self.trainer.model.training:
                self.remarks.update(remarks)
                self.unscored |= not bool(torch.isfinite(total).all())
            self.rewarded = {
                "prompts": prompts,
                "completions": completions,
                "completion_ids": completion_ids,
                "rewards": total[rank * n : (rank + 1) * n],
                "everyones": total,
                "logged": logged,
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
            start=before,
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
