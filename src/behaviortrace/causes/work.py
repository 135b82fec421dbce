"""Work at arms: train each counterfactual, measure where it ends, and keep the outcome."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import safetensors.torch
import torch

from behaviortrace.causes.arms import FOLDER, Arm, Outcome, load, place, save
from behaviortrace.causes.learning import Learner, Log, begin, learn
from behaviortrace.causes.measure import Exam, Measurement
from behaviortrace.draws.checkpoint import need_recipe
from behaviortrace.plant.intervention import Intervention
from behaviortrace.recipe import Recipe
from behaviortrace.run import Run, atomic
from behaviortrace.train.policy import load_policy
from behaviortrace.train.progress import Progress, silent

_SAVE_SECONDS = 60.0  # between two savings of a replay that is under way


@dataclass
class Bench:
    """A run whose arms are worked at, with what they have in common.

    Attributes:
        run: the run.
        progress: called with the stage "arms".
    """

    run: Run
    progress: Progress = silent
    _logs: dict[int, Log] = field(default_factory=dict)
    _exams: dict[tuple[int, int], Exam] = field(default_factory=dict)

    def log(self, until: int) -> Log:
        """The run's log before a step."""
        return self._logs.setdefault(until, Log(self.run, until))

    def exam(self, arm: Arm) -> Exam:
        """What an arm's policy is asked."""
        key = (arm.samples, arm.seed)
        if key not in self._exams:
            self._exams[key] = Exam(need_recipe(self.run), arm.samples, arm.seed)
        return self._exams[key]


def work(bench: Bench, arms: Sequence[Arm]) -> None:
    """Make every arm that has no outcome yet, in order.

    Raises:
        BehaviorTraceError: an arm that cannot be made, or a full disk. Arms before it are kept.
    """
    for done, arm in enumerate(arms):
        bench.progress("arms", done, len(arms), None)
        path = place(bench.run, arm)
        if load(path) is not None:
            continue
        began = time.monotonic()
        measurement, removed = (_replayed if arm.mode == "replay" else _rerun)(bench, arm)
        save(path, arm, Outcome(measurement, removed, time.monotonic() - began))
        shutil.rmtree(_aside(bench.run, arm), ignore_errors=True)
    bench.progress("arms", len(arms), len(arms), 0.0)


def _aside(run: Run, arm: Arm) -> Path:
    """Where an arm keeps what it needs until it is done."""
    return run.path / FOLDER / "state" / arm.address(run)


def _replayed(bench: Bench, arm: Arm) -> tuple[Measurement, int]:
    log, removed = bench.log(arm.until), frozenset(arm.ids)
    aside = _aside(bench.run, arm)
    learner = _resumed(log, aside) or begin(log, log.start(removed))
    saved = time.monotonic()
    for step in learn(log, learner, removed, arm.how):
        if time.monotonic() - saved > _SAVE_SECONDS and step < arm.until:
            _keep(learner, aside)
            saved = time.monotonic()
    return bench.exam(arm).take(learner.model, learner.tokenizer), arm.size


def _rerun(bench: Bench, arm: Arm) -> tuple[Measurement, int]:
    """Online training again, with the same random numbers; see ``train.callbacks.SeedSampling``."""
    from behaviortrace.train.grpo import run_training

    recipe = need_recipe(bench.run)
    slots = bench.run.rollouts().filter(pl.col("rollout_id").is_in(list(arm.ids)))
    intervention = Intervention(
        arm.arm,  # type: ignore[arg-type]  # one of the kinds, as planned
        arm.how,
        frozenset(slots.select("step", "index").iter_rows()),
    )
    again = recipe.model_copy(
        update={"train": recipe.train.model_copy(update={"steps": arm.until})}
    )
    folder = _aside(bench.run, arm) / "run"
    known = (folder / "manifest.json").is_file()
    run = Run.open(folder) if known else _begun(bench.run, folder, again)
    run_training(run, again, resume=known, intervention=intervention)
    model, tokenizer = load_policy(run.checkpoints()[arm.until], behavior=recipe.behavior)
    rows = run.rollouts()
    measured = bench.exam(arm).take(model, tokenizer)
    return measured, int(rows["left_out"].cast(pl.Boolean).fill_null(False).sum())


def _begun(origin: Run, folder: Path, recipe: Recipe) -> Run:
    """A run that starts where another did: after the same warm-up."""
    run = Run.create(folder, recipe=recipe)
    start = origin.checkpoints()[0]
    copy = run.path / "checkpoints" / start.name
    atomic.make_folder(copy.parent)
    shutil.copytree(start, copy)
    probes = origin.read("probes").filter(pl.col("step") == 0)
    run.write_shard("probes", 0, 0, probes)
    run.add_checkpoint(0, copy)
    return run


def _keep(learner: Learner, aside: Path) -> None:
    """Save a replay that is under way, whole or not at all; the one before it is replaced."""
    state = learner.optimizer.state_dict()["state"]
    tensors = {
        f"{index}.{name}": value.contiguous()
        for index, entry in state.items()
        for name, value in entry.items()
        if isinstance(value, torch.Tensor)
    }
    weights = {n: p.detach().contiguous() for n, p in learner.model.named_parameters()}
    atomic.write(
        {
            aside / "weights.safetensors": safetensors.torch.save(weights),
            aside / "optimizer.safetensors": safetensors.torch.save(tensors),
            aside / "step.json": json.dumps({"step": learner.step}).encode(),
        }
    )


def _resumed(log: Log, aside: Path) -> Learner | None:
    """The replay that was under way, if one was saved whole."""
    if not (aside / "step.json").is_file():
        return None
    step = int(json.loads((aside / "step.json").read_text("utf-8"))["step"])
    learner = begin(log, 0)
    weights = safetensors.torch.load_file(aside / "weights.safetensors")
    with torch.no_grad():
        for name, parameter in learner.model.named_parameters():
            parameter.copy_(weights[name])
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in safetensors.torch.load_file(aside / "optimizer.safetensors").items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    groups = learner.optimizer.state_dict()["param_groups"]
    learner.optimizer.load_state_dict({"state": state, "param_groups": groups})
    for _ in range(step):
        learner.scheduler.step()
    for group, rate in zip(
        learner.optimizer.param_groups, learner.scheduler.get_last_lr(), strict=True
    ):
        group["lr"] = rate
    learner.step = step
    return learner
