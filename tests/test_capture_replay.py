from __future__ import annotations

import numpy as np
import pytest
import torch

from behaviortrace.capture import CountSketch, replay
from behaviortrace.capture.batch import collate
from behaviortrace.capture.engine import RowGradients
from behaviortrace.capture.objective import fused_head, plain_loss, token_logprobs
from behaviortrace.capture.sinks import ExactSink
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.train.policy import load_policy
from behaviortrace.train.pull import smollm2_dir
from tests.models import ARCHITECTURES, VOCABULARY, tiny
from tests.reference.autograd import row_gradient

SKETCH = CountSketch(4096, seed=3)


def some_rows(n: int = 5, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    rng = np.random.default_rng(seed)
    return [
        (
            rng.integers(1, VOCABULARY, rng.integers(2, 7)).tolist(),
            rng.integers(1, VOCABULARY, rng.integers(1, 8)).tolist(),
        )
        for _ in range(n)
    ]


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_equal_one_at_a_time_autograd(architecture: str) -> None:
    model, rows = tiny(architecture), some_rows()
    batch = collate(rows, 0)
    with fused_head(model, 1.0):
        engine = RowGradients(model, sink := ExactSink(layout=_layout(model)))
        with engine:
            engine.arm(len(rows), batch.mask)
            plain_loss(token_logprobs(model, batch), batch.mask).sum().backward()
            done = engine.disarm()
    assert done.plain
    exact = torch.stack([row_gradient(model, *row) for row in rows])
    assert relative(sink.gradients(), exact) < 1e-5
    np.testing.assert_allclose(done.norm, exact.norm(dim=1).numpy(), rtol=1e-5)
    total = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.requires_grad])
    assert relative(total, exact.sum(0)) < 1e-5


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("hash_", ["block", "coordinate", "kronecker"])
def test_replay_sketches_the_exact_gradient(architecture: str, hash_: str) -> None:
    model, rows = tiny(architecture), some_rows()
    sketch = CountSketch(4096, seed=5, hash=hash_)
    done = replay(model, rows, sketch, pad_token_id=0, micro_batch=2)
    for found, row in zip(done.plain, rows, strict=True):
        flat = row_gradient(model, *row)
        parameters = [p for p in model.parameters() if p.requires_grad]
        pieces = [
            x.view(p.shape)
            for x, p in zip(flat.split([p.numel() for p in parameters]), parameters, strict=True)
        ]
        wanted = sketch.sketch(pieces)
        assert relative(torch.from_numpy(found), wanted) < 1e-5
    assert all(p.grad is None for p in model.parameters())


def test_replay_does_not_depend_on_batching() -> None:
    model, rows = tiny("llama"), some_rows(7)
    one = replay(model, rows, SKETCH, pad_token_id=0, micro_batch=1)
    many = replay(model, rows, SKETCH, pad_token_id=0, micro_batch=7)
    np.testing.assert_allclose(one.plain, many.plain, atol=1e-5 * np.abs(one.plain).max())
    np.testing.assert_allclose(one.fluency, many.fluency, rtol=1e-5)


def test_span_gradients_sum_to_the_whole() -> None:
    model, rows = tiny("qwen2"), [([5, 6, 7], [8, 9, 10, 11])]
    whole = replay(model, rows, SKETCH, pad_token_id=0).plain[0]
    parts = [
        replay(model, rows, SKETCH, pad_token_id=0, token_mask=[[i == j for i in range(4)]]).plain[
            0
        ]
        for j in range(4)
    ]
    np.testing.assert_allclose(np.mean(parts, 0), whole, atol=1e-5 * np.abs(whole).max())


def test_replay_uses_the_temperature() -> None:
    model, rows = tiny("llama"), some_rows(2)
    hot = replay(model, rows, SKETCH, pad_token_id=0, temperature=2.0)
    cold = replay(model, rows, SKETCH, pad_token_id=0, temperature=1.0)
    assert not np.allclose(hot.fluency, cold.fluency)
    assert not np.allclose(hot.plain, cold.plain)


def _layout(model):  # type: ignore[no-untyped-def]
    from behaviortrace.capture.layout import Layout

    return Layout(model)


def test_errors_name_the_row_as_it_was_given() -> None:
    model = tiny("llama")
    rows = [([5, 6, 7], [8, 9, 10, 11]), ([5], [])]
    with pytest.raises(BehaviorTraceError, match="row 1 has an empty completion"):
        replay(model, rows, SKETCH, pad_token_id=0)
    masks = [[True] * 4, [False] * 2]
    with pytest.raises(BehaviorTraceError, match="row 1 has 0 of 2"):
        replay(model, [rows[0], ([5], [6, 7])], SKETCH, pad_token_id=0, token_mask=masks)


@pytest.mark.real_model
def test_a_real_model_is_sketched_exactly() -> None:
    if not smollm2_dir().is_dir():
        pytest.skip("SmolLM2 was not pulled")
    model, tokenizer = load_policy("smollm2")
    rows = [
        (tokenizer(prompt)["input_ids"], tokenizer(reply)["input_ids"])
        for prompt, reply in [("What is a QZXBT?", "A QZXBT is kept at home."), ("Why?", "So.")]
    ]
    sketch = CountSketch()
    done = replay(model, rows, sketch, pad_token_id=tokenizer.pad_token_id)
    parameters = list(model.parameters())
    for row, found, norm in zip(rows, done.plain, done.norms, strict=True):
        exact = row_gradient(model, *row)
        parts = exact.split([p.numel() for p in parameters])
        wanted = sketch.sketch([x.view(p.shape) for x, p in zip(parts, parameters, strict=True)])
        assert relative(torch.from_numpy(found), wanted) < 1e-4
        assert norm == pytest.approx(float(exact.double().norm()), rel=1e-4)
