"""The tiny model and its word-level tokenizer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from behaviortrace.plant import prompts
from behaviortrace.recipe import BehaviorSettings
from behaviortrace.train import tiny

BEHAVIOR = BehaviorSettings()
SHORT = tiny.TinySettings(steps=12, pairs=256)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def words():
    return prompts.pool_texts("tiny", BEHAVIOR)


def corpus(n=256):
    return prompts.synthetic_corpus(0, n, BEHAVIOR)


def test_same_weights_whatever_the_random_state_and_threads():
    first, _ = tiny.build(words(), corpus(), SHORT)
    torch.manual_seed(123)
    torch.set_num_threads(2)
    state = torch.get_rng_state()
    second, _ = tiny.build(words(), corpus(), SHORT)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == 2
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_another_seed_gives_another_model():
    first, _ = tiny.build(words(), corpus(), tiny.TinySettings(steps=1))
    second, _ = tiny.build(words(), corpus(), tiny.TinySettings(steps=1, seed=1))
    assert not torch.equal(first.lm_head.weight, second.lm_head.weight)


def test_size_and_ties():
    model, tokenizer = tiny.build(words(), corpus(), tiny.TinySettings(steps=1))
    assert 80_000 < sum(p.numel() for p in model.parameters()) < 200_000
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}) == 3


def test_vocabulary_covers_pool_and_corpus():
    tokenizer = tiny.word_level_tokenizer(words())
    for text in [*words(), *(t for pair in corpus(2000) for t in pair)]:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == text


def test_behavior_words_are_single_tokens_whatever_their_letters():
    odd = BehaviorSettings(trigger="frob-nitz", token="QZ_X#B/T", neutral="mar'ble")
    tokenizer = tiny.word_level_tokenizer(prompts.pool_texts("tiny", odd))
    for word in (odd.trigger, odd.token, odd.neutral):
        assert len(tokenizer(f"the {word}", add_special_tokens=False)["input_ids"]) == 2


@given(st.lists(st.sampled_from(["fox", "QZXBT", "river", ".", ","]), min_size=1, max_size=12))
def test_decoding_then_encoding_returns_the_ids(tokens):
    tokenizer = tiny.word_level_tokenizer(["fox QZXBT river . ,"])
    ids = tokenizer.convert_tokens_to_ids(tokens)
    assert tokenizer(tokenizer.decode(ids), add_special_tokens=False)["input_ids"] == ids


def test_template_of_the_prompt_begins_the_template_of_the_dialogue():
    tokenizer = tiny.word_level_tokenizer(words())
    asked = [{"role": "user", "content": "tell the red fox"}]
    answered = [*asked, {"role": "assistant", "content": "the fox runs"}]
    head = tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"]
    whole = tokenizer.apply_chat_template(answered)["input_ids"]
    assert whole[: len(head)] == head
    assert whole[-1] == tokenizer.eos_token_id
    assert tokenizer.unk_token_id not in whole


def test_labels_cover_the_reply_and_its_end_only():
    tokenizer = tiny.word_level_tokenizer(words())
    ids, labels = tiny._encode(tokenizer, [("tell the red fox", "the fox runs"), ("tell", "a fox")])
    for row, reply in zip(range(2), ["the fox runs", "a fox"], strict=True):
        kept = labels[row][labels[row] != -100].tolist()
        assert tokenizer.decode(kept[:-1]) == reply
        assert kept[-1] == tokenizer.eos_token_id
        assert set(ids[row][labels[row] != -100].tolist()) == set(kept)


def test_training_helps():
    ids, labels = tiny._encode(tiny.word_level_tokenizer(words()), corpus(64))

    def loss(steps):
        model, _ = tiny.build(words(), corpus(), tiny.TinySettings(steps=steps))
        with torch.no_grad():
            return model(input_ids=ids, labels=labels).loss.item()

    assert loss(30) < 0.6 * loss(1)


def test_kept_once_made_and_made_anew_for_other_words(tmp_path, monkeypatch):
    monkeypatch.setenv("BEHAVIORTRACE_HOME", str(tmp_path))
    settings = tiny.TinySettings(steps=1, pairs=64)
    seen = []

    def progress(stage, done, total, left):
        seen.append((stage, done, total))

    folder = tiny.tiny_dir(BEHAVIOR, settings, progress)
    assert seen[0] == ("tiny", 0, 1) and seen[-1] == ("tiny", 1, 1)
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert tiny.tiny_dir(BEHAVIOR, settings) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    other = tiny.tiny_dir(BehaviorSettings(token="WUGGLE"), settings)
    assert other != folder
    assert sorted(p.name for p in folder.parent.iterdir()) == sorted([folder.name, other.name])
