"""PEFT's adapters in the real trainer: exact against autograd, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch

from behaviortrace.capture import Tracer
from behaviortrace.errors import BehaviorTraceError
from tests.trainers import VARIED, grpo, lora
from tests.watched import SKETCH, Watched

SUMS, ROWS, CHANGE = 1e-6, 2e-6, 5e-6  # fp32; the last is between two roundings of one gradient

TWO: dict[str, Any] = {"target_modules": ["q_proj", "down_proj"]}
SQUARE: dict[str, Any] = {"target_modules": ["q_proj", "o_proj"]}
VIRTUAL: dict[str, Any] = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 3}

EXACT: dict[str, tuple[str, dict[str, Any]]] = {
    "LoRA with biases": ("Lora", {**TWO, "r": 4, "lora_bias": True}),
    "LoRA with dropout": ("Lora", {**TWO, "r": 4, "lora_dropout": 0.3}),
    "LoRA of the embedding": ("Lora", {"r": 4, "target_modules": ["q_proj", "embed_tokens"]}),
    "DoRA": ("Lora", {**TWO, "r": 4, "use_dora": True}),
    "DoRA of every linear": ("Lora", {"target_modules": "all-linear", "use_dora": True}),
    "DoRA with dropout": ("Lora", {**TWO, "r": 4, "use_dora": True, "lora_dropout": 0.3}),
    "DoRA of the embedding": ("Lora", {"target_modules": ["embed_tokens"], "use_dora": True}),
    "IA3": ("IA3", {"target_modules": ["k_proj", "v_proj"], "feedforward_modules": []}),
    "IA3 in feedforward": ("IA3", {**TWO, "feedforward_modules": ["down_proj"]}),
    "AdaLoRA": ("AdaLora", {**TWO, "total_step": 10, "init_r": 4, "target_r": 2}),
    "VeRA": ("Vera", {**SQUARE, "r": 4}),
    "VeRA with dropout": ("Vera", {**SQUARE, "r": 4, "vera_dropout": 0.3}),
    "PVeRA": ("Pvera", {**SQUARE, "r": 4}),
    "LoHa": ("LoHa", {**TWO, "r": 4}),
    "LoKr": ("LoKr", {**TWO, "r": 4}),
    "OFT": ("OFT", {**TWO, "oft_block_size": 4}),
    "OFT with a shared block": ("OFT", {**TWO, "oft_block_size": 4, "block_share": True}),
    "BOFT": ("BOFT", {**TWO, "boft_block_size": 4}),
    "HRA": ("HRA", {**TWO, "r": 4}),
    "FourierFT": ("FourierFT", {**TWO, "n_frequency": 20}),
    "RandLora": ("RandLora", {**TWO, "r": 4}),
    "MiSS": ("Miss", {**TWO, "r": 4}),
    "VB-LoRA": ("VBLoRA", {**TWO, "r": 4, "num_vectors": 16, "vector_length": 8}),
    "LN tuning": ("LNTuning", {"target_modules": ["input_layernorm", "norm"]}),
    "C3A": ("C3A", {**TWO, "block_size": 8}),
    "RoAd": ("Road", {**TWO, "group_size": 4}),
    "SHiRA": ("Shira", {**TWO, "r": 2}),
    "trainable tokens": ("TrainableTokens", {"token_indices": [5, 6, 7]}),
    "prompt tuning": ("PromptTuning", VIRTUAL),
    "P-tuning": ("PromptEncoder", {**VIRTUAL, "encoder_hidden_size": 8}),
    "prefix tuning": ("PrefixTuning", VIRTUAL),
    "prefix tuning with a projection": (
        "PrefixTuning",
        {**VIRTUAL, "prefix_projection": True, "encoder_hidden_size": 8},
    ),
}
SHARED = {"VB-LoRA"}  # one vector bank for all modules: its norms are those of the sketches

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "constrained OFT": ("OFT", {**TWO, "oft_block_size": 4, "coft": True}, r"oft_R.*in place"),
    "orthogonal subspaces": ("OSF", TWO, r"osf_svd_params.*a hook changes its gradient"),
    "LoRA of a bare parameter": (
        "Lora",
        {"target_modules": [], "target_parameters": ["q_proj.weight"]},
        r"lora_A\.default\.weight' is no row's: the parameter is used outside the module",
    ),
    "activated LoRA": ("Lora", {**TWO, "alora_invocation_tokens": [4]}, r"lora_A.*\(0, 16\)"),
    "Lily": ("Lily", {**TWO, "r": 4}, r"lily_B.*is no row's"),
}


def adapted(kind: str, settings: dict[str, Any], folder: Path, **options: Any) -> Any:
    """A trainer of an adapter whose parameters are all away from their initial values."""
    untied = kind == "TrainableTokens"  # a tied head would be an adapter too, which TRL refuses
    config = getattr(peft, f"{kind}Config")(**settings)
    architecture = "llama-untied" if untied else "llama"
    trainer = grpo(folder, architecture, peft_config=config, **{**VARIED, **options})
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return trainer


@pytest.mark.parametrize("name", EXACT)
def test_rows_of_adapters_are_exact(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = adapted(*EXACT[name], tmp_path / "out")
    watched = Watched(trainer, monkeypatch, alone=True).run(tmp_path / "run")
    assert watched.checked == 4 and watched.sums < SUMS and watched.sketches < SUMS
    assert max(watched.rows, watched.alone) < ROWS and watched.change < CHANGE
    assert (watched.norms < SUMS) == (name not in SHARED)
    run = watched.run_dir
    assert run.rollouts()["missed_energy"].max() < 1e-10
    assert run.rollouts()["update_weight"].null_count() == 0
    assert run.manifest.notes["capture"]["uncovered"] == []


@pytest.mark.parametrize("name", REFUSED)
def test_adapters_that_hide_rows_are_refused_before_any_step(name: str, tmp_path: Path) -> None:
    kind, settings, said = REFUSED[name]
    trainer = adapted(kind, settings, tmp_path / "out")
    before = [p.detach().clone() for p in trainer.model.parameters()]
    with (
        pytest.raises(BehaviorTraceError, match=said),
        Tracer(tmp_path / "run", SKETCH).attach(trainer),
    ):
        trainer.train()
    assert trainer.state.global_step == 0
    own = kind == "OFT"  # whose forward projects its parameters, in generation as well
    assert own or all(map(torch.equal, before, trainer.model.parameters()))


WITH: dict[str, dict[str, Any]] = {
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


@pytest.mark.parametrize("setting", WITH)
@pytest.mark.parametrize("name", ["DoRA with dropout", "IA3 in feedforward", "VeRA with dropout"])
def test_adapters_are_exact_in_every_setting(
    name: str, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = adapted(*EXACT[name], tmp_path / "out", **WITH[setting])
    watched = Watched(trainer, monkeypatch).run(tmp_path / "run")
    assert watched.sums < SUMS and watched.rows < ROWS and watched.change < CHANGE


@pytest.mark.parametrize("name", ["DoRA", "DoRA with dropout", "IA3", "IA3 in feedforward"])
def test_adapters_in_mixed_precision(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = adapted(*EXACT[name], tmp_path / "out", bf16=True)
    watched = Watched(trainer, monkeypatch).run(tmp_path / "run")
    assert watched.sums < SUMS and watched.rows < 2e-2 and watched.change < 5e-2


def test_dora_runs_each_row_alone_with_dropout_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its magnitude layer gets what dropout has left, so it draws nothing and costs one rerun."""
    config = lora(use_dora=True, lora_dropout=0.3)
    watched = Watched(grpo(tmp_path / "out", peft_config=config, **VARIED), monkeypatch)
    import behaviortrace.capture.rerun as rerun

    monkeypatch.setattr(rerun._Trial, "together", lambda self: pytest.fail("ran all rows at once"))
    watched.run(tmp_path / "run")
    taps = [t.name for t in watched.engine._rules]
    assert watched.rows < ROWS and all("lora_magnitude_vector" in name for name in taps)
