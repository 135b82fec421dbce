"""Where a training begins: refused before it trains, or gone on with bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from behaviortrace.capture import CountSketch, Tracer
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import Run
from tests.trainers import grpo, rloo, sft
from tests.watched import SKETCH

SAVED = {"max_steps": 5, "save_strategy": "steps", "save_steps": 2}


class Stop(Exception):
    """What ends a training from outside."""


class StopAt(TrainerCallback):
    """Ends a training between steps, or inside one after its first micro-batch."""

    def __init__(self, step: int, inside: bool = False) -> None:
        self.step, self.inside = step, inside

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step and not self.inside:
            raise Stop

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step and self.inside:
            raise Stop


def weights(trainer: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.model.parameters()]


def train(trainer: Any, run: Path | Run, checkpoint: Any = None, **options: Any) -> None:
    with Tracer(run, SKETCH, **options).attach(trainer):
        trainer.train(resume_from_checkpoint=checkpoint)


def stopped(trainer: Any, run: Path, step: int, inside: bool = False) -> Any:
    callback = StopAt(step, inside)
    trainer.add_callback(callback)
    with pytest.raises(Stop):
        train(trainer, run)
    trainer.remove_callback(callback)
    return trainer


def untouched(trainer: Any) -> None:
    """Nothing of an attachment is left."""
    names = ("_compute_loss", "compute_loss", "training_step", "_get_grad_norm")
    assert not set(names) & set(vars(trainer))
    assert not any("forward" in vars(m) for m in trainer.model.modules() if not list(m.children()))
    kinds = [type(c).__name__ for c in trainer.callback_handler.callbacks]
    assert not any("Recorder" in kind for kind in kinds)


def equal(one: Run, two: Run) -> None:
    assert one.rollouts(uses=True).equals(two.rollouts(uses=True))
    for kind in ("plain", "update"):
        np.testing.assert_array_equal(one.sketches(kind, uses=True), two.sketches(kind, uses=True))
    assert one.read("optimizer").equals(two.read("optimizer"))


@pytest.mark.parametrize("again", ["same attachment", "same tracer", "another tracer of the run"])
def test_a_second_training_is_refused_before_it_trains(again: str, tmp_path: Path) -> None:
    trainer, tracer = grpo(tmp_path / "out"), Tracer(tmp_path / "run", SKETCH)
    message = r"holds steps 0 to 1 of an earlier training.*begins with step 0 again.*directory"
    with tracer.attach(trainer):
        trainer.train()
        before = weights(trainer)
        if again == "same attachment":
            with pytest.raises(BehaviorTraceError, match=message):
                trainer.train()
    if again != "same attachment":
        if again != "same tracer":
            tracer = Tracer(Run.open(tmp_path / "run"), SKETCH)
        with pytest.raises(BehaviorTraceError, match=message), tracer.attach(trainer):
            trainer.train()
    assert all(map(torch.equal, before, trainer.model.parameters()))
    untouched(trainer)
    run = Run.open(tmp_path / "run")
    assert run.verify() == [] and run.rollouts().height == 16 and run.manifest.lineage == []
    train(trainer, tmp_path / "other")
    assert Run.open(tmp_path / "other").rollouts().height == 16


def test_a_directory_that_holds_a_run_is_refused_in_the_words_of_python(tmp_path: Path) -> None:
    trainer = grpo(tmp_path / "out", max_steps=1)
    train(trainer, tmp_path / "run")
    with pytest.raises(BehaviorTraceError) as caught:
        train(trainer, tmp_path / "run")
    said = str(caught.value)
    assert "already holds a run" in said and "another directory" in said and "resume=True" in said
    assert "--" not in said and "\n" not in said
    untouched(trainer)
    with pytest.raises(BehaviorTraceError, match="no run to resume; leave resume=True out"):
        train(trainer, tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()
    (tmp_path / "left" / "rollouts").mkdir(parents=True)
    (tmp_path / "left" / "rollouts" / "x").write_text("")
    with pytest.raises(BehaviorTraceError, match="choose another directory"):
        train(trainer, tmp_path / "left")


def test_a_tracer_is_attached_once_at_a_time(tmp_path: Path) -> None:
    trainer = grpo(tmp_path / "out", max_steps=1)
    with Tracer(tmp_path / "run", SKETCH).attach(trainer):
        with (
            pytest.raises(BehaviorTraceError, match="attached to this trainer already"),
            Tracer(tmp_path / "other", SKETCH).attach(trainer),
        ):
            pass
        trainer.train()
    untouched(trainer)
    assert Run.open(tmp_path / "run").rollouts().height == 8
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("held", ["attached", "reopened"])
def test_a_training_that_goes_on_from_its_last_step_is_added(held: str, tmp_path: Path) -> None:
    trainer = grpo(tmp_path / "out", max_steps=2, save_strategy="steps", save_steps=2)
    with Tracer(tmp_path / "run", SKETCH).attach(trainer):
        trainer.train()
        if held == "attached":
            trainer.args.max_steps = 4
            trainer.train(resume_from_checkpoint=True)
    if held == "reopened":
        longer = grpo(tmp_path / "out", max_steps=4)
        train(longer, Run.open(tmp_path / "run"), True)
    run = Run.open(tmp_path / "run")
    frame = run.rollouts()
    assert frame["step"].to_list() == [s for s in range(4) for _ in range(8)]
    assert frame["rollout_id"].n_unique() == 32 and run.verify() == []
    (entry,) = run.manifest.lineage
    assert (entry.step, entry.reached, entry.checkpoint, entry.dropped) == (2, 2, True, {})


MAKERS: dict[str, Callable[..., Any]] = {
    "GRPO": grpo,
    "RLOO": lambda folder, **s: rloo(folder, beta=0.0, **s),
    "SFT": sft,
    "two uses": lambda folder, **s: grpo(folder, num_iterations=2, **s),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_resumed_run_equals_an_unbroken_one(kind: str, tmp_path: Path) -> None:
    make = MAKERS[kind]
    train(make(tmp_path / "a", **SAVED), tmp_path / "whole")
    trainer = stopped(make(tmp_path / "b", **SAVED), tmp_path / "run", 3)
    untouched(trainer)
    run = Run.open(tmp_path / "run")
    assert run.rollouts(uses=True)["step"].unique().to_list() == [0, 1, 2] and run.verify() == []
    run.save_json("results/summary", {"of": "three steps"})
    torch.manual_seed(99)
    train(make(tmp_path / "b", **SAVED), tmp_path / "run", True, resume=True)
    run = Run.open(tmp_path / "run")
    assert run.verify() == [] and not run.has("results/summary")
    equal(Run.open(tmp_path / "whole"), run)
    (entry,) = run.manifest.lineage
    assert (entry.step, entry.reached, entry.checkpoint) == (2, 3, True)
    assert entry.dropped == {"shards": 2, "jsons": 1}  # the step's rollouts and second moments


def test_a_resume_is_refused_where_it_would_lose_or_repeat_steps(tmp_path: Path) -> None:
    stopped(grpo(tmp_path / "out", **SAVED), tmp_path / "run", 3)
    before = (tmp_path / "run" / "manifest.json").read_bytes()
    checkpoint = str(tmp_path / "out" / "checkpoint-2")
    for options, start, message in (
        ({"resume": True}, None, r"holds steps 0 to 2.*begins with step 0 again"),
        ({}, checkpoint, r"already holds steps 2 to 2.*Tracer\(\.\.\., resume=True\)"),
    ):
        run = Run.open(tmp_path / "run") if not options else tmp_path / "run"
        trainer = grpo(tmp_path / "out", **SAVED)
        with pytest.raises(BehaviorTraceError, match=message):
            train(trainer, run, start, **options)
        untouched(trainer)
    run = Run.open(tmp_path / "run")
    assert run.rollouts()["step"].unique().to_list() == [0, 1, 2] and run.verify() == []
    assert run.manifest.lineage == []
    assert b'"shards"' in before


def test_a_resume_past_the_end_of_the_run_is_refused(tmp_path: Path) -> None:
    train(grpo(tmp_path / "out", max_steps=1), tmp_path / "run")
    untraced = grpo(tmp_path / "out", max_steps=4, save_strategy="steps", save_steps=3)
    untraced.train()
    with pytest.raises(BehaviorTraceError, match="so that 3 in between would be missing"):
        train(grpo(tmp_path / "out", max_steps=4), tmp_path / "run", True, resume=True)
    assert Run.open(tmp_path / "run").verify() == []


CHANGED = {
    "rate": ({"learning_rate": 2e-3}, "learning_rate 0.001, this trainer has 0.002"),
    "batch": ({"gradient_accumulation_steps": 4}, "rollouts_per_step 8, this trainer has 16"),
    "temperature": ({"temperature": 1.0}, "temperature 0.9, this trainer has 1.0"),
    "seed": ({"seed": 5}, "seed 0, this trainer has 5"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_resume_with_other_settings_is_refused_by_name(what: str, tmp_path: Path) -> None:
    settings, message = CHANGED[what]
    stopped(grpo(tmp_path / "out", **SAVED), tmp_path / "run", 3)
    trainer = grpo(tmp_path / "out", **{**SAVED, **settings})
    with pytest.raises(BehaviorTraceError, match=message):
        train(trainer, tmp_path / "run", True, resume=True)
    untouched(trainer)
    assert Run.open(tmp_path / "run").rollouts()["step"].max() == 2


def test_a_resume_that_would_compute_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(grpo(tmp_path / "out", **SAVED), tmp_path / "run", 3)
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    with pytest.raises(BehaviorTraceError, match=rf"torch\.set_num_threads\({threads}\) first"):
        train(grpo(tmp_path / "out", **SAVED), tmp_path / "run", True, resume=True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr("behaviortrace.run.resume.package_versions", lambda: {"torch": "1.0"})
    with pytest.raises(BehaviorTraceError, match=r"this is torch 1\.0; install torch=="):
        train(grpo(tmp_path / "out", **SAVED), tmp_path / "run", True, resume=True)
    assert Run.open(tmp_path / "run").rollouts()["step"].max() == 2


def test_a_resume_onto_a_damaged_step_is_refused_by_file(tmp_path: Path) -> None:
    stopped(grpo(tmp_path / "out", **SAVED), tmp_path / "run", 3)
    (tmp_path / "run" / "rollouts" / "step-000001-rank-0000.parquet").write_bytes(b"damage")
    with pytest.raises(BehaviorTraceError, match=r"step 2: rollouts/step-000001.*step 1 or before"):
        train(grpo(tmp_path / "out", **SAVED), tmp_path / "run", True, resume=True)


def test_checkpoints_inside_the_run_survive_a_resume(tmp_path: Path) -> None:
    """A trainer may save where the run's own checkpoints would be, and resume from there."""
    home = tmp_path / "run" / "checkpoints"
    stopped(grpo(home, **SAVED), tmp_path / "run", 3)
    train(grpo(home, **SAVED), tmp_path / "run", True, resume=True)
    assert sorted(p.name for p in home.glob("checkpoint-*"))[:2] == ["checkpoint-2", "checkpoint-4"]
    assert Run.open(tmp_path / "run").rollouts()["step"].unique().to_list() == [0, 1, 2, 3, 4]


