"""What happens beside the trainer's own work: seeds, checkpoints, probes and progress."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from behaviortrace.plant.prompts import PromptSet
from behaviortrace.recipe import Recipe
from behaviortrace.run import Run
from behaviortrace.train.probes import evaluate_probes
from behaviortrace.train.progress import Clock, Progress

_STREAM = 2  # keeps sampling's seeds apart from other uses of (seed, step)


class SeedSampling(TrainerCallback):
    """Gives every step's sampling a random stream of its own, a function of (seed, step).

    Sampling draws a number for every row, position and word, finished rows included, so the noise
    of (step, row, position) is the same in every training with this seed whatever was learnt
    before. Two trainings that differ in their rewards alone are thus compared with common random
    numbers, and differ by chance only where their policies differ.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the trainer before the step's rollouts are sampled."""
        words = np.random.SeedSequence([self._seed, state.global_step, _STREAM])
        torch.manual_seed(int(words.generate_state(1)[0]))


class KeepCheckpoints(TrainerCallback):
    """Probes every checkpoint the trainer has saved, then lists it in the run.

    A checkpoint is listed last, so one that is listed is whole and has its probes. The trainer has
    saved its random state by then, and sampling leaves that as it is.
    """

    def __init__(
        self, run: Run, recipe: Recipe, prompts: PromptSet, progress: Progress | None
    ) -> None:
        self._run = run
        self._recipe = recipe
        self._prompts = prompts
        self._progress = progress

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the trainer once a checkpoint folder is complete."""
        step = state.global_step
        model, tokenizer = kwargs["model"], kwargs["processing_class"]
        frame = evaluate_probes(model, tokenizer, self._prompts, self._recipe, step, self._progress)
        self._run.write_shard("probes", step, 0, frame)
        folder = self._run.path / "checkpoints" / f"{PREFIX_CHECKPOINT_DIR}-{step}"
        self._run.add_checkpoint(step, folder)


class TellProgress(TrainerCallback):
    """Reports optimizer steps under the stage "train"."""

    def __init__(self, progress: Progress | None, steps: int) -> None:
        self._progress = progress
        self._steps = steps
        self._clock: Clock | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock where training starts, which after a resume is not step 0."""
        self._clock = Clock(self._progress, "train", self._steps, state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the step."""
        if self._clock is not None:
            self._clock.at(state.global_step)
