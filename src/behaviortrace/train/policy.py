"""Load the model that is trained, with its tokenizer, from any of the places it may come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.recipe import BehaviorSettings
from behaviortrace.train.progress import Progress
from behaviortrace.train.pull import smollm2_dir
from behaviortrace.train.quiet import quiet


def device() -> torch.device:
    """The CUDA device of this process if there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def load_policy(
    source: str | Path,
    dtype: str = "float32",
    *,
    behavior: BehaviorSettings | None = None,
    progress: Progress | None = None,
) -> tuple[Any, Any]:
    """Load a causal language model and its tokenizer.

    Args:
        source: "tiny" (made and trained from scratch on first use), "smollm2" (pulled beforehand),
            a Hugging Face id, or the path of a checkpoint folder.
        dtype: "float32" or "bfloat16", of the parameters.
        behavior: words that the tiny model's vocabulary must hold; the defaults if None. Other
            models do not look at it.
        progress: called while the tiny model is made.

    Returns:
        (model, tokenizer): the model on :func:`device` in evaluation mode; the tokenizer pads on
        the left, has a pad token (the EOS token where it brought none) and a chat template.

    Raises:
        BehaviorTraceError: nothing loadable there, or no chat template.
    """
    folder = _locate(str(source), behavior, progress)
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    except (OSError, ValueError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BehaviorTraceError(
            f"model.source {str(source)!r} cannot be loaded ({first}); use 'tiny', 'smollm2', a "
            "checkpoint folder, or a Hugging Face id while online"
        ) from error
    if tokenizer.chat_template is None:
        raise BehaviorTraceError(
            f"model.source {str(source)!r} has no chat template; use an instruction-tuned "
            "model, or set tokenizer.chat_template and save the tokenizer beside the model"
        )
    _set_pad_token(model, tokenizer)
    return model.to(device()).eval(), tokenizer


def _locate(source: str, behavior: BehaviorSettings | None, progress: Progress | None) -> str:
    if source == "tiny":
        from behaviortrace.train.tiny import tiny_dir

        return str(tiny_dir(behavior or BehaviorSettings(), progress=progress))
    if source == "smollm2":
        return str(smollm2_dir())
    return source


def _set_pad_token(model: Any, tokenizer: Any) -> None:
    # An unused special token is not looked for: a new one would resize the embedding, and with the
    # mask that ends at the first EOS a pad token equal to EOS is harmless.
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id
    if model.generation_config is not None:
        model.generation_config.pad_token_id = tokenizer.pad_token_id
