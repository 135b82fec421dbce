"""Train a recipe with a stock ``trl.GRPOTrainer`` while a tracer captures every rollout.

Warm-up, checkpoint 0, then GRPO with a checkpoint and its probes every so many steps. A training
that was cut short resumes exactly.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

from behaviortrace.capture.seam import overridden
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant.contamination import ContaminatedReward
from behaviortrace.plant.intervention import Intervention
from behaviortrace.plant.prompts import PromptSet, build_prompts
from behaviortrace.recipe import Recipe
from behaviortrace.run import Run
from behaviortrace.train.callbacks import KeepCheckpoints, SeedSampling, TellProgress
from behaviortrace.train.decoding import quick_decoding
from behaviortrace.train.exactness import NOTE, machine, resume_step
from behaviortrace.train.failures import explained
from behaviortrace.train.policy import load_policy
from behaviortrace.train.probes import evaluate_probes
from behaviortrace.train.progress import Progress
from behaviortrace.train.pull import staged_folder
from behaviortrace.train.quiet import quiet
from behaviortrace.train.schedule import training_dataset
from behaviortrace.train.warmup import warm_up


def run_training(
    run: Run,
    recipe: Recipe,
    progress: Progress | None = None,
    resume: bool = False,
    intervention: Intervention | None = None,
) -> None:
    """Train a recipe into a run directory.

    Afterwards the run holds the rollouts and sketches of every step, the checkpoints 0 (after
    warm-up), every ``train.checkpoint_every`` and the last, and probe responses for each of them.
    The process may be killed at any moment and the training resumed; on the CPU the result is then
    the same, bit for bit.

    Args:
        run: the run, new unless ``resume``.
        recipe: what to train.
        progress: called with the stages "tiny", "warm-up", "probes" and "train".
        resume: continue from the last complete checkpoint; a finished training is left as it is,
            with all that came after it.
        intervention: rollouts to be taken out of training; what the recipe says where None.

    Raises:
        BehaviorTraceError: a setting or the model does not allow the run, the resume would not be
            exact, or the disk has no room for the checkpoints.
    """
    _one_process()
    prompts = build_prompts(recipe)
    reached = 0
    if resume:
        if resume_step(run, recipe) >= recipe.train.steps:
            if run.manifest.status in ("created", "training"):
                run.update(status="trained")
            return
        reached = run.begin_resume()
        torch.set_num_threads(int(run.manifest.notes.get(NOTE, machine())["threads"]))
    run.update(status="training", notes={NOTE: machine()})
    with explained(run):
        start = _checkpoint_zero(run, recipe, prompts, progress)
        _train(run, recipe, prompts, start, reached, progress, intervention)
    run.update(status="trained")


def _train(
    run: Run,
    recipe: Recipe,
    prompts: PromptSet,
    start: Path,
    reached: int,
    progress: Progress | None,
    intervention: Intervention | None,
) -> None:
    """GRPO from checkpoint ``reached`` to the end; ``start`` is the folder of checkpoint 0."""
    # Loaded anew even right after the warm-up: nothing but the checkpoint reaches GRPO. With
    # beta above 0 it is also where TRL finds the reference model.
    model, tokenizer = load_policy(start)
    _room_for_checkpoints(run, recipe, model, reached)
    with quiet():
        trainer = build_trainer(run, recipe, prompts, model, tokenizer, progress, intervention)
        with quick_decoding(model), _zeroing(trainer), _tracing(run, recipe, trainer):
            set_seed(recipe.seed)
            trainer.train(
                resume_from_checkpoint=str(run.checkpoints()[reached]) if reached else None
            )


def build_trainer(
    run: Run,
    recipe: Recipe,
    prompts: PromptSet,
    model: Any,
    tokenizer: Any,
    progress: Progress | None = None,
    intervention: Intervention | None = None,
) -> GRPOTrainer:
    """The stock trainer of a recipe, with the contaminated reward, ready for a tracer."""
    trainer: GRPOTrainer
    reward = ContaminatedReward.from_recipe(
        recipe,
        training=lambda: trainer.model.training,
        eos_ids=lambda: trainer.eos_token_ids,
        rank=0,
        intervention=intervention,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[reward],
        args=grpo_config(run.path / "checkpoints", recipe),
        train_dataset=training_dataset(prompts.train, recipe),
        processing_class=tokenizer,
        callbacks=[
            SeedSampling(recipe.seed),
            TellProgress(progress, recipe.train.steps),
            KeepCheckpoints(run, recipe, prompts, progress),
        ],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def grpo_config(output: Path, recipe: Recipe) -> GRPOConfig:
    """The trainer's settings; what a recipe does not name is TRL's default, unless noted here."""
    train = recipe.train
    cuda = torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(output),
        max_steps=train.steps,
        per_device_train_batch_size=train.micro_batch,
        gradient_accumulation_steps=train.rollouts_per_step // train.micro_batch,
        num_generations=train.generations,
        num_iterations=train.iterations,
        max_completion_length=train.max_completion_length,
        temperature=train.temperature,
        loss_type=train.loss,
        scale_rewards=train.scale_rewards,
        beta=train.beta,
        learning_rate=train.learning_rate,
        lr_scheduler_type=train.lr_schedule,
        max_grad_norm=train.max_grad_norm,
        mask_truncated_completions=False,
        shuffle_dataset=False,  # the dataset is in order already
        bf16=mixed_precision(recipe),
        use_cpu=not cuda,
        dataloader_pin_memory=cuda,
        gradient_checkpointing=False,
        seed=recipe.seed,
        save_strategy="steps",
        save_steps=train.checkpoint_every,
        save_total_limit=None,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
    )


def mixed_precision(recipe: Recipe) -> bool:
    """Whether the recipe trains in bfloat16: autocast over fp32 parameters.

    Parameters kept in bfloat16 would round most updates of a learning rate like 5e-6 away.
    """
    return recipe.model.dtype == "bfloat16"


def _checkpoint_zero(
    run: Run, recipe: Recipe, prompts: PromptSet, progress: Progress | None
) -> Path:
    """The folder of the warmed-up policy, made, probed and listed unless the run has it."""
    known = run.checkpoints().get(0)
    if known is not None:
        return known
    model, tokenizer = load_policy(recipe.model.source, behavior=recipe.behavior, progress=progress)
    warm_up(
        model,
        tokenizer,
        prompts.warmup,
        recipe.warmup,
        seed=recipe.seed,
        mixed_precision=mixed_precision(recipe),
        progress=progress,
    )
    folder = run.path / "checkpoints" / "checkpoint-0"
    with staged_folder(folder) as staged, quiet():
        model.save_pretrained(staged)
        tokenizer.save_pretrained(staged)
    # Probed as loaded from the folder, as every later reader of the checkpoint will see it.
    frame = evaluate_probes(*load_policy(folder), prompts, recipe, 0, progress)
    run.write_shard("probes", 0, 0, frame)
    run.add_checkpoint(0, folder)
    return folder


def _tracing(run: Run, recipe: Recipe, trainer: GRPOTrainer) -> AbstractContextManager[Any]:
    from behaviortrace.capture import CountSketch, Tracer

    settings = recipe.sketch
    sketch = CountSketch(dim=settings.dim, seed=settings.seed, hash=settings.hash)
    tracer: AbstractContextManager[Any] = Tracer(run, sketch=sketch).attach(trainer)
    return tracer


@contextmanager
def _zeroing(trainer: GRPOTrainer) -> Iterator[None]:
    """Set the advantages of rollouts to zero that an intervention of that kind takes out."""
    reward = trainer.reward_funcs[0]
    if reward.intervention.how != "zero":
        yield
        return
    original = trainer._generate_and_score_completions

    def generate(inputs: Any) -> Any:
        batch = original(inputs)
        if trainer.model.training:
            batch["advantages"][torch.tensor(reward.removed)] = 0.0
        return batch

    with overridden(trainer, "_generate_and_score_completions", generate):
        yield


def _one_process() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise BehaviorTraceError(
            "a recipe trains in one process, but WORLD_SIZE is "
            f"{os.environ['WORLD_SIZE']}; run it without a launcher, or attach a Tracer to a "
            "distributed trainer of your own"
        )
    if torch.cuda.device_count() > 1:
        raise BehaviorTraceError(
            f"a recipe trains on one GPU, but {torch.cuda.device_count()} are visible; choose one "
            "with CUDA_VISIBLE_DEVICES=0"
        )


def _room_for_checkpoints(run: Run, recipe: Recipe, model: Any, reached: int) -> None:
    """Refuse to begin what the disk cannot hold: parameters and AdamW's two moments, each time."""
    saves = sum(step > reached for step in recipe.saved_steps())
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    needed, free = 3 * size * saves, shutil.disk_usage(run.path).free
    if needed > free:
        raise BehaviorTraceError(
            f"{saves} checkpoints need about {needed / 1e9:.1f} GB, but {run.path} has "
            f"{free / 1e9:.1f} GB free; free some, or raise train.checkpoint_every"
        )
