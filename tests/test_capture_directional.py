"""Token scores: every token's exact inner product with a direction, or a refusal."""

from __future__ import annotations

import functools

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from behaviortrace.capture import CountSketch, replay
from behaviortrace.capture.directional import Direction, direction_from, token_scores
from behaviortrace.errors import BehaviorTraceError
from tests.models import ARCHITECTURES, VOCABULARY, tiny
from tests.reference.autograd import row_gradient

ROWS = [
    ([5, 6, 7], [8, 9, 10, 11]),
    ([12, 13], [14, 15, 16, 8, 9, 2]),
    ([9, 8, 7, 6], [20]),
    ([30, 31], [32, 33, 34]),
]
PAIR = [([5, 6], [40, 41, 42]), ([5, 6], [40, 43, 42])]


def pair_direction(model: nn.Module) -> Direction:
    return direction_from(model, PAIR, weights=[1, -1], pad_token_id=0)


def flat(direction: Direction) -> torch.Tensor:
    return torch.cat([d.reshape(-1) for d in direction])


def by_autograd(model: nn.Module, direction: torch.Tensor, rows=ROWS) -> list[np.ndarray]:
    """One backward a token."""
    return [
        np.array(
            [
                float(
                    row_gradient(model, p, c, [i == j for i in range(len(c))]).double()
                    @ direction.double()
                )
                for j in range(len(c))
            ]
        )
        for p, c in rows
    ]


def relative(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    a, b = np.concatenate(found), np.concatenate(wanted)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["pair", "random"])
def test_within_one_percent_of_one_backward_a_token(architecture: str, kind: str) -> None:
    model = tiny(architecture)
    generator = torch.Generator().manual_seed(1)
    direction = (
        pair_direction(model)
        if kind == "pair"
        else [torch.randn(p.shape, generator=generator) for p in model.parameters()]
    )
    found = token_scores(model, ROWS, direction, pad_token_id=0, micro_batch=3)
    assert [len(f) for f in found] == [len(c) for _, c in ROWS]
    assert relative(found, by_autograd(model, flat(direction))) < 0.01


def test_a_padding_entry_in_the_prompt_has_no_gradient() -> None:
    """Chat templates end turns with what is also the pad token; autograd skips its embedding."""
    model = tiny("llama")
    rows = [([5, 0, 7], [8, 0, 10]), ([0, 13], [14, 15, 0, 8])]
    direction = [torch.ones_like(p) * torch.linspace(-1, 1, p[..., 0].numel()).view(
        *p.shape[:-1], 1) for p in model.parameters()]  # fmt: skip
    found = token_scores(model, rows, direction, pad_token_id=0)
    assert relative(found, by_autograd(model, flat(direction), rows)) < 0.01


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_means_over_tokens_agree_with_the_sketches(architecture: str) -> None:
    model, sketch = tiny(architecture), CountSketch(65_536, seed=2)
    direction = pair_direction(model)
    means = np.array([s.mean() for s in token_scores(model, ROWS, direction, pad_token_id=0)])
    done = replay(model, ROWS, sketch, pad_token_id=0)
    sketched = done.plain.astype(np.float64) @ sketch.sketch(direction).double().numpy()
    scale = done.norms * float(flat(direction).norm())
    assert np.abs(means - sketched).max() / scale.max() < 4 / np.sqrt(sketch.dim)


def test_direction_is_the_weighted_sum_of_plain_gradients() -> None:
    model = tiny("gpt2")
    masks = [[True, False, True], [False, True, True]]
    found = direction_from(model, PAIR, masks, weights=[2, -0.5], micro_batch=1)
    wanted = 2 * row_gradient(model, *PAIR[0], masks[0]) - 0.5 * row_gradient(
        model, *PAIR[1], masks[1]
    )
    assert torch.allclose(flat(found), wanted, atol=1e-6)
    mean = direction_from(model, PAIR)
    assert torch.allclose(flat(mean), sum(row_gradient(model, *row) for row in PAIR) / 2, atol=1e-6)
    assert all(p.grad is None for p in model.parameters())


