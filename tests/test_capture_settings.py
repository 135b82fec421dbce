"""Capture is exact under TRL's settings: each row against plain autograd in the real trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import trl.trainer.grpo_trainer as grpo_module
import trl.trainer.utils as trl_utils
from trl import GRPOTrainer

from behaviortrace.capture import Tracer
from behaviortrace.run import Run
from tests.models import tiny
from tests.trainers import EARLY_END, VARIED, grpo, lora, rloo, sft
from tests.watched import SKETCH, Watched

TIGHT = 2e-6  # fp32: a few rounding errors
ROW_BF16, PARAMETER_BF16 = 2e-2, 5e-2  # bfloat16 keeps 8 bits; stock training rounds like that too

SEPARABLE = {
    **{loss: {"loss_type": loss} for loss in ("grpo", "dr_grpo", "dapo", "bnpo", "cispo")},
    **{loss: {"loss_type": loss} for loss in ("sapo", "luspo", "vespo")},
    "sequence importance": {"importance_sampling_level": "sequence", "loss_type": "grpo"},
    "reentrant": {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    },
    "not reentrant": {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
    },
    "TRL's own checkpointing": {"gradient_checkpointing": True},
    "unscaled rewards": {"scale_rewards": "none"},
    "batch-scaled rewards": {"scale_rewards": "batch"},
    "one row a micro-batch": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4},
    "one micro-batch": {"gradient_accumulation_steps": 1},
    "two generations a step": {"steps_per_generation": 1, "gradient_accumulation_steps": 2},
}
"""Losses that are a row weight times the mean log-probability, on fresh samples."""


def watch(trainer: Any, folder: Path, patch: pytest.MonkeyPatch, **options: Any) -> Watched:
    return Watched(trainer, patch, **options).run(folder)


@pytest.mark.parametrize("name", SEPARABLE)
def test_rows_are_exact(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = grpo(tmp_path / "out", **VARIED, **SEPARABLE[name])
    checkpointed: set[bool] = set()
    trainer.model.model.layers[0].mlp.register_forward_hook(
        lambda *_: checkpointed.add(trainer.model.is_gradient_checkpointing)
    )
    watched = watch(trainer, tmp_path / "run", monkeypatch, alone=True)
    watched.exact(TIGHT)
    frame, run = watched.run_dir.rollouts(), watched.run_dir
    assert frame["n_tokens"].n_unique() > 2
    assert frame["update_weight"].null_count() == 0 and frame["use"].max() == 0
    assert "update_only" not in run.manifest.notes["capture"]
    assert frame["missed_energy"].max() < 1e-10 and run.verify() == []
    assert np.isfinite(run.sketches("plain")).all()
    assert (True in checkpointed) == ("gradient_checkpointing" in SEPARABLE[name])


COUPLED = {
    "KL to a reference": ({"beta": 0.1}, "differently"),
    "high-entropy tokens": ({"top_entropy_quantile": 0.5}, "differently"),
    "entropy bonus": ({"entropy_coef": 0.05}, "entropies"),
    "both": ({"top_entropy_quantile": 0.5, "entropy_coef": 0.05}, "entropies"),
}
"""Losses of another form: each row's share of the update is captured."""


