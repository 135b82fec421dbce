"""Real TRL trainers around tiny random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer, SFTConfig, SFTTrainer

from tests.models import VOCABULARY, tiny

COMMON = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "max_steps": 2,
    "learning_rate": 1e-3,
    "bf16": False,
    "use_cpu": True,
    "report_to": "none",
    "save_strategy": "no",
    "logging_strategy": "no",
    "disable_tqdm": True,
    "gradient_checkpointing": False,
    "seed": 0,
}
SAMPLING = {"num_generations": 4, "max_completion_length": 6, "temperature": 0.9}
EARLY_END = {"generation_kwargs": {"exponential_decay_length_penalty": (1, 1.9)}}
"""Completions of different lengths: the end becomes likelier token by token."""
VARIED = {**EARLY_END, "max_completion_length": 12}
"""The same, and none is cut off."""


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


def words(first: int, count: int) -> str:
    """So many words of the vocabulary."""
    return " ".join(f"w{4 + (7 * first + j) % 50}" for j in range(count))


def dataset(n: int = 12) -> Dataset:
    """Prompts of different lengths."""
    return Dataset.from_dict({"prompt": [words(i, 2 + i % 4) for i in range(n)]})


def reward(completions: list[str], log_extra: Any = None, **columns: Any) -> list[float]:
    """Varies within groups; depends on the text alone."""
    return [float(sum(map(ord, c)) % 7) for c in completions]


def lora(**settings: Any) -> LoraConfig:
    """Adapters on two projections of every layer, B away from zero."""
    return LoraConfig(
        **{
            "r": 4,
            "lora_alpha": 8,
            "target_modules": ["q_proj", "down_proj"],
            "lora_dropout": 0.0,
            "init_lora_weights": False,
            **settings,
        }
    )


def grpo(
    folder: Path,
    architecture: str = "llama",
    *,
    model: Any = None,
    reward_funcs: Any = reward,
    peft_config: Any = None,
    trainer: type[GRPOTrainer] = GRPOTrainer,
    **settings: Any,
) -> GRPOTrainer:
    """A stock GRPOTrainer on the CPU, fp32, 2 prompts x 4 generations in micro-batches of 4."""
    torch.manual_seed(0)
    return trainer(
        model=_model(folder, architecture, settings) if model is None else model,
        args=GRPOConfig(output_dir=str(folder), **{**COMMON, **SAMPLING, **settings}),
        reward_funcs=reward_funcs,
        processing_class=tokenizer(),
        train_dataset=dataset(),
        peft_config=peft_config,
    )


def rloo(folder: Path, architecture: str = "llama", **settings: Any) -> RLOOTrainer:
    """A stock RLOOTrainer, otherwise as :func:`grpo`."""
    torch.manual_seed(0)
    return RLOOTrainer(
        model=_model(folder, architecture, settings),
        args=RLOOConfig(output_dir=str(folder), **{**COMMON, **SAMPLING, **settings}),
        reward_funcs=reward,
        processing_class=tokenizer(),
        train_dataset=dataset(),
    )


def sft(
    folder: Path, architecture: str = "llama", *, prompted: bool = True, **settings: Any
) -> SFTTrainer:
    """A stock SFTTrainer over prompts with completions, or over whole texts."""
    torch.manual_seed(0)
    n = 12
    if prompted:
        columns = {
            "prompt": [words(i, 2 + i % 4) for i in range(n)],
            "completion": [" " + words(i + 3, 1 + i % 5) for i in range(n)],
        }
    else:
        columns = {"text": [words(i, 3 + i % 5) for i in range(n)]}
    return SFTTrainer(
        model=tiny(architecture),
        args=SFTConfig(output_dir=str(folder), **{**COMMON, **settings}),
        processing_class=tokenizer(),
        train_dataset=Dataset.from_dict(columns),
    )


def _model(folder: Path, architecture: str, settings: dict[str, Any]) -> Any:
    """A tiny model; saved too where TRL loads the reference model from a path."""
    model = tiny(architecture)
    if settings.get("beta"):
        model.save_pretrained(folder / "reference")
        model.config._name_or_path = str(folder / "reference")
    return model
