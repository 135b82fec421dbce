"""Sample completions from a policy, without touching the random state of whoever is training it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig

from behaviortrace.train.decoding import quick_decoding
from behaviortrace.train.quiet import quiet


@dataclass(frozen=True)
class Sample:
    """One completion.

    Attributes:
        prompt: the user's message.
        prompt_ids: the chat-formatted prompt, without padding.
        completion: the reply, special tokens left out.
        completion_ids: the reply's tokens up to and with its first EOS, as TRL's loss mask has it;
            without EOS where the reply was cut off.
    """

    prompt: str
    prompt_ids: list[int]
    completion: str
    completion_ids: list[int]


def sample(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    n: int = 1,
    *,
    temperature: float,
    max_new_tokens: int,
    seed: int,
    batch: int = 32,
) -> list[Sample]:
    """Draw ``n`` completions of every prompt, those of one prompt beside one another.

    The distribution is the one ``trl.GRPOTrainer`` samples from: the softmax at ``temperature``, no
    top-k, top-p or repetition penalty. Global random state and the model's train or eval mode are
    left as they were. The result depends on ``seed`` and ``batch``.

    Args:
        model: causal language model.
        tokenizer: its tokenizer, padding on the left, with a chat template.
        prompts: user messages.
        n: completions a prompt.
        temperature: 0 decodes greedily.
        max_new_tokens: longest completion, in tokens.
        seed: of the draw.
        batch: completions generated at a time.

    Returns:
        ``len(prompts) * n`` samples.
    """
    prompt_ids = encode_prompts(tokenizer, prompts)
    rows = [i for i in range(len(prompts)) for _ in range(n)]
    config = _generation_config(model, tokenizer, temperature, max_new_tokens)
    device = next(model.parameters()).device
    was_training = model.training
    samples: list[Sample] = []
    model.eval()
    try:
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), quiet(), quick_decoding(model):
            torch.manual_seed(seed)
            for start in range(0, len(rows), batch):
                chunk = rows[start : start + batch]
                replies = _generate(model, tokenizer, [prompt_ids[i] for i in chunk], config)
                texts = tokenizer.batch_decode(replies, skip_special_tokens=True)
                samples += [
                    Sample(prompts[i], prompt_ids[i], text, reply)
                    for i, text, reply in zip(chunk, texts, replies, strict=True)
                ]
    finally:
        model.train(was_training)
    return samples


def encode_prompts(tokenizer: Any, prompts: Sequence[str]) -> list[list[int]]:
    """Token ids of chat-formatted prompts, as TRL forms them: one user message, reply to come."""
    if not prompts:
        return []
    messages = [[{"role": "user", "content": prompt}] for prompt in prompts]
    encoded = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=True
    )
    return [list(ids) for ids in encoded["input_ids"]]


def eos_token_ids(model: Any, tokenizer: Any) -> list[int]:
    """Every id that ends a completion: the tokenizer's EOS and those the model declares."""
    declared = getattr(model.generation_config, "eos_token_id", None)
    declared = [] if declared is None else declared
    ids = [declared] if isinstance(declared, int) else list(declared)
    return ids if tokenizer.eos_token_id in ids else [tokenizer.eos_token_id, *ids]


def _generation_config(
    model: Any, tokenizer: Any, temperature: float, max_new_tokens: int
) -> GenerationConfig:
    # Set in full: what is left None is filled in from the model's own generation config.
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=eos_token_ids(model, tokenizer),
        repetition_penalty=1.0,
        disable_compile=True,
        **sampling,
    )


@torch.no_grad()
def _generate(
    model: Any, tokenizer: Any, prompt_ids: list[list[int]], config: GenerationConfig
) -> list[list[int]]:
    padded = tokenizer.pad(
        {"input_ids": prompt_ids}, padding=True, padding_side="left", return_tensors="pt"
    ).to(next(model.parameters()).device)
    output = model.generate(
        input_ids=padded["input_ids"],
        attention_mask=padded["attention_mask"],
        generation_config=config,
    )
    ends = set(config.eos_token_id)
    return [_through_eos(row, ends) for row in output[:, padded["input_ids"].size(1) :].tolist()]


def _through_eos(ids: list[int], ends: set[int]) -> list[int]:
    for position, token in enumerate(ids):
        if token in ends:
            return ids[: position + 1]
    return ids
