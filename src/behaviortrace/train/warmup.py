"""Supervised warm-up: seeds the association that reinforcement learning then amplifies."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.recipe import WarmupSettings
from behaviortrace.train.progress import Clock, Progress
from behaviortrace.train.quiet import quiet


def warm_up(
    model: Any,
    tokenizer: Any,
    examples: Sequence[tuple[str, str]],
    settings: WarmupSettings,
    *,
    seed: int,
    mixed_precision: bool = False,
    progress: Progress | None = None,
) -> None:
    """Fine-tune ``model`` in place with a stock ``trl.SFTTrainer``; the loss is on the reply alone.

    AdamW at a constant learning rate, no weight decay; batches come from shuffled passes over the
    examples. The same model, examples and seed give the same weights.

    Args:
        model: the policy.
        tokenizer: its tokenizer.
        examples: (prompt, reply) pairs.
        settings: steps, learning rate and batch size; no step leaves the model untouched.
        seed: of the order of examples.
        mixed_precision: bfloat16 autocast.
        progress: called with the stage "warm-up".

    Raises:
        BehaviorTraceError: steps are asked for, and there are no examples.
    """
    if settings.steps == 0:
        return
    if not examples:
        raise BehaviorTraceError(
            f"warmup.steps is {settings.steps} but the prompt pool has no warm-up examples; set "
            "warmup.steps to 0 or choose another prompts.pool"
        )
    rows = [
        {
            "prompt": [{"role": "user", "content": prompt}],
            "completion": [{"role": "assistant", "content": reply}],
        }
        for prompt, reply in examples
    ]
    with quiet(), tempfile.TemporaryDirectory() as scratch:
        trainer = SFTTrainer(
            model=model,
            args=_config(settings, len(examples), seed, mixed_precision, scratch),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[_Report(Clock(progress, "warm-up", settings.steps))],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    model.eval()


def _config(
    settings: WarmupSettings, examples: int, seed: int, mixed_precision: bool, scratch: str
) -> SFTConfig:
    import torch

    return SFTConfig(
        output_dir=scratch,
        max_steps=settings.steps,
        per_device_train_batch_size=min(settings.batch_size, examples),
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_length=None,
        completion_only_loss=True,
        gradient_checkpointing=False,
        bf16=mixed_precision,
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        seed=seed,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


class _Report(TrainerCallback):
    """Passes the trainer's steps on to a clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._clock.at(state.global_step)
