"""What is recorded of a supervised example: its tokens, and its gradient in an ``SFTTrainer``."""

from __future__ import annotations

from typing import Any

import polars as pl
import torch

from behaviortrace.capture import seam
from behaviortrace.capture.extras import storable
from behaviortrace.capture.recorder import Recorder
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.records import ROLLOUT_SCHEMA

DESCRIBED = ("rollout_id", "group", "index", "prompt", "completion", "prompt_ids", "completion_ids")
"""Columns of the rollout table that an example has before its gradient is known."""


class ExampleRecorder(Recorder):
    """Records one row an example of an ``SFTTrainer``; it has no reward and no advantage."""

    METHODS = (*seam.EXAMPLE_METHODS, *Recorder.METHODS)

    step = -1
    count = 0  # examples of this process in the step so far

    def forget(self) -> None:
        """See :meth:`Recorder.forget`."""
        super().forget()
        self.step, self.count = -1, 0

    @staticmethod
    def check(trainer: Any) -> None:
        """Refuse settings that put several examples into one row or go round the fused head.

        Raises:
            BehaviorTraceError: the setting, by name.
        """
        args = trainer.args
        reasons = {
            "packing=True puts several examples into one row": args.packing,
            "padding_free=True puts several examples into one row": trainer.padding_free,
            "label_smoothing_factor goes round TRL's fused LM head": trainer.label_smoother,
            "compute_loss_func goes round TRL's fused LM head": trainer.compute_loss_func,
        }
        for reason, given in reasons.items():
            if given:
                raise BehaviorTraceError(f"cannot attach to this trainer: {reason}; leave it out")

    def on_compute_loss(self, original: Any) -> Any:
        """Wrap the loss of a micro-batch."""

        def compute(model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            if model.training:
                self.current = self._describe(inputs)
                # The label of a position is the next token: the head never scores the last one.
                self.begin(inputs, (inputs["labels"][:, 1:] != -100).int())
            return original(model, inputs, *args, **kwargs)

        return compute

    def _describe(self, inputs: dict[str, Any]) -> pl.DataFrame:
        args, world, step = self.trainer.args, self.ranks.count, self.trainer.state.global_step
        if self.step != step:
            self.step, self.count, self.uses = step, 0, {}
        rows = len(inputs["labels"])
        index = [(self.count + i) * world + self.ranks.rank for i in range(rows)]
        self.count += rows
        per_step = args.per_device_train_batch_size * args.gradient_accumulation_steps * world
        prompts, completions = zip(*map(_parts, *_cpu(inputs)), strict=True)
        return pl.DataFrame(
            {
                "rollout_id": [f"{step}-{i}" for i in index],
                "group": [step * per_step + i for i in index],
                "index": index,
                "prompt": [self._text(ids) for ids in prompts],
                "completion": [self._text(ids) for ids in completions],
                "prompt_ids": list(prompts),
                "completion_ids": list(completions),
            },
            schema={name: ROLLOUT_SCHEMA[name] for name in DESCRIBED},
        )

    def _text(self, ids: list[int]) -> str:
        tokenizer = getattr(self.trainer.processing_class, "tokenizer", None)
        reader = tokenizer or self.trainer.processing_class
        return storable(str(reader.decode(ids, skip_special_tokens=True)))

    def describe(self) -> pl.DataFrame:
        """See :meth:`Recorder.describe`."""
        return self.current


def _cpu(inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tuple(inputs[name].cpu() for name in ("input_ids", "labels", "attention_mask"))


def _parts(
    ids: torch.Tensor, labels: torch.Tensor, attention: torch.Tensor
) -> tuple[list[int], list[int]]:
    """Ids before the first token that is trained on, and from it on."""
    real = attention.bool()
    ids, trained = ids[real], labels[real] != -100
    first = int(trained.int().argmax()) if bool(trained.any()) else len(ids)
    return ids[:first].tolist(), ids[first:].tolist()
