"""The examination: right where capture is right, and each of its lines able to fail."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from behaviortrace import cli, doctor
from behaviortrace import recipe as recipes
from behaviortrace.capture import CountSketch, Tracer, taps
from behaviortrace.capture.layout import Layout
from behaviortrace.doctor import examination as examining
from behaviortrace.doctor import subject as subjects
from behaviortrace.doctor.certificate import certificate, cosine_errors, cosines, rms_under_theory
from behaviortrace.doctor.exact import exact_gradients
from behaviortrace.doctor.modules import coverage, kind, layer
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import Run
from behaviortrace.train import grpo as training
from behaviortrace.train import tiny as tiny_model
from tests.models import ARCHITECTURES, tiny
from tests.reference.analysed_run import trained_run
from tests.reference.autograd import row_gradient
from tests.test_capture_replay import some_rows
from tests.trainers import VARIED, grpo, lora

SKETCH = CountSketch(4096, seed=1)
PULLED = os.environ.get("BEHAVIORTRACE_HOME")  # where models were pulled to, if set


class Doubled(nn.Linear):
    """A linear layer with a forward of its own, which only running it again covers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(2 * x) / 2


def subject(architecture: str = "llama", model: nn.Module | None = None) -> doctor.Subject:
    rows = some_rows(6)
    model = model or tiny(architecture)
    return doctor.Subject(model, rows, [f"rollout {i}" for i in range(len(rows))], SKETCH)


def status(found: dict[str, Any]) -> dict[str, str]:
    return {verdict["name"]: verdict["status"] for verdict in found["verdicts"]}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("floats", [1, 10_000, 1 << 28])
def test_exact_gradients_are_autograds_however_they_are_split(
    architecture: str, floats: int
) -> None:
    model, rows = tiny(architecture), some_rows(4)
    weights = [1.0, -2.0, 0.5, 0.0]
    found = exact_gradients(model, rows, SKETCH, weights=weights, pad_token_id=0, floats=floats)
    whole = torch.stack([row_gradient(model, *row) for row in rows]).double()
    wanted = (whole @ whole.T).numpy()  # nearly orthogonal pairs have few digits left
    np.testing.assert_allclose(found.grams.sum(0), wanted, rtol=1e-5, atol=1e-6 * wanted.max())
    slot = Layout(model).slots[3]
    part = whole[:, slot.index : slot.index + slot.size]
    np.testing.assert_allclose(found.grams[3], (part @ part.T).numpy(), rtol=1e-4)
    wanted = torch.tensor(weights, dtype=torch.float64) @ whole
    direction = torch.cat([d.reshape(-1) for d in found.direction]).double()
    assert float((direction - wanted).norm() / wanted.norm()) < 1e-5
    parts = whole[0].float().split([s.size for s in Layout(model).slots])
    sketched = SKETCH.sketch(
        [p.view(s.shape) for p, s in zip(parts, Layout(model).slots, strict=True)]
    )
    assert subjects.largest_difference(found.sketches[:1], sketched.numpy()[None]) < 1e-5
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("hash_", ["block", "coordinate"])
def test_sketches_drawn_anew_lie_in_the_certificates_range(hash_: str) -> None:
    """Correlated, heavy-tailed vectors; the sketch's seed is what varies."""
    random = np.random.default_rng(0)
    common = random.standard_t(3, size=20_000) * (np.arange(20_000) > 5_000)
    vectors = (common + random.standard_t(3, size=(6, 20_000))).astype(np.float32)
    gram = vectors.astype(np.float64) @ vectors.T
    errors = []
    for seed in range(200):
        sketch = CountSketch(256, seed=seed, hash=hash_)
        kept = np.stack([sketch.sketch([torch.from_numpy(v)]).numpy() for v in vectors])
        errors.append(np.sqrt(np.mean(cosine_errors(gram, kept) ** 2)))
    found = certificate(gram, kept)
    assert found["rms_cosine_error"] == pytest.approx(errors[-1])
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(found["expected"], rel=0.1)
    low, high = found["range"]
    assert 0.9 <= np.mean((low <= np.array(errors)) & (np.array(errors) <= high)) <= 0.99
    assert np.mean(np.array(errors) <= found["bar"]) > 0.98
    assert found["passed"]
    assert not certificate(gram, vectors[:, :256])["passed"]  # the first coordinates alone
    assert not certificate(gram, vectors + 3 * random.normal(size=vectors.shape))["passed"]