def test_a_resume_inside_a_batch_of_rollouts_is_refused(tmp_path: Path) -> None:
    settings = {**SAVED, "save_steps": 1, "num_iterations": 2}
    stopped(grpo(tmp_path / "out", **settings), tmp_path / "run", 3)
    trainer = grpo(tmp_path / "out", **settings)
    with pytest.raises(BehaviorTraceError, match="step 3 lies inside a batch of rollouts"):
        train(trainer, tmp_path / "run", True, resume=True)
    train(trainer, tmp_path / "run", str(tmp_path / "out" / "checkpoint-2"), resume=True)
    run = Run.open(tmp_path / "run")
    assert run.verify() == [] and run.rollouts(uses=True)["step"].unique().len() == 5


def test_a_trainer_that_holds_rollouts_sampled_unseen_is_refused(tmp_path: Path) -> None:
    trainer = grpo(tmp_path / "out", num_iterations=2, max_steps=1)
    trainer.train()
    before = weights(trainer)
    with pytest.raises(BehaviorTraceError, match="construct the trainer anew"):
        train(trainer, tmp_path / "run")
    assert all(map(torch.equal, before, trainer.model.parameters()))


def test_a_training_that_ended_inside_a_step_leaves_no_rows_of_it(tmp_path: Path) -> None:
    """Its rows were of an update that was never made."""
    whole = tmp_path / "whole"
    train(sft(tmp_path / "a", **SAVED), whole)
    trainer = sft(tmp_path / "b", **SAVED)
    callback = StopAt(2, inside=True)
    trainer.add_callback(callback)
    with Tracer(tmp_path / "run", SKETCH).attach(trainer):
        with pytest.raises(Stop):
            trainer.train()
        trainer.remove_callback(callback)
        trainer.train(resume_from_checkpoint=True)
    equal(Run.open(whole), Run.open(tmp_path / "run"))


