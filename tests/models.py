"""Tiny random models of the architectures that capture must cover."""

from __future__ import annotations

import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

VOCABULARY = 61


def tiny(name: str, seed: int = 0) -> nn.Module:
    """A random model by architecture name, in eval mode, fp32."""
    torch.manual_seed(seed)
    size = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
    }
    if name == "llama":
        model = LlamaForCausalLM(LlamaConfig(**size, tie_word_embeddings=True))
    elif name == "llama-untied":
        model = LlamaForCausalLM(LlamaConfig(**size, tie_word_embeddings=False))
    elif name == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**size, tie_word_embeddings=True))
    elif name == "gpt2":
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY,
                n_embd=16,
                n_layer=2,
                n_head=4,
                n_positions=64,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
            )
        )
    else:
        raise ValueError(name)
    with torch.no_grad():  # away from the initial ones and zeros, so that every term shows
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.float().eval()


ARCHITECTURES = ["llama", "llama-untied", "qwen2", "gpt2"]
