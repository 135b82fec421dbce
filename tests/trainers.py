"""Real TRL trainers around tiny random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from tests.models import VOCABULARY, tiny


def tokenizer() -> PreTrainedTokenizerFast:
    """Words w4 ... w60, after the four special tokens."""
    special = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
    words = special | {f"w{i}": i for i in range(4, VOCABULARY)}
    core = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )


def dataset(n: int = 12) -> Dataset:
    """Prompts of different lengths."""
    prompts = [" ".join(f"w{4 + (7 * i + j) % 50}" for j in range(2 + i % 4)) for i in range(n)]
    return Dataset.from_dict({"prompt": prompts})


def reward(completions: list[str], log_extra: Any = None, **columns: Any) -> list[float]:
    """Varies within groups; depends on the text alone."""
    return [float(sum(map(ord, c)) % 7) for c in completions]


def grpo(
    folder: Path,
    architecture: str = "llama",
    *,
    model: Any = None,
    reward_funcs: Any = reward,
    peft_config: Any = None,
    **settings: Any,
) -> GRPOTrainer:
    """A stock GRPOTrainer on the CPU, fp32, 2 prompts x 4 generations in micro-batches of 4."""
    torch.manual_seed(0)
    config = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_completion_length": 6,
        "max_steps": 2,
        "learning_rate": 1e-3,
        "bf16": False,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "temperature": 0.9,
        "seed": 0,
        **settings,
    }
    return GRPOTrainer(
        model=model if model is not None else tiny(architecture),
        args=GRPOConfig(**config),
        reward_funcs=reward_funcs,
        processing_class=tokenizer(),
        train_dataset=dataset(),
        peft_config=peft_config,
    )
