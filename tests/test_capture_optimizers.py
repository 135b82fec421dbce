"""Every optimizer gives a run that opens, with what can be said of its second moments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from transformers import Adafactor, Trainer
from transformers.training_args import OptimizerNames

from behaviortrace.capture import Tracer, optimizer
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import Run
from tests.trainers import grpo
from tests.watched import SKETCH

LOW_RANK = ("galore", "apollo")
INSIDE_THE_BACKWARD = ("layerwise", "lomo")


def build(folder: Path, name: str, **settings: Any) -> Any:
    """A GRPOTrainer with that optimizer; skipped where its package is not on this machine."""
    if any(word in name for word in LOW_RANK):
        settings |= {"optim_target_modules": "all-linear", "optim_args": "rank=4"}
    if "layerwise" in name:
        settings |= {"gradient_accumulation_steps": 1}
    trainer = grpo(folder, optim=name, **settings)
    try:
        Trainer.get_optimizer_cls_and_kwargs(trainer.args, trainer.model)
    except (ImportError, ValueError) as error:
        pytest.skip(str(error))
    except AssertionError as error:
        pytest.skip(f"needs CUDA: {error}")
    # Asking for a layer-wise optimizer has put hooks on the model, so this one is not trained.
    return grpo(folder, optim=name, **settings)


def trained(trainer: Any, folder: Path) -> tuple[Run, dict[str, Any]]:
    with Tracer(folder, SKETCH).attach(trainer):
        trainer.train()
    run = Run.open(folder)
    assert run.verify() == [] and run.rollouts().height == 8 * trainer.args.max_steps
    return run, run.manifest.notes["capture"]["optimizer"]


@pytest.mark.parametrize("name", [o.value for o in OptimizerNames])
def test_every_optimizer_gives_a_run_that_opens(name: str, tmp_path: Path) -> None:
    if "galore" in name and "8bit" in name:
        pytest.skip("quantises on CUDA alone")
    trainer = build(tmp_path / "out", name)
    if any(word in name for word in INSIDE_THE_BACKWARD):
        with (
            pytest.raises(BehaviorTraceError, match=f"optimizer '{name}' moves weights inside"),
            Tracer(tmp_path / "run", SKETCH).attach(trainer),
        ):
            pass
        assert not (tmp_path / "run").exists()
        return
    run, note = trained(trainer, tmp_path / "run")
    parameters = len(list(trainer.model.parameters()))
    assert note["name"] == type(trainer.optimizer.optimizer).__name__
    assert sum(note["statistics"].values()) + note["without"] == parameters
    assert (note["reason"] is None) == (note["without"] == 0)
    if note["without"] == parameters:
        assert "optimizer" not in run.manifest.counts
        return
    frame = run.read("optimizer")
    assert dict(frame.schema) == optimizer.MOMENT_SCHEMA
    assert frame.height == 2 * (parameters - note["without"])
    assert frame["second_moment"].is_finite().all() and (frame["second_moment"] >= 0).all()


KEPT = {
    "adamw_torch": {"exp_avg_sq"},
    "adafactor": {"exp_avg_sq", "exp_avg_sq_row"},
    "rmsprop": {"square_avg"},
    "adagrad": {"sum"},
}


@pytest.mark.parametrize("name", KEPT)
def test_second_moments_are_those_of_the_state(name: str, tmp_path: Path) -> None:
    trainer = grpo(tmp_path / "out", optim=name)
    run, note = trained(trainer, tmp_path / "run")
    assert set(note["statistics"]) == KEPT[name] and note["without"] == 0
    frame = run.read("optimizer").filter(pl.col("step") == 1)
    state = trainer.optimizer.optimizer.state
    for row, parameter in zip(frame.iter_rows(named=True), trainer.model.parameters(), strict=True):
        kept = state[parameter][row["statistic"]]
        assert row["second_moment"] == pytest.approx(float(kept.double().mean()), rel=1e-5)
    assert frame["updates"].to_list() == [2] * frame.height
    adam = name == "adamw_torch"
    assert frame["beta2"].to_list() == [0.999 if adam else None] * frame.height
    assert frame["epsilon"].null_count() == (frame.height if name == "adafactor" else 0)


def test_a_factored_moment_is_the_mean_over_the_matrix(tmp_path: Path) -> None:
    """Adafactor's first step forgets all before it: the average is the squared gradient's."""
    trainer = grpo(tmp_path / "out", optim="adafactor", max_steps=1)
    squares: list[float] = []
    original = trainer._get_grad_norm

    def look(model: Any, grad_norm: Any = None) -> Any:
        squares.extend(float((p.grad.double() ** 2).mean()) for p in model.parameters())
        return original(model, grad_norm=grad_norm)

    trainer._get_grad_norm = look
    run, _ = trained(trainer, tmp_path / "run")
    np.testing.assert_allclose(run.read("optimizer")["second_moment"], squares, rtol=1e-5)


def test_a_projected_moment_is_not_taken_for_the_parameters(tmp_path: Path) -> None:
    """GaLore's row factors may have the length of the parameter's rows, and are of another."""

    class Optimizer:
        def __init__(self, parameter: torch.Tensor, **state: torch.Tensor) -> None:
            self.param_groups = [{"params": [parameter], "lr": 0.1, "eps": (1e-30, 1e-3)}]
            self.state = {parameter: {"step": 1, **state}}

    from behaviortrace.capture.layout import Layout

    model = torch.nn.Linear(6, 6, bias=False)
    row, col, narrow = torch.ones(6), 3 * torch.ones(6), torch.ones(2)
    for state, kept in (
        ({"exp_avg_sq_row": row, "exp_avg_sq_col": col}, True),
        ({"exp_avg_sq_row": row, "exp_avg_sq_col": narrow}, False),
        ({"exp_avg_sq_row": narrow, "exp_avg_sq_col": col}, False),
        ({"exp_avg_sq": torch.ones(6, 2)}, False),
        ({"exp_avg_sq": torch.ones(6, 6)}, True),
        ({"exp_avg_sq": torch.ones(6, 6), "projector": object()}, False),
    ):
        found = optimizer.second_moments(Optimizer(model.weight, **state), Layout(model), 0)
        assert found.frame.height == found.note["statistics"].get(next(iter(state)), 0) == kept
        assert ("weight (6, 6)" in (found.note["reason"] or "")) == (not kept)


def test_what_keeps_no_second_moments_is_named(tmp_path: Path) -> None:
    trainer = grpo(tmp_path / "out", optim="sgd", optim_args="momentum=0.9")
    run, note = trained(trainer, tmp_path / "run")
    assert note["name"] == "SGD" and note["statistics"] == {}
    assert "momentum_buffer (61, 16)" in note["reason"]
    assert "optimizer" not in run.manifest.counts


def test_a_learning_rate_that_the_optimizer_sets_itself_is_unknown(tmp_path: Path) -> None:
    trainer = grpo(tmp_path / "out")
    trainer.optimizer = Adafactor(trainer.model.parameters(), lr=None, warmup_init=True)
    trainer.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(
        torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    )
    run, note = trained(trainer, tmp_path / "run")
    assert note["name"] == "Adafactor"
    frame = run.rollouts()
    assert frame["learning_rate"].null_count() == frame.height
    assert frame["learning_rate"].dtype == pl.Float64
