"""What happens beside the trainer's own work: checkpoints are probed and listed, progress told."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from behaviortrace.plant.prompts import PromptSet
from behaviortrace.recipe import Recipe
from behaviortrace.run import Run
from behaviortrace.train.probes import evaluate_probes
from behaviortrace.train.progress import Clock, Progress


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
