"""Capture inside a real, stock GRPOTrainer against plain autograd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trl import GRPOTrainer

import behaviortrace.capture.tracer as tracer_module
from behaviortrace.capture import CountSketch, Tracer
from behaviortrace.capture.sinks import ExactSink
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import Run
from tests.trainers import grpo

SKETCH = CountSketch(1024, seed=1)


class BothSink(tracer_module.SketchSink):
    """Sketches, and keeps whole rows beside."""

    def __init__(self, sketch: CountSketch) -> None:
        super().__init__(sketch)
        self.exact: ExactSink | None = None

    def _begin(self, on: torch.device) -> None:
        super()._begin(on)
        assert self.exact is not None
        self.exact.begin(self.rows, on)

    def _take(self, slot: Any, flat: torch.Tensor, start: int) -> None:
        super()._take(slot, flat, start)
        self.exact._take(slot, flat, start)

    def _take_positions(self, slot: Any, ids: torch.Tensor, gradients: torch.Tensor) -> None:
        super()._take_positions(slot, ids, gradients)
        self.exact._take_positions(slot, ids, gradients)


class Watched:
    """Runs a traced trainer; after each micro-batch compares rows with plain autograd."""

    def __init__(self, trainer: GRPOTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trainer = trainer
        self.worst_sum = self.worst_row = self.worst_sketch = self.worst_norm = 0.0
        self.checked = self.plain = 0
        self.monkeypatch = monkeypatch

    def run(self, folder: Path, **options: Any) -> Watched:
        sinks: list[BothSink] = []

        def make(sketch: CountSketch) -> BothSink:
            sinks.append(BothSink(sketch))
            return sinks[-1]

        self.monkeypatch.setattr(tracer_module, "SketchSink", make)
        original = tracer_module._Recorder._note_rows
        watched = self

        def note(recorder: Any) -> None:
            watched.compare(recorder, recorder.sink.exact)
            original(recorder)

        def begin(recorder: Any, *args: Any) -> None:
            watched_init(recorder, *args)
            recorder.sink.exact = ExactSink(recorder.engine.layout)

        watched_init = tracer_module._Recorder.__init__
        self.monkeypatch.setattr(tracer_module._Recorder, "__init__", begin)
        self.monkeypatch.setattr(tracer_module._Recorder, "_note_rows", note)
        kept = self.trainer._compute_loss
        self.compute = kept
        tracer = Tracer(folder, SKETCH, **options)
        with tracer.attach(self.trainer):
            inner = self.trainer._compute_loss

            def compute(model: Any, inputs: Any) -> Any:
                self.inputs = dict(inputs)
                self.before = self.gradients()
                return inner(model, inputs)

            self.trainer._compute_loss = compute
            self.trainer.train()
            self.trainer._compute_loss = inner
        self.run_dir = Run.open(folder)
        return self

    def parameters(self) -> list[torch.nn.Parameter]:
        return [p for p in self.trainer.model.parameters() if p.requires_grad]

    def gradients(self) -> torch.Tensor:
        return torch.cat(
            [
                (torch.zeros_like(p) if p.grad is None else p.grad.clone()).reshape(-1)
                for p in self.parameters()
            ]
        )

    def autograd(self, advantages: torch.Tensor) -> torch.Tensor:
        """The stock trainer's own gradient of this micro-batch with other advantages."""
        armed, self.recorder.engine.armed = self.recorder.engine.armed, False
        metrics = {k: {n: list(v) for n, v in m.items()} for k, m in self.trainer._metrics.items()}
        loss = self.compute(self.trainer.model, {**self.inputs, "advantages": advantages})
        grads = torch.autograd.grad(loss, self.parameters(), allow_unused=True)
        self.recorder.engine.armed = armed
        for mode, values in metrics.items():
            self.trainer._metrics[mode].clear()
            self.trainer._metrics[mode].update(values)
        return torch.cat(
            [
                (torch.zeros_like(p) if g is None else g).reshape(-1)
                for p, g in zip(self.parameters(), grads, strict=True)
            ]
        )

    def compare(self, recorder: Any, exact: ExactSink) -> None:
        self.recorder = recorder
        weight = recorder.sink.weight
        rows = exact.gradients() * weight[:, None]
        advantages = self.inputs["advantages"]
        added = self.gradients() - self.before
        whole = self.autograd(advantages)
        scale = whole.norm()
        if scale > 0:
            start = 0
            for p in self.parameters():
                part = slice(start, start + p.numel())
                start += p.numel()
                floor = max(float(added[part].norm()), 1e-3 * float(scale))
                off = float((rows[:, part].sum(0) - added[part]).norm()) / floor
                self.worst_sum = max(self.worst_sum, off)
                off = float((whole[part] - added[part]).norm()) / floor
                self.worst_sum = max(self.worst_sum, off)
            for i in range(len(rows)):
                alone = torch.zeros_like(advantages)
                alone[i] = advantages[i]
                wanted = self.autograd(alone)
                off = float((rows[i] - wanted).norm() / scale)
                self.worst_row = max(self.worst_row, off)
        seen = recorder.sink.sketches()
        for i, row in enumerate(exact.gradients()):
            parts = [
                x.view(p.shape)
                for x, p in zip(
                    row.split([p.numel() for p in self.parameters()]),
                    self.parameters(),
                    strict=True,
                )
            ]
            wanted_sketch = SKETCH.sketch(parts)
            size = wanted_sketch.norm().clamp(min=1e-12)
            off = float((torch.from_numpy(seen[i]) - wanted_sketch).norm() / size)
            self.worst_sketch = max(self.worst_sketch, off)
            norm = float(recorder.sink.squares[i].clamp(min=0).sqrt())
            true = float(row.norm())
            self.worst_norm = max(self.worst_norm, abs(norm - true) / max(true, 1e-12))
        self.checked += 1


