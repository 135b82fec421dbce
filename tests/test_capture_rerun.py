"""Parameters that no rule covers: exact against autograd in the real trainer, or refused by name.

A module is run again for them. Refusals come at the first micro-batch, before any weight moves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Lfm2Config, Lfm2ForCausalLM

from behaviortrace.capture import Tracer
from behaviortrace.capture.coverage import cover
from behaviortrace.capture.layout import Layout
from behaviortrace.capture.rerun import RerunTap
from behaviortrace.errors import BehaviorTraceError
from tests.models import ARCHITECTURES, VOCABULARY, tiny
from tests.odd_modules import REFUSED, SEPARABLE, BatchNormed
from tests.trainers import VARIED, grpo, lora
from tests.watched import SKETCH, Watched

TIGHT = 2e-6  # fp32: a few rounding errors

SETTINGS = {
    "plain": {},
    "reentrant": {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    },
    "not reentrant": {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
    },
    "one row a micro-batch": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4},
    "shares of the update": {"top_entropy_quantile": 0.5},
}


def odd(build: Any, **settings: Any) -> Any:
    """A trainer whose model has one of the odd modules in every layer."""
    model = tiny("llama")
    torch.manual_seed(3)
    for layer in model.model.layers:
        layer.mlp = build(layer.mlp)
    return grpo(settings.pop("folder"), model=model, **{**VARIED, **settings})


def run(trainer: Any, folder: Path, patch: pytest.MonkeyPatch, **options: Any) -> Watched:
    return Watched(trainer, patch, **options).run(folder)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_ordinary_models_are_never_run_again(architecture: str) -> None:
    model = tiny(architecture)
    found = cover(model, Layout(model))
    assert found.taps and not found.rerun and not found.uncovered
    assert not any(isinstance(tap, RerunTap) for tap in found.taps)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", SEPARABLE)
def test_rows_of_any_separable_module_are_exact(
    name: str, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = odd(SEPARABLE[name], folder=tmp_path / "out", **SETTINGS[setting])
    # The loss "alone" is another one where entropies of other rows choose the tokens.
    watched = run(trainer, tmp_path / "run", monkeypatch, alone=setting != "shares of the update")
    found = {n: getattr(watched, n) for n in ("sums", "change", "rows", "alone", "sketches")}
    assert max(found.values()) < TIGHT, found
    assert (watched.norms < TIGHT) == (name != "shared in different ways")
    reruns = [tap for tap in watched.engine._rules if isinstance(tap, RerunTap)]
    assert len(reruns) == (4 if name == "shared in different ways" else 2)
    assert watched.run_dir.rollouts()["missed_energy"].max() < 1e-10
    # The MLP inside keeps the rules of its own modules.
    assert sum(tap.name.endswith("up_proj") for tap in watched.engine._rules) == 2


@pytest.mark.parametrize("name", SEPARABLE)
def test_mixed_precision(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = run(
        odd(SEPARABLE[name], folder=tmp_path / "out", bf16=True), tmp_path / "run", monkeypatch
    )
    assert watched.sums < TIGHT and watched.sketches < TIGHT
    assert watched.rows < 2e-2 and watched.change < 5e-2


@pytest.mark.parametrize("name", REFUSED)
def test_rows_that_are_not_apart_are_refused_before_any_step(name: str, tmp_path: Path) -> None:
    build, said = REFUSED[name]
    trainer = odd(build, folder=tmp_path / "out")
    before = [p.detach().clone() for p in trainer.model.parameters()]
    with (
        pytest.raises(BehaviorTraceError, match=said),
        Tracer(tmp_path / "run", SKETCH).attach(trainer),
    ):
        trainer.train()
    assert trainer.state.global_step == 0
    assert all(map(torch.equal, before, trainer.model.parameters()))


def test_a_frozen_batch_norm_is_refused_too(tmp_path: Path) -> None:
    trainer = odd(BatchNormed, folder=tmp_path / "out")
    for layer in trainer.model.model.layers:
        layer.mlp.norm.requires_grad_(False)
    with (
        pytest.raises(BehaviorTraceError, match="mixes the rows"),
        Tracer(tmp_path / "run", SKETCH).attach(trainer),
    ):
        trainer.train()
    assert trainer.state.global_step == 0


def test_a_batch_norm_in_eval_mode_is_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = odd(BatchNormed, folder=tmp_path / "out")
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.eval()
            module.train = lambda mode=True, module=module: module  # type: ignore[method-assign]
    watched = run(trainer, tmp_path / "run", monkeypatch, alone=True)
    watched.exact(TIGHT)


def test_dropout_of_adapters_is_the_forwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = lora(use_dora=True, lora_dropout=0.3)
    watched = run(
        grpo(tmp_path / "out", peft_config=config, **VARIED), tmp_path / "run", monkeypatch
    )
    watched.exact(TIGHT)


def test_a_refused_parameter_may_be_left_out_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, _ = REFUSED["parameter used beside"]
    trainer = odd(build, folder=tmp_path / "out", gradient_accumulation_steps=1)
    names = [f"model.layers.{i}.mlp.scale.factor" for i in range(2)]
    watched = Watched(trainer, monkeypatch).run(tmp_path / "run", allow_uncovered=names)
    assert watched.change < 1e-5
    assert watched.run_dir.manifest.notes["capture"]["uncovered"] == names


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_short_convolutions_of_lfm2_are_exact(
    checkpointing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its convolution never runs as a module: the block around it takes the weight."""
    torch.manual_seed(0)
    config = Lfm2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention"],
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = Lfm2ForCausalLM(config).float().eval()
    settings = {**VARIED, "gradient_checkpointing": checkpointing}
    trainer = grpo(tmp_path / "out", model=model, **settings)
    watched = run(trainer, tmp_path / "run", monkeypatch, alone=True)
    assert max(watched.sums, watched.change, watched.rows, watched.alone) < TIGHT
    assert watched.norms < 1e-5  # the embedding's two uses cancel in part here
    reruns = [tap.name for tap in watched.engine._rules if isinstance(tap, RerunTap)]
    assert reruns == ["model.layers.0.conv"]
