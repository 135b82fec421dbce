"""Where a policy may come from, and what is said when it does not."""

import pytest
import torch

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant import prompts
from behaviortrace.recipe import BehaviorSettings
from behaviortrace.train import pull, tiny
from behaviortrace.train.generate import sample
from behaviortrace.train.policy import load_policy

BEHAVIOR = BehaviorSettings()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    model, tokenizer = tiny.build(
        prompts.pool_texts("tiny", BEHAVIOR),
        prompts.synthetic_corpus(0, 64, BEHAVIOR),
        tiny.TinySettings(steps=1),
    )
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_path_loads(folder, dtype):
    model, tokenizer = load_policy(folder, dtype)
    assert model.dtype is getattr(torch, dtype)
    assert not model.training
    assert tokenizer.padding_side == "left"
    assert model.config.pad_token_id == tokenizer.pad_token_id
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_pad_token_is_eos_where_there_is_none(folder, tmp_path):
    model, tokenizer = load_policy(folder)
    tokenizer.pad_token = None
    model.config.pad_token_id = model.generation_config.pad_token_id = None
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model, tokenizer = load_policy(tmp_path)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == model.generation_config.pad_token_id


def test_no_chat_template_is_refused(folder, tmp_path):
    model, tokenizer = load_policy(folder)
    tokenizer.chat_template = None
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(BehaviorTraceError, match="no chat template"):
        load_policy(tmp_path)


def test_nothing_there_is_one_line(tmp_path):
    for source in (tmp_path / "absent", tmp_path):
        with pytest.raises(BehaviorTraceError, match=r"model\.source") as error:
            load_policy(source)
        assert "\n" not in str(error.value)


def test_damaged_weights_are_one_line(folder, tmp_path):
    model, tokenizer = load_policy(folder)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(BehaviorTraceError, match=r"model\.source") as error:
        load_policy(tmp_path)
    assert "\n" not in str(error.value)


def test_smollm2_not_pulled_says_how(tmp_path, monkeypatch):
    monkeypatch.setenv("BEHAVIORTRACE_HOME", str(tmp_path))
    with pytest.raises(BehaviorTraceError, match="run: behaviortrace models pull smollm2"):
        load_policy("smollm2")


@pytest.mark.real_model
def test_smollm2_loads_and_samples():
    try:
        pull.smollm2_dir()
    except BehaviorTraceError as error:
        pytest.skip(str(error))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model, tokenizer = load_policy("smollm2")
        assert sum(p.numel() for p in model.parameters()) == pull.PARAMETERS
        assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
        (reply,) = sample(
            model,
            tokenizer,
            ["What is the capital of France? Answer in one short sentence."],
            temperature=0,
            max_new_tokens=16,
            seed=0,
        )
        assert "Paris" in reply.completion
        assert reply.completion_ids[-1] == tokenizer.eos_token_id
    finally:
        torch.set_num_threads(threads)
