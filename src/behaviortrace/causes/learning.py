"""Train the logged rollouts of a run again, with some of them taken out: a replay.

The counterfactual on fixed data: the same completions in the same steps, the same optimizer and
schedule, nothing sampled. With nothing removed it ends at the weights that training ended at.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from transformers import Trainer

from behaviortrace.capture.batch import collate
from behaviortrace.capture.objective import fused_head, plain_loss, token_logprobs
from behaviortrace.causes.objective import check, weights
from behaviortrace.draws.checkpoint import need_recipe
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant.intervention import How
from behaviortrace.recipe import Recipe
from behaviortrace.run import Run
from behaviortrace.train.grpo import grpo_config, mixed_precision
from behaviortrace.train.policy import load_policy
from behaviortrace.train.quiet import quiet

_OPTIMIZER, _SCHEDULER = "optimizer.pt", "scheduler.pt"  # as the trainer saves them


@dataclass
class Learner:
    """A policy in the middle of a replay.

    Attributes:
        model: in training.
        tokenizer: its tokenizer.
        optimizer, scheduler: as the trainer of the recipe makes them.
        step: optimizer steps taken.
    """

    model: Any
    tokenizer: Any
    optimizer: Any
    scheduler: Any
    step: int


class Log:
    """The training rollouts of a run, ready to be trained again.

    Args:
        run: a trained run with a recipe.
        until: steps before it are replayed.

    Raises:
        BehaviorTraceError: a training that cannot be replayed, or a run without rollouts.
    """

    def __init__(self, run: Run, until: int) -> None:
        self.run, self.recipe, self.until = run, need_recipe(run), until
        self.rollouts = run.rollouts().filter(pl.col("step") < until)
        check(self.rollouts, self.recipe)
        self.steps = {
            int(step): rows.sort("index")
            for (step,), rows in self.rollouts.group_by("step", maintain_order=True)
        }
        missing = [step for step in range(until) if step not in self.steps]
        if missing:
            raise BehaviorTraceError(
                f"{run.path} has no rollouts of step {missing[0]}, so its training cannot be "
                f"replayed to step {until}"
            )

    def first_step(self, removed: frozenset[str]) -> int:
        """The first step with a removed rollout; ``until`` where there is none."""
        touched = self.rollouts.filter(pl.col("rollout_id").is_in(list(removed)))
        return self.until if touched.is_empty() else int(touched["step"].min())  # type: ignore[arg-type]  # not empty

    def start(self, removed: frozenset[str]) -> int:
        """The last checkpoint that no removal has touched: where a replay may begin."""
        first = self.first_step(removed)
        return max(step for step in self.run.checkpoints() if step <= first)


def begin(log: Log, step: int) -> Learner:
    """The policy, optimizer and schedule of a checkpoint of the run.

    Raises:
        BehaviorTraceError: no such checkpoint, or one without the optimizer's state.
    """
    folders = log.run.checkpoints()
    if step not in folders:
        log.run.refuse_copy("load a checkpoint")
        raise BehaviorTraceError(f"{log.run.path} has no complete checkpoint of step {step}")
    model, tokenizer = load_policy(folders[step], behavior=log.recipe.behavior)
    optimizer, scheduler = _optimizer(model, log.recipe)
    if step > 0:
        for name, thing in ((_OPTIMIZER, optimizer), (_SCHEDULER, scheduler)):
            thing.load_state_dict(_state(folders[step] / name, model))
    return Learner(model, tokenizer, optimizer, scheduler, step)


def learn(
    log: Log, learner: Learner, removed: frozenset[str], how: How = "exclude"
) -> Iterator[int]:
    """Take the steps that are left, one at a time; yields the number of steps taken so far.

    Args:
        log: what is replayed.
        learner: where it stands; changed in place.
        removed: ids of the rollouts that are taken out.
        how: what that means.
    """
    train = log.recipe.train
    with _training(learner.model, log.recipe):
        while learner.step < log.until:
            rows = log.steps[learner.step]
            out = rows["rollout_id"].is_in(list(removed)).to_numpy()
            _accumulate(learner, rows, weights(rows, train, out, how), log.recipe)
            torch.nn.utils.clip_grad_norm_(learner.model.parameters(), train.max_grad_norm)
            learner.optimizer.step()
            learner.scheduler.step()
            learner.step += 1
            yield learner.step


def _accumulate(learner: Learner, rows: pl.DataFrame, weight: np.ndarray, recipe: Recipe) -> None:
    """Leave the gradient of the step's loss in the model; rollouts of weight zero add nothing."""
    for parameter in learner.model.parameters():
        # Zeros and not None: a step without any gradient still moves along Adam's momentum.
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    device = next(learner.model.parameters()).device
    chosen = np.flatnonzero(weight)
    prompts, completions = rows["prompt_ids"].to_list(), rows["completion_ids"].to_list()
    pad = learner.tokenizer.pad_token_id
    for at in range(0, len(chosen), recipe.train.micro_batch):
        part = chosen[at : at + recipe.train.micro_batch]
        batch = collate([(prompts[i], completions[i]) for i in part], pad, None, device)
        scale = torch.tensor(weight[part], dtype=torch.float32, device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=mixed_precision(recipe)):
            logps = token_logprobs(learner.model, batch)
        (plain_loss(logps, batch.mask) * scale).sum().backward()


@contextmanager
def _training(model: Any, recipe: Recipe) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(fused_head(model, recipe.train.temperature))
        model.train()
        try:
            yield
        finally:
            model.eval()


def _optimizer(model: Any, recipe: Recipe) -> tuple[Any, Any]:
    """The optimizer and schedule that the recipe's trainer makes for a model."""
    with tempfile.TemporaryDirectory() as scratch, quiet():
        trainer = Trainer(model=model, args=grpo_config(Path(scratch), recipe))
        trainer.create_optimizer_and_scheduler(recipe.train.steps)
    return trainer.optimizer, trainer.lr_scheduler


def _state(path: Path, model: Any) -> Any:
    if not path.is_file():
        raise BehaviorTraceError(
            f"{path.parent} has no {path.name}, so training cannot go on from it; take an earlier "
            "checkpoint, or one saved with its optimizer"
        )
    return torch.load(path, map_location=next(model.parameters()).device, weights_only=True)