def test_a_trainer_that_ended_inside_a_step_is_refused_anew(tmp_path: Path) -> None:
    """It would train on the rest of a batch whose beginning was lost."""
    trainer = stopped(grpo(tmp_path / "out", **SAVED), tmp_path / "run", 2, inside=True)
    untouched(trainer)
    with pytest.raises(BehaviorTraceError, match="an earlier training lies inside a batch"):
        train(trainer, tmp_path / "run", True, resume=True)
    train(grpo(tmp_path / "out", **SAVED), tmp_path / "run", True, resume=True)
    run = Run.open(tmp_path / "run")
    assert run.verify() == [] and run.rollouts()["step"].unique().len() == 5


def test_an_attachment_that_fails_midway_leaves_the_trainer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = grpo(tmp_path / "out", max_steps=1)
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "add_callback", lambda callback: 1 / 0)
        with pytest.raises(ZeroDivisionError), Tracer(tmp_path / "run", SKETCH).attach(trainer):
            pass
    untouched(trainer)
    train(trainer, tmp_path / "run", resume=True)  # nothing was trained, so there is all to do
    run = Run.open(tmp_path / "run")
    assert run.rollouts().height == 8 and run.verify() == [] and run.manifest.lineage == []


def test_what_was_noted_of_dropped_steps_is_noted_anew(tmp_path: Path) -> None:
    coupled = {**SAVED, "entropy_coef": 0.05}
    trainer = stopped(grpo(tmp_path / "out", **coupled), tmp_path / "run", 3)
    note = Run.open(tmp_path / "run").manifest.notes["capture"]["update_only"]
    assert note["first_step"] == 0
    train(grpo(tmp_path / "out", **coupled), tmp_path / "run", True, resume=True)
    assert Run.open(tmp_path / "run").manifest.notes["capture"]["update_only"] == note
    assert trainer.state.global_step == 3


def test_another_sketch_is_refused_as_before(tmp_path: Path) -> None:
    stopped(grpo(tmp_path / "out", **SAVED), tmp_path / "run", 3)
    trainer = grpo(tmp_path / "out", **SAVED)
    other = Tracer(tmp_path / "run", CountSketch(512), resume=True)
    with pytest.raises(BehaviorTraceError, match="use the same sketch"), other.attach(trainer):
        pass
    untouched(trainer)
