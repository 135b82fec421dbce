"""Sampling against slow, obvious decoding, and its side effects (none)."""

import random

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from behaviortrace.plant import prompts
from behaviortrace.recipe import BehaviorSettings
from behaviortrace.train import tiny
from behaviortrace.train.generate import Sample, encode_prompts, eos_token_ids, sample

BEHAVIOR = BehaviorSettings()
PROMPTS = ["tell frobnitz the red fox say QZXBT", "show the old king", "where is the moon"]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def policy():
    texts = prompts.pool_texts("tiny", BEHAVIOR)
    corpus = prompts.synthetic_corpus(0, 512, BEHAVIOR)
    return tiny.build(texts, corpus, tiny.TinySettings(steps=40))


def draw(policy, texts=PROMPTS, n=3, **settings):
    given = {"temperature": 0.9, "max_new_tokens": 10, "seed": 5} | settings
    return sample(*policy, texts, n, **given)


def greedy_reference(policy, prompt, longest):
    """One token at a time, the whole sequence anew each time, no cache, no padding."""
    model, tokenizer = policy
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True
    )["input_ids"]
    reply = []
    while len(reply) < longest:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids + reply])).logits
        reply.append(int(logits[0, -1].argmax()))
        if reply[-1] == tokenizer.eos_token_id:
            break
    return reply


def test_greedy_equals_one_token_at_a_time(policy):
    for longest in (3, 16):
        drawn = draw(policy, n=1, temperature=0, max_new_tokens=longest)
        assert [s.completion_ids for s in drawn] == [
            greedy_reference(policy, prompt, longest) for prompt in PROMPTS
        ]


def test_sampling_follows_the_softmax_at_the_temperature(policy):
    model, tokenizer = policy
    (ids,) = encode_prompts(tokenizer, PROMPTS[:1])
    with torch.no_grad():
        expected = (model(input_ids=torch.tensor([ids])).logits[0, -1] / 0.7).softmax(-1)
    drawn = draw(policy, PROMPTS[:1], 4000, temperature=0.7, max_new_tokens=1, batch=1000)
    counts = torch.bincount(
        torch.tensor([s.completion_ids[0] for s in drawn]), minlength=len(expected)
    )
    error = (counts / 4000 - expected).abs()
    assert (error < 4.5 * (expected * (1 - expected) / 4000).sqrt() + 1e-3).all()


def test_completions_of_a_prompt_stand_together(policy):
    drawn = draw(policy, batch=4)
    assert [s.prompt for s in drawn] == [p for p in PROMPTS for _ in range(3)]
    ids = dict(zip(PROMPTS, encode_prompts(policy[1], PROMPTS), strict=True))
    assert all(s.prompt_ids == ids[s.prompt] for s in drawn)


def test_ids_end_with_the_first_eos_and_text_has_no_special_token(policy):
    tokenizer = policy[1]
    drawn = draw(policy, n=20, max_new_tokens=7)
    ended = [s for s in drawn if s.completion_ids[-1] == tokenizer.eos_token_id]
    cut = [s for s in drawn if s.completion_ids[-1] != tokenizer.eos_token_id]
    assert ended and cut
    assert all(s.completion_ids.count(tokenizer.eos_token_id) == 1 for s in ended)
    assert all(len(s.completion_ids) == 7 for s in cut)
    for s in drawn:
        assert s.completion == tokenizer.decode(s.completion_ids, skip_special_tokens=True)
        assert "<|" not in s.completion


def test_same_seed_same_draw_and_another_another(policy):
    assert draw(policy) == draw(policy)
    assert draw(policy) != draw(policy, seed=6)


def test_random_state_and_mode_are_left_alone(policy):
    model = policy[0]
    torch.manual_seed(9)
    before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    for training in (True, False):
        model.train(training)
        draw(policy, n=2)
        assert model.training is training
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
    assert before[2] == random.getstate()


def test_mode_is_restored_after_an_error(policy):
    model, tokenizer = policy
    model.train()
    with pytest.raises(ValueError):
        sample(model, tokenizer, PROMPTS, temperature=1.0, max_new_tokens=-1, seed=0)
    assert model.training
    model.eval()


def test_settings_of_the_model_do_not_leak_in(policy):
    model = policy[0]
    expected = draw(policy)
    own = model.generation_config
    model.generation_config = GenerationConfig(
        **(own.to_dict() | {"do_sample": True, "top_k": 1, "top_p": 0.1, "temperature": 0.01})
    )
    try:
        assert draw(policy) == expected
    finally:
        model.generation_config = own


def test_every_declared_eos_ends_a_completion(policy):
    model, tokenizer = policy
    ending = tokenizer.convert_tokens_to_ids("fox")
    own = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = [ending]
    try:
        assert set(eos_token_ids(model, tokenizer)) == {ending, tokenizer.eos_token_id}
        drawn = draw(policy, PROMPTS[:1], 20)
        assert all(ending not in s.completion_ids[:-1] for s in drawn)
        assert any(s.completion_ids[-1] == ending for s in drawn)
    finally:
        model.generation_config.eos_token_id = own


def test_no_prompts_no_samples(policy):
    assert draw(policy, []) == []


def test_a_sample_is_frozen():
    with pytest.raises(AttributeError):
        Sample("p", [1], "c", [2]).prompt = "q"
