from __future__ import annotations

import pytest
import torch

from behaviortrace.train.decoding import quick_decoding
from tests.models import VOCABULARY, tiny


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gpt2"])
def test_logits_agree_and_the_model_is_left_as_it_was(architecture: str) -> None:
    model = tiny(architecture).eval()
    ids = torch.randint(1, VOCABULARY, (3, 5), generator=torch.Generator().manual_seed(0))
    before = {name: dict(m.__dict__) for name, m in model.named_modules()}
    with torch.no_grad():
        wanted = model(input_ids=ids).logits
        with quick_decoding(model):
            found = model(input_ids=ids).logits
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    for name, module in model.named_modules():
        assert module.__dict__.keys() == before[name].keys()


def test_only_few_rows_without_gradient_go_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, calls = torch.nn.Linear(8, 6), []
    inner = torch.mm
    monkeypatch.setattr(torch, "mm", lambda *a: calls.append(1) or inner(*a))
    x = torch.randn(2, 3, 8)
    with quick_decoding(layer):
        recorded = layer(x)
        assert not calls and recorded.requires_grad
        with torch.no_grad():
            torch.testing.assert_close(layer(x), recorded)
            assert len(calls) == 1
            layer(torch.randn(65, 8))
            assert len(calls) == 1
            assert layer(torch.randn(0, 8)).shape == (0, 6)


def test_a_forward_of_ones_own_is_kept() -> None:
    layer = torch.nn.Linear(4, 4)
    own = layer.forward = lambda x: x + 1  # type: ignore[method-assign, misc]  # a user's own forward
    with quick_decoding(layer):
        pass
    assert layer.forward is own