@pytest.mark.parametrize("architecture", ["llama", "llama-untied", "qwen2", "gpt2"])
def test_rows_in_the_real_trainer(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(grpo(tmp_path / "out", architecture, loss_type="grpo"), monkeypatch)
    watched.run(tmp_path / "run")
    assert watched.checked == 4
    assert watched.worst_sum < 1e-5
    assert watched.worst_row < 1e-5
    assert watched.worst_sketch < 1e-5
    assert watched.worst_norm < 1e-5
    frame = watched.run_dir.rollouts()
    assert frame["update_weight"].null_count() == 0
    assert frame["missed_energy"].drop_nulls().max() < 1e-8


@pytest.mark.parametrize("loss", ["dapo", "bnpo", "dr_grpo", "cispo", "sapo"])
def test_every_loss(loss: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(grpo(tmp_path / "out", loss_type=loss), monkeypatch).run(tmp_path / "run")
    assert max(watched.worst_sum, watched.worst_row, watched.worst_sketch) < 1e-5
    assert watched.run_dir.rollouts()["update_weight"].null_count() == 0


def test_a_loss_without_row_weights_gives_update_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = grpo(tmp_path / "out", top_entropy_quantile=0.5)
    watched = Watched(trainer, monkeypatch).run(tmp_path / "run")
    assert watched.worst_sum < 1e-5
    frame = watched.run_dir.rollouts()
    assert frame["update_weight"].null_count() > 0
    assert frame["missed_energy"].drop_nulls().max() < 1e-8
    assert np.isfinite(watched.run_dir.sketches("update")).all()


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


def test_attaching_changes_nothing(tmp_path: Path) -> None:
    plain = grpo(tmp_path / "a", max_steps=5, logging_strategy="steps", logging_steps=1)
    plain.train()
    traced = grpo(tmp_path / "b", max_steps=5, logging_strategy="steps", logging_steps=1)
    forwards = {n: m.__dict__.get("forward") for n, m in traced.model.named_modules()}
    with Tracer(tmp_path / "run", SKETCH).attach(traced):
        traced.train()
    for a, b in zip(plain.model.parameters(), traced.model.parameters(), strict=True):
        assert float((a - b).abs().max()) <= 1e-6
    losses = [[e["loss"] for e in t.state.log_history if "loss" in e] for t in (plain, traced)]
    np.testing.assert_allclose(losses[0], losses[1], atol=1e-6)
    for name, module in traced.model.named_modules():
        assert module.__dict__.get("forward") is forwards[name]
    assert set(vars(traced)) <= set(vars(plain))
    for name in ("_compute_loss", "training_step", "_calculate_rewards"):
        assert name not in vars(traced)


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


class Odd(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.gain


def test_an_uncovered_parameter_is_refused_by_name(tmp_path: Path) -> None:
    trainer = grpo(tmp_path / "out")
    trainer.model.model.odd = Odd()
    with (
        pytest.raises(BehaviorTraceError, match=r"model\.odd\.gain"),
        Tracer(tmp_path / "run").attach(trainer),
    ):
        pass
    assert not (tmp_path / "run").exists()


def test_a_missing_seam_is_refused_by_name(tmp_path: Path) -> None:
    class Other:
        pass

    with (
        pytest.raises(BehaviorTraceError, match="_generate_and_score_completions"),
        Tracer(tmp_path / "run").attach(Other()),
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
