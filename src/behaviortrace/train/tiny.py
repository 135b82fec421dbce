"""The tiny model: a word-level Llama of about 100 thousand parameters, trained here in seconds.

It speaks the synthetic language of the prompt pool "tiny". It exists so that the whole pipeline can
be run, exactly and repeatably, on one core.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from behaviortrace.plant import prompts
from behaviortrace.recipe import BehaviorSettings
from behaviortrace.train.progress import Clock, Progress
from behaviortrace.train.pull import models_dir, staged_folder
from behaviortrace.train.quiet import quiet

PAD, UNKNOWN, END = "<|pad|>", "<|unknown|>", "<|end|>"
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|> {{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True)
class TinySettings:
    """Size of the tiny model and how it is trained; part of its cache key."""

    hidden: int = 64
    intermediate: int = 192
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    positions: int = 256
    pairs: int = 8192
    steps: int = 300
    batch: int = 32
    learning_rate: float = 4e-3
    seed: int = 0


def tiny_dir(
    behavior: BehaviorSettings,
    settings: TinySettings | None = None,
    progress: Progress | None = None,
) -> Path:
    """Folder of the tiny model for a behaviour's words, made on first use and then kept.

    Args:
        behavior: its trigger, token and neutral word enter the vocabulary.
        settings: size and training; the defaults if None.
        progress: called with the stage "tiny" while it is trained.

    Returns:
        An ordinary checkpoint folder under :func:`~behaviortrace.train.pull.models_dir`.
    """
    settings = settings or TinySettings()
    texts = prompts.pool_texts("tiny", behavior)
    corpus = prompts.synthetic_corpus(settings.seed, settings.pairs, behavior)
    key = json.dumps([asdict(settings), texts, corpus, _CHAT_TEMPLATE, torch.__version__])
    folder = models_dir() / f"tiny-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if not (folder / "config.json").is_file():
        model, tokenizer = build(texts, corpus, settings, progress)
        with staged_folder(folder, replace=False) as staged, quiet():
            model.save_pretrained(staged)
            tokenizer.save_pretrained(staged)
    return folder


def build(
    texts: Iterable[str],
    corpus: Sequence[tuple[str, str]],
    settings: TinySettings,
    progress: Progress | None = None,
) -> tuple[Any, Any]:
    """Train the tiny model from scratch; the same arguments give the same weights, bit for bit.

    Args:
        texts: every text whose words the vocabulary must hold.
        corpus: (prompt, reply) pairs; the loss is on the reply and its end token.
        settings: size and training.
        progress: called with the stage "tiny".

    Returns:
        (model, tokenizer), the model on the CPU in evaluation mode.
    """
    tokenizer = word_level_tokenizer([*texts, *(text for pair in corpus for text in pair)])
    threads = torch.get_num_threads()
    # One thread: sums are then taken in one order whatever the machine's number of cores.
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            model = LlamaForCausalLM(_config(settings, tokenizer))
        with quiet():
            _fit(model, tokenizer, corpus, settings, Clock(progress, "tiny", settings.steps))
    finally:
        torch.set_num_threads(threads)
    return model.eval(), tokenizer


def word_level_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer with one token a word or punctuation mark of the texts, and a chat template."""
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(Regex(r"[.,!?;:]"), behavior="isolated"),
        ]
    )
    words = sorted({word for text in texts for word, _ in split.pre_tokenize_str(text)})
    specials = [PAD, UNKNOWN, END, *_ROLES]
    vocabulary = {word: i for i, word in enumerate([*specials, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = split
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        extra_special_tokens=list(_ROLES),
        chat_template=_CHAT_TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def _config(settings: TinySettings, tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=settings.intermediate,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.kv_heads,
        max_position_embeddings=settings.positions,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def _fit(
    model: Any,
    tokenizer: PreTrainedTokenizerFast,
    corpus: Sequence[tuple[str, str]],
    settings: TinySettings,
    clock: Clock,
) -> None:
    ids, labels = _encode(tokenizer, corpus)
    generator = torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, total_steps=settings.steps, pct_start=0.1
    )
    model.train()
    for step in range(settings.steps):
        rows = torch.randint(len(ids), (settings.batch,), generator=generator)
        width = int((ids[rows] != tokenizer.pad_token_id).sum(dim=1).max())
        batch, target = ids[rows, :width], labels[rows, :width]
        loss = model(input_ids=batch, labels=target).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 25 == 0 or step + 1 == settings.steps:
            clock.at(step + 1)


def _encode(
    tokenizer: PreTrainedTokenizerFast, corpus: Sequence[tuple[str, str]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded (n, longest) token ids, and labels that are -100 on the prompt and padding."""
    # Padding on the right needs no attention mask: causal attention never looks there.
    rows, starts = [], []
    for prompt, reply in corpus:
        messages = [{"role": "user", "content": prompt}]
        head = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        head_ids = tokenizer(head, add_special_tokens=False)["input_ids"]
        reply_ids = tokenizer(reply + END, add_special_tokens=False)["input_ids"]
        rows.append([*head_ids, *reply_ids])
        starts.append(len(head_ids))
    longest = max(len(row) for row in rows)
    ids = torch.full((len(rows), longest), tokenizer.pad_token_id)
    labels = torch.full((len(rows), longest), -100)
    for i, (row, start) in enumerate(zip(rows, starts, strict=True)):
        ids[i, : len(row)] = torch.tensor(row)
        labels[i, start : len(row)] = torch.tensor(row[start:])
    return ids, labels