@pytest.mark.parametrize("name", COUPLED)
def test_shares_of_coupled_losses_are_exact(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, reason = COUPLED[name]
    watched = watch(grpo(tmp_path / "out", **VARIED, **settings), tmp_path / "run", monkeypatch)
    watched.exact(TIGHT)
    run = watched.run_dir
    frame = run.rollouts()
    assert frame["update_weight"].null_count() > 0
    assert reason in run.manifest.notes["capture"]["update_only"]["reason"]
    assert frame["missed_energy"].max() < 1e-10
    assert np.isfinite(run.sketches()).all()


def test_update_gradients_alone_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = grpo(tmp_path / "out", **VARIED)
    watched = Watched(trainer, monkeypatch, alone=True).run(tmp_path / "run", plain=False)
    watched.exact(TIGHT)
    run = watched.run_dir
    assert run.rollouts()["plain_norm"].null_count() == 16
    assert "plain=False" in run.manifest.notes["capture"]["update_only"]["reason"]


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_every_use_of_a_rollout_is_recorded(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"num_iterations": 2, "max_steps": 4, "importance_sampling_level": level}
    trainer = grpo(tmp_path / "out", **VARIED, **settings)
    watched = watch(trainer, tmp_path / "run", monkeypatch, alone=True)
    watched.exact(TIGHT)
    run = watched.run_dir
    uses, frame = run.rollouts(uses=True), run.rollouts()
    assert uses.height == 32 and frame.height == 16 == frame["rollout_id"].n_unique()
    assert uses["step"].to_list() == [s for s in range(4) for _ in range(8)]
    assert (uses["use"] == uses["step"] % 2).all()
    assert frame["uses"].to_list() == [2] * 16 and set(frame["step"]) == {0, 2}
    # With token-level importance the second use weighs tokens differently: no plain gradient.
    second = uses.filter(pl.col("use") == 1)
    assert second["plain_norm"].null_count() == (16 if level == "token" else 0)
    each, total = run.sketches(uses=True), run.sketches()
    assert len(each) == 32 and len(total) == 16
    for i, name in enumerate(frame["rollout_id"]):
        own = (uses["rollout_id"] == name).to_numpy()
        np.testing.assert_allclose(total[i], each[own].sum(0), rtol=1e-6, atol=1e-9)
    norms = np.linalg.norm(total, axis=1)
    np.testing.assert_allclose(frame["grad_norm"].to_numpy(), norms, rtol=1e-5)
    plain = run.sketches("plain")
    first = run.sketches("plain", uses=True)[uses["use"].to_numpy() == 0]
    np.testing.assert_array_equal(plain, first)
    assert frame["plain_norm"].equals(uses.filter(pl.col("use") == 0)["plain_norm"])
    assert run.verify() == []


def test_generations_that_span_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = grpo(tmp_path / "out", **VARIED, steps_per_generation=4, max_steps=4)
    watched = watch(trainer, tmp_path / "run", monkeypatch, alone=True)
    watched.exact(TIGHT)
    frame = watched.run_dir.rollouts()
    assert frame.height == 32 == frame["rollout_id"].n_unique()
    assert (frame["generation_step"] == frame["step"] // 2 * 2).all()
    assert (frame.group_by("group").len()["len"] == 4).all()


def test_micro_batches_of_unequal_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = grpo(tmp_path / "out", **VARIED, loss_type="bnpo", max_steps=3)
    watched = watch(trainer, tmp_path / "run", monkeypatch, alone=True)
    watched.exact(TIGHT)
    # Each micro-batch is normalised by its own tokens, and those make up the step's.
    tokens = pl.col("advantage") * pl.col("n_tokens") / pl.col("update_weight") / 2
    frame = watched.run_dir.rollouts().with_columns(own=tokens.round(2))
    for _, step in frame.group_by("step"):
        own = step.filter(pl.col("advantage") != 0)["own"].unique()
        assert len(own) == 2 and own.sum() == step["n_tokens"].sum()


def test_truncated_completions_that_are_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**EARLY_END, "max_completion_length": 7, "mask_truncated_completions": True}
    trainer = grpo(tmp_path / "out", **settings)
    watched = watch(trainer, tmp_path / "run", monkeypatch, alone=True)
    watched.exact(TIGHT)
    run = watched.run_dir
    frame, plain, update = run.rollouts(), run.sketches("plain"), run.sketches()
    empty = (frame["n_tokens"] == 0).to_numpy()
    assert 0 < empty.sum() < len(frame)
    masked = frame.filter(pl.Series(empty))
    assert masked["plain_norm"].null_count() == masked["fluency"].null_count() == empty.sum()
    assert (masked["update_weight"] == 0).all() and (masked["grad_norm"] == 0).all()
    assert np.isnan(plain[empty]).all() and not np.isnan(plain[~empty]).any()
    assert not update[empty].any() and np.isfinite(update).all()
    assert frame["missed_energy"].max() < 1e-10 and run.verify() == []


class WithTools(GRPOTrainer):
    """Masks some tokens of every completion, as if tools had written them."""

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        places = torch.arange(batch["completion_mask"].numel()).view_as(batch["completion_mask"])
        batch["tool_mask"] = (places % 3 != 1).int()
        return batch


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("tools", [False, True])
def test_tokens_of_tools_and_the_compact_head(
    tools: bool, compact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CUDA, TRL's head is given labelled positions alone; here it is told that this is CUDA."""
    monkeypatch.setattr(trl_utils, "_use_triton", lambda device: compact)
    trainer = grpo(tmp_path / "out", trainer=WithTools if tools else GRPOTrainer, **VARIED)
    watched = watch(trainer, tmp_path / "run", monkeypatch, alone=True)
    watched.exact(TIGHT)
    frame = watched.run_dir.rollouts()
    shorter = frame["n_tokens"] < frame["completion_ids"].list.len()
    assert shorter.any() == tools and frame["update_weight"].null_count() == 0


def test_a_batch_without_any_advantage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = grpo(tmp_path / "out", **VARIED, reward_funcs=lambda completions, **_: [1.0] * 4 * 2)
    before = [p.detach().clone() for p in trainer.model.parameters()]
    watched = watch(trainer, tmp_path / "run", monkeypatch)
    run = watched.run_dir
    frame = run.rollouts()
    assert (frame["update_weight"] == 0).all() and (frame["plain_norm"] > 0).all()
    assert not run.sketches().any() and run.sketches("plain").any(1).all()
    assert frame["missed_energy"].null_count() == frame.height  # there was nothing to miss
    assert all(map(torch.equal, before, trainer.model.parameters()))


def test_the_order_of_rows_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for seed in (1, 2):
        order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))

        def shuffled(batch: dict[str, Any], order: torch.Tensor = order) -> dict[str, Any]:
            return {
                k: v[order] if isinstance(v, torch.Tensor) and v.dim() else v
                for k, v in batch.items()
            }

        monkeypatch.setattr(grpo_module, "shuffle_sequence_dict", shuffled)
        trainer = grpo(tmp_path / f"out{seed}", **VARIED)
        with Tracer(tmp_path / f"run{seed}", SKETCH).attach(trainer):
            trainer.train()
        found.append(Run.open(tmp_path / f"run{seed}"))
    one, two = found
    same = ["rollout_id", "index", "completion", "reward"]
    assert one.rollouts().select(same).equals(two.rollouts().select(same))
    for kind in ("plain", "update"):
        a, b = one.sketches(kind), two.sketches(kind)
        assert np.abs(a - b).max() < 1e-5 * np.abs(a).max()