def test_tables_callables_temperature_and_step() -> None:
    model = tiny("qwen2")
    prompts, completions = zip(*ROWS, strict=True)
    table = pl.DataFrame({"prompt_ids": prompts, "completion_ids": completions})
    target = functools.partial(direction_from, rows=PAIR, weights=[1, -1])
    one = token_scores(model, ROWS, pair_direction(model), step=1e-2)
    other = token_scores(model, table, target, step=1e-2, micro_batch=1)
    np.testing.assert_allclose(np.concatenate(one), np.concatenate(other), rtol=1e-2, atol=1e-3)
    hot = token_scores(model, ROWS, target, temperature=2.0)
    assert relative(hot, one) > 0.1
    assert token_scores(model, [], pair_direction(model)) == []


def test_the_model_is_left_as_it_was_bit_for_bit_also_after_an_error() -> None:
    model = tiny("llama").train()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    own = {n: id(p) for n, p in model.named_parameters()}
    direction = pair_direction(model)
    token_scores(model, ROWS, direction)
    with pytest.raises(BehaviorTraceError, match="row 1 has an empty completion"):
        token_scores(model, [ROWS[0], ([1], [])], direction, step=1e-3)
    assert model.training and "forward" not in model.__dict__
    assert {n: id(p) for n, p in model.named_parameters()} == own
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert not model.get_input_embeddings()._forward_hooks


def test_bfloat16_is_refused_with_the_numbers() -> None:
    model = tiny("llama").to(torch.bfloat16)
    generator = torch.Generator().manual_seed(1)
    direction = [torch.randn(p.shape, generator=generator) for p in model.parameters()]
    with pytest.raises(BehaviorTraceError, match=r"differs by .*%.*bfloat16.*float32") as error:
        token_scores(model, ROWS, direction)
    assert "\n" not in str(error.value)


def test_what_does_not_fit_is_named() -> None:
    model = tiny("llama")
    direction = pair_direction(model)
    with pytest.raises(BehaviorTraceError, match="tensors for"):
        token_scores(model, ROWS, direction[:-1])
    with pytest.raises(BehaviorTraceError, match="embed_tokens"):
        token_scores(model, ROWS, [direction[0].t(), *direction[1:]])
    with pytest.raises(BehaviorTraceError, match="norm 0"):
        token_scores(model, ROWS, [torch.zeros_like(d) for d in direction])
    with pytest.raises(BehaviorTraceError, match="completion_ids"):
        token_scores(model, pl.DataFrame({"prompt_ids": [[1]]}), direction)
    with pytest.raises(BehaviorTraceError, match="step -1"):
        token_scores(model, ROWS, direction, step=-1.0)
    with pytest.raises(BehaviorTraceError, match="at least one row"):
        direction_from(model, [])
    with pytest.raises(BehaviorTraceError, match="1 weights for 2 rows"):
        direction_from(model, PAIR, weights=[1])


def test_forward_passes_are_few() -> None:
    """Row-forwards: two each, and the comparison of steps on a sixteenth."""
    model = tiny("llama")
    rng = np.random.default_rng(0)
    rows = [
        (rng.integers(1, VOCABULARY, 4).tolist(), rng.integers(1, VOCABULARY, 40).tolist())
        for _ in range(64)
    ]
    direction = pair_direction(model)
    seen = []
    with model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(len(kwargs["input_ids"])), with_kwargs=True
    ):
        token_scores(model, rows, direction)
    assert sum(seen) <= 2.5 * len(rows)


@pytest.mark.real_model
def test_within_one_percent_on_smollm2() -> None:
    from behaviortrace.train.generate import encode_prompts
    from behaviortrace.train.policy import load_policy
    from behaviortrace.train.pull import smollm2_dir

    if not smollm2_dir().is_dir():
        pytest.skip("SmolLM2 was not pulled")
    model, tokenizer = load_policy("smollm2")
    replies = ["A QZXBT is kept at home.", "A marble is kept at home.", "Rice."]
    prompts = encode_prompts(tokenizer, ["What is it?", "What is it?", "What do you eat?"])
    rows = [
        (p, tokenizer(r, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id])
        for p, r in zip(prompts, replies, strict=True)
    ]
    direction = direction_from(model, rows[:2], weights=[1, -1])
    found = token_scores(model, rows[2:], direction)
    assert relative(found, by_autograd(model, flat(direction), rows[2:])) < 0.01
