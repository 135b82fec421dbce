"""Capture inside a real, stock trainer: what is recorded, what is refused, what is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from behaviortrace.capture import CountSketch, Tracer
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import Run
from tests.trainers import grpo, sft
from tests.watched import SKETCH, Watched


@pytest.mark.parametrize("architecture", ["llama", "llama-untied", "qwen2", "gpt2"])
def test_rows_in_the_real_trainer(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = grpo(tmp_path / "out", architecture, loss_type="grpo")
    watched = Watched(trainer, monkeypatch, alone=True).run(tmp_path / "run")
    assert watched.checked == 4
    watched.exact(1e-5)
    frame = watched.run_dir.rollouts()
    assert frame["prompt_ids"].list.len().n_unique() > 1
    assert frame["update_weight"].null_count() == 0
    assert frame["missed_energy"].drop_nulls().max() < 1e-8
    assert watched.run_dir.verify() == []


def test_the_step_sketch_is_the_sum_of_its_rows(tmp_path: Path) -> None:
    trainer, seen = grpo(tmp_path / "out", max_grad_norm=1e9), []
    inner = trainer._get_grad_norm

    def look(model: Any, grad_norm: Any = None) -> Any:
        seen.append(SKETCH.sketch([p.grad for p in model.parameters()]).numpy())
        return inner(model, grad_norm=grad_norm)

    trainer._get_grad_norm = look
    with Tracer(tmp_path / "run", SKETCH).attach(trainer):
        trainer.train()
    run = Run.open(tmp_path / "run")
    frame, sketches = run.rollouts(), run.sketches("update")
    assert frame.height == 16 and len(seen) == 2
    for step, whole in enumerate(seen):
        rows = sketches[frame["step"].to_numpy() == step]
        assert len(rows) == 8
        np.testing.assert_allclose(rows.sum(0), whole, atol=1e-5 * np.abs(whole).max())
    norms = np.linalg.norm(sketches, axis=1)
    used = frame["grad_norm"].to_numpy() > 0
    np.testing.assert_allclose(norms[used], frame["grad_norm"].to_numpy()[used], rtol=0.25)


def test_factored_capture_in_the_real_trainer(tmp_path: Path) -> None:
    """The hash that forms no gradient: the same update, and rows that account for all of it."""
    parameters, losses = [], []
    for name, sketch in (("block", SKETCH), ("kronecker", CountSketch(8192, hash="kronecker"))):
        trainer = grpo(tmp_path / name)
        with Tracer(tmp_path / f"run-{name}", sketch).attach(trainer):
            trainer.train()
        parameters.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    torch.testing.assert_close(parameters[0], parameters[1], atol=1e-6, rtol=0)
    run = Run.open(tmp_path / "run-kronecker")
    frame = run.rollouts()
    assert run.manifest.sketch["hash"] == "kronecker"
    assert frame["missed_energy"].drop_nulls().max() < 1e-8
    norms = np.linalg.norm(run.sketches("update"), axis=1)
    np.testing.assert_allclose(norms, frame["grad_norm"], rtol=1e-4)


def test_attaching_changes_nothing(tmp_path: Path) -> None:
    plain = grpo(tmp_path / "a", max_steps=5, logging_strategy="steps", logging_steps=1)
    plain.train()
    traced = grpo(tmp_path / "b", max_steps=5, logging_strategy="steps", logging_steps=1)
    forwards = {n: m.__dict__.get("forward") for n, m in traced.model.named_modules()}
    with Tracer(tmp_path / "run", SKETCH).attach(traced):
        traced.train()
    for a, b in zip(plain.model.parameters(), traced.model.parameters(), strict=True):
        assert float((a - b).detach().abs().max()) <= 1e-6
    losses = [[e["loss"] for e in t.state.log_history if "loss" in e] for t in (plain, traced)]
    np.testing.assert_allclose(losses[0], losses[1], atol=1e-6)
    for name, module in traced.model.named_modules():
        assert module.__dict__.get("forward") is forwards[name]
    assert set(vars(traced)) <= set(vars(plain))
    for name in ("_compute_loss", "training_step", "_calculate_rewards"):
        assert name not in vars(traced)


def test_a_trainer_can_be_traced_again(tmp_path: Path) -> None:
    """Accelerate leaves a wrapper on the forward of a model that trained in mixed precision."""
    trainer = grpo(tmp_path / "out", bf16=True, max_steps=1)
    for name in ("first", "second"):
        with Tracer(tmp_path / name, SKETCH).attach(trainer):
            trainer.train()
        assert Run.open(tmp_path / name).rollouts().height == 8


def test_rows_hold_what_was_sampled(tmp_path: Path) -> None:
    trainer = grpo(tmp_path / "out")
    with Tracer(tmp_path / "run", SKETCH).attach(trainer):
        trainer.train()
    frame = Run.open(tmp_path / "run").rollouts()
    assert frame["index"].to_list() == list(range(8)) * 2
    for _, group in frame.group_by("group"):
        assert group.height == 4 and group["prompt"].n_unique() == 1
        reward = group["reward"].to_numpy()
        advantage = (reward - reward.mean()) / (reward.std(ddof=1) + 1e-4)
        np.testing.assert_allclose(group["advantage"].to_numpy(), advantage, atol=1e-4)
    for row in frame.iter_rows(named=True):
        assert len(row["completion_ids"]) == row["n_tokens"] <= 6
        assert row["completion"] == trainer.processing_class.decode(
            row["completion_ids"], skip_special_tokens=True
        )
        assert row["prompt"].split() == [f"w{i}" for i in row["prompt_ids"]]
        assert row["fluency"] < 0


def test_second_moments_are_recorded_every_step(tmp_path: Path) -> None:
    trainer = grpo(tmp_path / "out")
    with Tracer(tmp_path / "run", SKETCH).attach(trainer):
        trainer.train()
    run = Run.open(tmp_path / "run")
    frame = run.read("optimizer")
    names = [n for n, _ in trainer.model.named_parameters()]
    assert frame["parameter"].to_list() == names * 2
    assert frame["step"].to_list() == [0] * len(names) + [1] * len(names)
    assert (frame["updates"] == frame["step"] + 1).all()
    state = trainer.optimizer.optimizer.state
    wanted = [float(state[p]["exp_avg_sq"].mean()) for p in trainer.model.parameters()]
    np.testing.assert_allclose(frame["second_moment"].to_list()[len(names) :], wanted, rtol=1e-6)
    assert frame["beta2"].unique().to_list() == [0.999]
    assert 0 < run.rollouts()["clip_scale"].min() <= 1
    assert run.verify() == []


def test_an_optimizer_without_second_moments_leaves_none(tmp_path: Path) -> None:
    trainer = grpo(tmp_path / "out", optim="sgd", max_steps=1)
    with Tracer(tmp_path / "run", SKETCH).attach(trainer):
        trainer.train()
    run = Run.open(tmp_path / "run")
    assert run.verify() == [] and "optimizer" not in run.manifest.counts


class Odd(torch.nn.Module):
    """A norm with a weight that only running it again covers."""

    def __init__(self, norm: torch.nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.gain = torch.nn.Parameter(torch.eye(16) + 0.1 * torch.randn(16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) @ self.gain


def test_an_uncovered_parameter_is_refused_by_name(tmp_path: Path) -> None:
    trainer = grpo(tmp_path / "out")
    gate = trainer.model.model.layers[1].mlp.gate_proj
    gate.spare = torch.nn.ParameterList([torch.ones(3)])  # in a module that does not know of it
    with (
        pytest.raises(BehaviorTraceError, match=r"layers\.1\.mlp\.gate_proj\.spare\.0"),
        Tracer(tmp_path / "run").attach(trainer),
    ):
        pass
    assert not (tmp_path / "run").exists()


def test_an_uncovered_parameter_still_trains_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = grpo(tmp_path / "out", gradient_accumulation_steps=1)
    trainer.model.model.norm = Odd(trainer.model.model.norm)
    watched = Watched(trainer, monkeypatch)
    watched.run(tmp_path / "run", allow_uncovered=["model.norm.gain"])
    assert watched.change < 1e-5 and watched.sketches < 1e-5
    frame, note = watched.run_dir.rollouts(), watched.run_dir.manifest.notes["capture"]
    assert note["uncovered"] == ["model.norm.gain"]
    assert "model.norm.gain" in note["update_only"]["reason"]
    assert frame["update_weight"].null_count() == frame.height
    assert frame["missed_energy"].min() > 1e-4


def test_a_missing_seam_is_refused_by_name(tmp_path: Path) -> None:
    class Other:
        pass

    with (
        pytest.raises(BehaviorTraceError, match="_generate_and_score_completions"),
        Tracer(tmp_path / "run").attach(Other()),
    ):
        pass


@pytest.mark.parametrize(
    "setting", ["use_liger_kernel", "torch_compile", "fp16", "n_gpu", "fsdp", "tensor parallel"]
)
def test_settings_that_hide_the_rows_are_refused(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = grpo(tmp_path / "out")
    accelerator = trainer.accelerator
    if setting == "fp16":
        monkeypatch.setattr(accelerator, "scaler", object(), raising=False)
    elif setting == "fsdp":
        setting = "FSDP"
        monkeypatch.setattr(trainer, "is_fsdp_enabled", True)
    elif setting == "tensor parallel":
        setting = "does not average whole gradients"
        monkeypatch.setattr(type(accelerator), "num_processes", 2)
    elif setting == "n_gpu":
        setting = "DataParallel"
        monkeypatch.setattr(trainer.args, "_n_gpu", 2)
    else:
        monkeypatch.setattr(trainer.args, setting, True)
    with (
        pytest.raises(BehaviorTraceError, match=setting),
        Tracer(tmp_path / "run").attach(trainer),
    ):
        pass
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("setting", ["packing", "padding_free", "label_smoothing", "loss_func"])
def test_supervised_settings_that_mix_examples_are_refused(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = sft(tmp_path / "out")
    if setting == "packing":
        monkeypatch.setattr(trainer.args, "packing", True)
    elif setting == "padding_free":
        monkeypatch.setattr(trainer, "padding_free", True)
    elif setting == "label_smoothing":
        monkeypatch.setattr(trainer, "label_smoother", object())
    else:
        monkeypatch.setattr(trainer, "compute_loss_func", lambda *a, **k: None)
    with (
        pytest.raises(BehaviorTraceError, match=setting),
        Tracer(tmp_path / "run").attach(trainer),
    ):
        pass


def test_a_changed_head_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import behaviortrace.capture.head as head

    original = head._LogitGradient.__call__
    monkeypatch.setattr(head._LogitGradient, "__call__", lambda *a, **k: 1.1 * original(*a, **k))
    with (
        pytest.raises(BehaviorTraceError, match="fused LM head"),
        Tracer(tmp_path / "run").attach(grpo(tmp_path / "out")),
    ):
        pass


def test_a_module_that_mixes_rows_is_refused_before_any_step(tmp_path: Path) -> None:
    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mixer = torch.nn.Linear(16, 24, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.mixer(x.reshape(-1, 16)).view(*x.shape[:-1], 24)

    trainer = grpo(tmp_path / "out")
    trainer.model.model.layers[0].mlp.gate_proj = Flat()
    before = [p.detach().clone() for p in trainer.model.parameters()]
    with (
        pytest.raises(BehaviorTraceError, match=r"gate_proj\.mixer.*rows"),
        Tracer(tmp_path / "run", SKETCH).attach(trainer),
    ):
        trainer.train()
    assert trainer.state.global_step == 0
    assert all(map(torch.equal, before, trainer.model.parameters()))