MIXED = {
    "llama": {},
    "gpt2": {"architecture": "gpt2"},
    "qwen2": {"architecture": "qwen2"},
    "checkpointing": {"gradient_checkpointing": True},
    "update only": {"top_entropy_quantile": 0.5},
    "adapters": {"peft_config": lora()},
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_precision(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows sum to ``param.grad`` as in fp32; stock autograd itself is rounded to bfloat16."""
    trainer = grpo(tmp_path / "out", **VARIED, bf16=True, **MIXED[name])
    watched = watch(trainer, tmp_path / "run", monkeypatch)
    assert watched.sums < TIGHT and watched.sketches < TIGHT and watched.norms < TIGHT
    assert watched.rows < ROW_BF16 and watched.change < PARAMETER_BF16
    assert watched.run_dir.rollouts()["missed_energy"].max() < 1e-10


def test_parameters_in_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There ``param.grad`` itself is rounded to bfloat16, and so is every sum into it."""
    model = tiny("llama").to(torch.bfloat16)
    trainer = grpo(tmp_path / "out", model=model, **VARIED)
    watched = watch(trainer, tmp_path / "run", monkeypatch)
    assert watched.sums < 1e-2 and watched.sketches < TIGHT and watched.norms < TIGHT
    assert watched.rows < ROW_BF16 and watched.change < PARAMETER_BF16
    assert watched.run_dir.rollouts()["missed_energy"].max() < 1e-4


ADAPTERS = {
    "two projections": {},
    "every linear": {"target_modules": "all-linear"},
    "checkpointing": {"gradient_checkpointing": True},
    "KL to the base": {"beta": 0.1},
    "norms too": {"modules_to_save": ["norm"]},
    "embedding too": {"modules_to_save": ["embed_tokens"], "architecture": "llama-untied"},
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = dict(ADAPTERS[name])
    config = {k: settings.pop(k) for k in ("target_modules", "modules_to_save") if k in settings}
    trainer = grpo(tmp_path / "out", peft_config=lora(**config), **VARIED, **settings)
    watched = watch(trainer, tmp_path / "run", monkeypatch, alone=name != "KL to the base")
    watched.exact(TIGHT)
    tapped = {r.name for r in watched.engine._rules}
    trained = {n.rpartition(".")[0] for n, p in trainer.model.named_parameters() if p.requires_grad}
    assert tapped == trained and all("lora_" in n or "modules_to_save" in n for n in tapped)
    names = [slot.name for slot in watched.engine.layout.slots]
    assert any("lora_A" in n for n in names) and any("lora_B" in n for n in names)
    assert watched.run_dir.rollouts()["missed_energy"].max() < 1e-10


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_rloo(beta: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = watch(
        rloo(tmp_path / "out", **VARIED, beta=beta), tmp_path / "run", monkeypatch, alone=True
    )
    watched.exact(TIGHT)
    run = watched.run_dir
    frame = run.rollouts()
    assert frame["update_weight"].null_count() == 0 and run.verify() == []
    assert run.manifest.notes["capture"]["trainer"] == "RLOOTrainer"
    # The loss is of whole sequences: weight = advantage x tokens / rows, over two micro-batches.
    wanted = frame["advantage"] * frame["n_tokens"] / 8
    np.testing.assert_allclose(frame["update_weight"], wanted, rtol=1e-4)


SUPERVISED = {
    "completions": {},
    "whole texts": {"prompted": False},
    "checkpointing": {"gradient_checkpointing": True},
    "tied": {"architecture": "gpt2"},
    "dynamic": {"loss_type": "dft"},
}


@pytest.mark.parametrize("name", SUPERVISED)
def test_supervised_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = sft(tmp_path / "out", **SUPERVISED[name])
    watched = watch(trainer, tmp_path / "run", monkeypatch)
    watched.exact(TIGHT)
    run = watched.run_dir
    frame = run.rollouts()
    assert frame.height == 12 == frame["rollout_id"].n_unique() == frame["group"].n_unique()
    assert frame["reward"].null_count() == frame["advantage"].null_count() == 12
    assert frame["missed_energy"].max() < 1e-10 and run.verify() == []
    plain = frame["update_weight"].null_count() == 0
    assert plain == (name != "dynamic")
    texts = {row["text"] for row in supervised_texts(trainer, name)}
    assert {(p + " " + c).strip() for p, c in frame.select("prompt", "completion").rows()} == texts
    if plain:
        weight = (
            frame["n_tokens"]
            / frame.group_by("step")
            .agg(pl.col("n_tokens").sum())
            .sort("step")["n_tokens"]
            .to_numpy()[frame["step"].to_numpy()]
        )
        np.testing.assert_allclose(frame["update_weight"], weight, rtol=1e-6)


def supervised_texts(trainer: Any, name: str) -> list[dict[str, str]]:
    decode = trainer.processing_class.decode
    ids = trainer.train_dataset["input_ids"]
    return [{"text": decode(i, skip_special_tokens=True)} for i in ids]


def test_a_layer_that_runs_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its two contributions add up in rows and sketches; the norm is then the sketch's."""
    model = tiny("llama")
    model.model.layers[1].mlp = model.model.layers[0].mlp
    trainer = grpo(tmp_path / "out", model=model, **VARIED)
    watched = watch(trainer, tmp_path / "run", monkeypatch)
    assert max(watched.sums, watched.change, watched.rows, watched.sketches) < TIGHT
    assert watched.norms > 0.01  # what a sum of squares would have said
    run = watched.run_dir
    norms = np.linalg.norm(run.sketches("plain"), axis=1)
    np.testing.assert_allclose(run.rollouts()["plain_norm"], norms, rtol=1e-5)