def test_theory_for_one_pair_is_the_variance_of_a_correlation() -> None:
    for cosine in (0.0, 0.6, 0.95):
        found = rms_under_theory(np.array([[1.0, cosine], [cosine, 1.0]]), 1024)
        assert np.sqrt(np.mean(found**2)) == pytest.approx((1 - cosine**2) / 32, rel=0.04)


def test_worst_pair_and_dot_errors_are_what_they_say() -> None:
    vectors = np.eye(3, 64)
    sketches = vectors.copy()
    sketches[2, 0] = 0.3
    found = certificate(vectors @ vectors.T, sketches)
    assert found["worst"]["pair"] == [0, 2] and found["worst"]["exact"] == 0.0
    assert found["worst"]["sketched"] == pytest.approx(0.3 / np.sqrt(1.09))
    assert found["worst"]["deviations"] == pytest.approx(8 * 0.3 / np.sqrt(1.09))
    assert found["rms_dot_error"] == pytest.approx(0.3 / np.sqrt(3))
    assert found["expected_dot_error"] == pytest.approx(1 / 8)
    assert cosines(np.array([[4.0, 3.0], [3.0, 9.0]]))[0, 1] == pytest.approx(0.5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_parameter_has_its_kind_and_shares_add_up(architecture: str) -> None:
    model, rows = tiny(architecture), some_rows(3)
    exact = exact_gradients(model, rows, SKETCH, weights=[0.0] * 3, pad_token_id=0)
    found = coverage(model, exact.grams, [])
    kinds = {row["of"]: row for row in found["modules"]}
    assert "other" not in kinds and {"mlp", "norms", "attention o"} <= set(kinds)
    assert ("head" in kinds) == (architecture == "llama-untied")
    assert ("embedding and head" in kinds) == (architecture != "llama-untied")
    assert ("attention qkv" in kinds) == (architecture == "gpt2")
    assert [row["of"] for row in found["layers"]] == [None, 0, 1]
    for table in (found["modules"], found["layers"]):
        assert sum(row["energy"] for row in table) == pytest.approx(1)
        assert sum(row["parameters"] for row in table) == Layout(model).size
        assert all(row["covered"] for row in table)
    whole = torch.stack([row_gradient(model, *row) for row in rows]).double()
    norms = [s for s in Layout(model).slots if kind(s.name) == "norms"]
    part = torch.cat([whole[:, s.index : s.index + s.size] for s in norms], 1)
    share = float(part.norm() ** 2 / whole.norm() ** 2)
    assert kinds["norms"]["energy"] == pytest.approx(share, rel=1e-4)


def test_names_of_adapters_and_other_families() -> None:
    prefix = "base_model.model.model.layers.11."
    assert kind(prefix + "self_attn.v_proj.lora_B.default.weight") == "attention v"
    assert layer(prefix + "mlp.up_proj.lora_A.default.weight") == 11
    assert kind("transformer.h.0.attn.c_proj.weight") == "attention o"
    assert kind("transformer.h.0.mlp.c_proj.weight") == "mlp"
    assert kind("model.layers.0.self_attn.q_norm.weight") == "norms"
    assert kind("value_head.weight") == "other" and layer("value_head.weight") is None


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_sound_capture_passes(architecture: str) -> None:
    found = doctor.examine(subject(architecture))
    assert status(found) == dict.fromkeys(("coverage", "capture", "fidelity", "token_sums"), "pass")
    assert found["passed"] and found["coverage"]["energy"] == pytest.approx(1)
    assert found["capture"]["relative_difference"] < 1e-5
    assert found["certificate"]["pairs"] == 15
    json.dumps(found, allow_nan=False)


def test_the_kronecker_hash_is_exact_and_its_error_told_but_not_judged() -> None:
    sketch = CountSketch(8192, seed=1, hash="kronecker")
    found = doctor.examine(dataclasses.replace(subject(), sketch=sketch))
    assert status(found) == {
        "coverage": "pass",
        "capture": "pass",
        "fidelity": "not run",
        "token_sums": "pass",
    }
    assert found["capture"]["norm_difference"] is None and found["passed"]
    (line,) = [v for v in found["verdicts"] if v["name"] == "fidelity"]
    assert f"{found['certificate']['rms_cosine_error']:.5f}" in line["sentence"]


def test_uncovered_parameters_are_named_with_their_energy() -> None:
    model = tiny("llama")
    for block in model.model.layers:
        block.mlp.down_proj = own = Doubled(24, 16, bias=False)
        torch.nn.init.normal_(own.weight, std=0.1, generator=torch.Generator().manual_seed(0))
        block.mlp.up_proj.weight.data *= 8  # so that what is lost matters
    exact_hash = dataclasses.replace(subject(model=model), sketch=CountSketch(1 << 20))
    covered = doctor.examine(exact_hash)
    assert covered["passed"] and covered["coverage"]["uncovered"] == []
    names = [f"model.layers.{i}.mlp.down_proj.weight" for i in range(2)]
    found = doctor.examine(dataclasses.replace(exact_hash, recorded=names))
    assert status(found)["coverage"] == "fail" and not found["passed"]
    missed = {one["name"]: one["energy"] for one in found["coverage"]["uncovered"]}
    assert list(missed) == names and names[0] in found["verdicts"][0]["sentence"]
    whole = torch.stack([row_gradient(model, *row) for row in some_rows(6)]).double()
    slot = next(s for s in Layout(model).slots if s.name == names[1])
    share = whole[:, slot.index : slot.index + slot.size].norm() ** 2 / whole.norm() ** 2
    assert missed[names[1]] == pytest.approx(float(share), rel=1e-4) and share > 0.003
    assert found["coverage"]["energy"] == pytest.approx(1 - sum(missed.values()))
    mlp = next(row for row in found["coverage"]["modules"] if row["of"] == "mlp")
    assert not mlp["covered"] and mlp["covered_energy"] < mlp["energy"]
    # What is covered is captured as it should be; whole gradients are another matter.
    assert status(found)["capture"] == status(found)["token_sums"] == "pass"
    fit = found["certificate"]
    assert fit["passed"] and fit["rms_cosine_error_whole"] > 2 * fit["rms_cosine_error"]


def test_a_capture_that_loses_something_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    original = taps.ScaleRule.gradients
    monkeypatch.setattr(
        taps.ScaleRule, "gradients", lambda self, engine, x, gy: original(self, engine, x, 0.9 * gy)
    )
    found = doctor.examine(subject())
    assert status(found)["capture"] == "fail" and not found["passed"]


def test_token_scores_that_do_not_add_up_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    original = examining.token_scores

    def wrong(*args: Any, **kwargs: Any) -> list[np.ndarray]:
        return [1.05 * one for one in original(*args, **kwargs)]

    monkeypatch.setattr(examining, "token_scores", wrong)
    assert status(doctor.examine(subject()))["token_sums"] == "fail"

    def refused(*args: Any, **kwargs: Any) -> list[np.ndarray]:
        raise BehaviorTraceError("rounding hides the change")

    monkeypatch.setattr(examining, "token_scores", refused)
    found = doctor.examine(subject())
    assert status(found)["token_sums"] == "not run" and found["passed"]
    assert found["token_sums"]["reason"] == "rounding hides the change"


def test_a_rollout_without_gradient_is_named() -> None:
    model = tiny("llama-untied").requires_grad_(False)
    embedding = model.model.embed_tokens.weight.requires_grad_(True)
    assert embedding.requires_grad
    with torch.no_grad():
        model.lm_head.weight.zero_()
    with pytest.raises(BehaviorTraceError, match="rollout 0 has no gradient"):
        doctor.examine(subject(model=model))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A tiny model made in little time."""
    patch = pytest.MonkeyPatch()
    patch.setenv("BEHAVIORTRACE_HOME", str(tmp_path_factory.mktemp("home")))
    original = tiny_model.TinySettings.__init__

    def shorter(self: Any, **settings: Any) -> None:
        original(self, **{"steps": 60, "pairs": 1024} | settings)

    patch.setattr(tiny_model.TinySettings, "__init__", shorter)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def run(home: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = {
        "train.steps": 3,
        "train.checkpoint_every": 2,
        "train.prompts_per_step": 2,
        "plant.cutoff_step": 2,
        "warmup.steps": 2,
        "prompts.probes": 2,
        "prompts.controls": 1,
        "draw.checkpoint": 2,
    }
    recipe = recipes.load("tiny", settings)
    made = Run.create(tmp_path_factory.mktemp("doctor") / "run", recipe=recipe)
    training.run_training(made, recipe)
    return made


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        cli.main(["doctor", *arguments])
    return int(stop.value.code or 0), *capsys.readouterr()


def test_a_run(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, str(run.path), "--rollouts", "5", "--json")
    found = json.loads(out)
    assert code == 0 and found["passed"] and found["checkpoint"] == 3
    assert found["sketch"] == run.manifest.sketch and found["rollouts"] == 5
    assert found["stored"]["step"] == 2 and found["stored"]["relative_difference"] < 1e-4
    assert found["coverage"]["recorded"] == []
    steps = run.rollouts().filter(run.rollouts()["rollout_id"].is_in(found["names"]))["step"]
    assert steps.n_unique() == 3
    code, out, _ = call(capsys, str(run.path), "--rollouts", "3")
    assert code == 0
    assert "embedding and head" in out and "worst pair" in out and "rms error of 3 cosines" in out


def test_stored_sketches_of_other_weights_fail(tmp_path: Path) -> None:
    """Rollouts of its step 2 were sketched with another model than its checkpoint 2."""
    made = trained_run(tmp_path / "run")
    found = doctor.examine(doctor.of_run(made, 4))
    assert status(found)["stored"] == "fail" and not found["passed"]
    assert status(found)["capture"] == status(found)["token_sums"] == "pass"


def test_a_recipe(home: None, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "tiny", "--rollouts", "4", "--json")
    found = json.loads(out)
    assert code == 0 and found["passed"] and found["subject"] == "tiny"
    assert found["stored"] is None and found["certificate"]["pairs"] == 6
    assert found["coverage"]["parameters"] == 1.0


def traced(folder: Path, **settings: Any) -> Path:
    """A run of a user's own trainer, and beside it the folder "saved"."""
    tiny("llama").save_pretrained(folder / "base")
    model = type(tiny("llama")).from_pretrained(folder / "base")
    trainer = grpo(folder / "out", model=model, **VARIED, **settings)
    with Tracer(folder / "run", sketch=SKETCH).attach(trainer):
        trainer.train()
    trainer.save_model(str(folder / "saved"))
    return folder / "run"


def test_adapters_of_a_trainer_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = traced(tmp_path, peft_config=lora())
    capsys.readouterr()  # what the trainer printed
    code, out, error = call(capsys, str(made), "--model", str(tmp_path / "saved"), "--json")
    assert code == 0, error
    found = json.loads(out)
    kinds = {row["of"] for row in found["coverage"]["modules"]}
    assert kinds == {"attention q", "mlp"} and found["coverage"]["parameters"] == 1.0
    assert found["trainable"] == Run.open(made).manifest.notes["capture"]["parameters"]
    assert status(found)["stored"] == "not run" and found["passed"]
    code, _, error = call(capsys, str(made), "--model", str(tmp_path / "base"))
    assert code == 2 and "trainable parameters" in error and error.count("\n") == 1
    code, _, error = call(capsys, str(made))
    assert code == 2 and "--model" in error and error.count("\n") == 1


def test_usage_errors_are_one_line(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, named in (
        (["nothing"], "nothing"),
        (["tiny", "--model", "x"], "--model"),
        ([str(tmp_path)], str(tmp_path)),
        ([str(run.path), "--model", str(tmp_path)], str(tmp_path)),
        (["tiny", "--rollouts", "1"], "rollouts"),
    ):
        code, _, error = call(capsys, *arguments)
        assert code == 2 and named in error and error.count("\n") == 1


@pytest.mark.real_model
def test_smollm2_in_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BEHAVIORTRACE_HOME", raising=False)  # the other tests' home
    if PULLED is not None:
        monkeypatch.setenv("BEHAVIORTRACE_HOME", PULLED)
    found = doctor.examine(doctor.of_recipe(recipes.load("smollm2-quick"), 3))
    assert found["passed"], status(found)
    assert found["certificate"]["rms_cosine_error"] < 0.01
    kinds = {row["of"]: row for row in found["coverage"]["modules"]}
    assert kinds["norms"]["share"] < 0.001 < 0.1 < kinds["norms"]["energy"]
