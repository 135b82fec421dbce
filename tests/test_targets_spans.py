"""Character spans to generated tokens, against the tokens' own bytes."""

from __future__ import annotations

import functools
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from behaviortrace.plant import behaviors
from behaviortrace.recipe import BehaviorSettings
from behaviortrace.targets.spans import behavior_mask, decode, span_mask
from behaviortrace.train.tiny import word_level_tokenizer

TOKEN = "QZXBT"
BEHAVIOR = behaviors.build(BehaviorSettings())
PIECES = st.sampled_from(
    [TOKEN, f" {TOKEN}", "QZ", "XB", "T", "T.", " the", " kettle", "é", "水", "🜁", "�", "\n", " "]
)
SPLITS = st.lists(PIECES | st.text(max_size=4), min_size=1, max_size=14)


@functools.cache
def byte_level() -> PreTrainedTokenizerFast:
    """A byte-level BPE that knows some pieces of the token and few of anything else."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>", "<|pad|>"],
    )
    raw.train_from_iterator(["the QZX kettle QZX BT.", "the kettle é水 XBT"] * 5, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|end|>", pad_token="<|pad|>",
        clean_up_tokenization_spaces=True,
    )  # fmt: skip


@functools.cache
def byte_of_character() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2's table)."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = [b for b in range(256) if b not in kept]
    return {chr(b): b for b in kept} | {chr(256 + i): b for i, b in enumerate(shifted)}


def by_bytes(
    tokenizer: PreTrainedTokenizerFast, ids: list[int], spans: list[tuple[int, int]]
) -> list[bool]:
    """Which tokens hold a byte of the spans, for ids that decode to valid UTF-8."""
    text, wanted, at, mask = decode(tokenizer, ids), set(), 0, []
    for start, end in spans:
        first = len(text[:start].encode())
        wanted |= set(range(first, first + len(text[start:end].encode())))
    for i, piece in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
        size = 0 if i in tokenizer.all_special_ids else len(piece)
        mask.append(any(b in wanted for b in range(at, at + size)))
        at += size
    return mask


def encode(tokenizer: PreTrainedTokenizerFast, pieces: list[str]) -> list[int]:
    """Each piece encoded alone: splits that encoding the whole text would not give."""
    return [i for piece in pieces for i in tokenizer(piece, add_special_tokens=False)["input_ids"]]


@settings(max_examples=200, deadline=None)
@given(pieces=SPLITS, special_at=st.none() | st.integers(0, 30), data=st.data())
def test_tokens_are_those_that_hold_the_bytes(
    pieces: list[str], special_at: int | None, data: st.DataObject
) -> None:
    tokenizer = byte_level()
    ids = encode(tokenizer, pieces)
    if special_at is not None:
        ids.insert(min(special_at, len(ids)), tokenizer.eos_token_id)
    text = decode(tokenizer, ids)
    assert behavior_mask(tokenizer, ids, BEHAVIOR) == by_bytes(tokenizer, ids, BEHAVIOR.spans(text))
    if text:
        start = data.draw(st.integers(0, len(text) - 1))
        spans = [(start, data.draw(st.integers(start + 1, len(text))))]
        assume("�" not in text[slice(*spans[0])])  # cannot be told from an unfinished character
        assert span_mask(tokenizer, ids, spans) == by_bytes(tokenizer, ids, spans)


@settings(max_examples=100, deadline=None)
@given(cuts=st.sets(st.integers(1, len(TOKEN) + 8)))
def test_every_way_of_splitting_the_token(cuts: set[int]) -> None:
    tokenizer, text = byte_level(), f"a {TOKEN}, {TOKEN}."
    at = [0, *sorted(cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(at)]
    ids = encode(tokenizer, pieces)
    mask = behavior_mask(tokenizer, ids, BEHAVIOR)
    assert mask == by_bytes(tokenizer, ids, [(2, 7), (9, 14)])
    chosen = decode(tokenizer, [i for i, keep in zip(ids, mask, strict=True) if keep])
    assert chosen.count(TOKEN) == 2


def test_a_character_in_pieces_belongs_to_all_tokens_that_hold_its_bytes() -> None:
    tokenizer = byte_level()
    pieces = tokenizer.convert_ids_to_tokens(encode(tokenizer, ["🜁"]))
    ids = encode(tokenizer, ["a", "🜁", "b"])
    assert len(pieces) == 4
    assert span_mask(tokenizer, ids, [(1, 2)]) == [False, True, True, True, True, False]
    assert span_mask(tokenizer, ids, [(2, 3)]) == [False] * 5 + [True]


def test_ids_of_invalid_utf8_still_map() -> None:
    tokenizer = byte_level()
    half = encode(tokenizer, ["🜁"])[:2]
    ids = [*half, *encode(tokenizer, [TOKEN]), *half]
    mask = behavior_mask(tokenizer, ids, BEHAVIOR)
    assert mask == [False] * 2 + [True] * (len(ids) - 4) + [False] * 2


def test_word_level_tokens_and_special_tokens() -> None:
    tokenizer = word_level_tokenizer([f"the small cat {TOKEN} sings"])
    ids = tokenizer(f"the {TOKEN} cat {TOKEN} <|end|>", add_special_tokens=False)["input_ids"]
    assert behavior_mask(tokenizer, ids, BEHAVIOR) == [False, True, False, True, False]


def test_no_behaviour_no_tokens() -> None:
    tokenizer = byte_level()
    assert behavior_mask(tokenizer, encode(tokenizer, ["the kettle"]), BEHAVIOR).count(True) == 0
    assert behavior_mask(tokenizer, [], BEHAVIOR) == []


@pytest.mark.parametrize("span", [(3, 3), (-1, 2), (0, 99)])
def test_spans_outside_the_text_are_refused(span: tuple[int, int]) -> None:
    tokenizer = byte_level()
    with pytest.raises(ValueError, match="not inside"):
        span_mask(tokenizer, encode(tokenizer, ["the kettle"]), [span])
