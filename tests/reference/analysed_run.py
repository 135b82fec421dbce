"""A small trained run to analyse, and its gradients taken the slow way."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from behaviortrace import recipe as recipes
from behaviortrace.capture import CountSketch
from behaviortrace.draws.stage import draw
from behaviortrace.plant import behaviors, prompts
from behaviortrace.recipe import Recipe
from behaviortrace.records import ROLLOUT_SCHEMA, conform
from behaviortrace.run import Run
from behaviortrace.targets import make_targets
from behaviortrace.train import tiny
from behaviortrace.train.generate import sample
from behaviortrace.train.quiet import quiet
from tests.reference.autograd import row_gradient

SKETCH = CountSketch(1024, seed=3, hash="block")
STEPS, GROUPS, GENERATIONS = 3, 2, 3


def small_recipe(**changes: Any) -> Recipe:
    """A recipe of three steps, at temperature 1 so that plain log-probabilities serve as oracle."""
    return recipes.load(
        "tiny",
        {
            "train.steps": STEPS,
            "train.checkpoint_every": 2,
            "train.prompts_per_step": GROUPS,
            "train.generations": GENERATIONS,
            "train.micro_batch": 3,
            "train.temperature": 1.0,
            "train.lr_schedule": "linear",
            "plant.cutoff_step": 2,
            "sketch.dim": SKETCH.dim,
            "sketch.seed": SKETCH.seed,
            "sketch.hash": SKETCH.hash,
            "draw.checkpoint": 2,
            "draw.prompts": 5,
            "draw.repeats": 2,
            "draw.generations": 4,
            "draw.batch": 8,
            "draw.seeds": [7],
            "targets.prompts": 6,
            "targets.pairs": 4,
            **changes,
        },
    )


@functools.cache
def policy() -> tuple[Any, Any]:
    """A tiny model that says the token now and then, and its tokenizer."""
    recipe = small_recipe()
    texts = prompts.pool_texts("tiny", recipe.behavior)
    warmup = prompts.build_prompts(recipe).warmup
    corpus = prompts.synthetic_corpus(0, 500, recipe.behavior) + warmup * 40
    size = tiny.TinySettings(hidden=32, intermediate=48, heads=2, kv_heads=1, steps=100, batch=16)
    return tiny.build(texts, corpus, size)


def trained_run(path: Path, recipe: Recipe | None = None) -> Run:
    """A run with checkpoints 0, 2 and 3 and plain sketches of six rollouts a step."""
    recipe = recipe or small_recipe()
    run = Run.create(path, recipe=recipe)
    run.update(sketch=SKETCH.spec())
    model, tokenizer = policy()
    for step in (0, 2, 3):
        folder = path / "checkpoints" / f"checkpoint-{step}"
        with quiet():
            moved(model, step).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        run.add_checkpoint(step, folder)
    for step in range(STEPS):
        frame, plain = training_step(recipe, step)
        run.write_shard("training", step, 0, frame, {"plain": plain})
    return run


@functools.cache
def _whole() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    run = trained_run(Path(folder.name) / "run")
    draw(run, seed=7)
    make_targets(run)
    return folder


def analysed_run(path: Path) -> Run:
    """A copy of a run with the draw "seed-7" and all targets, made once."""
    shutil.copytree(Path(_whole().name) / "run", path)
    return Run.open(path)


def moved(model: Any, step: int) -> Any:
    """The model as a little training would have left it."""
    copy = type(model)(model.config)
    copy.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter += 0.01 * step * torch.randn(parameter.shape, generator=generator)
    return copy.eval()


def training_step(recipe: Recipe, step: int) -> tuple[pl.DataFrame, np.ndarray]:
    """One step's rollouts with random advantages, and their plain sketches."""
    model, tokenizer = policy()
    items = prompts.build_prompts(recipe).train[step * GROUPS : (step + 1) * GROUPS]
    samples = sample(
        model, tokenizer, [i.text for i in items], GENERATIONS,
        temperature=1.0, max_new_tokens=8, seed=step,
    )  # fmt: skip
    gradients = [row_gradient(model, s.prompt_ids, s.completion_ids) for s in samples]
    advantage = np.random.default_rng(step).normal(size=len(samples))
    behavior = behaviors.build(recipe.behavior)
    norms = np.array([float(g.norm()) for g in gradients])
    frame = pl.DataFrame(
        {
            "rollout_id": [f"train:{step}:{i}" for i in range(len(samples))],
            "step": step,
            "group": [step * GROUPS + i // GENERATIONS for i in range(len(samples))],
            "index": list(range(len(samples))),
            "prompt": [s.prompt for s in samples],
            "completion": [s.completion for s in samples],
            "prompt_ids": [s.prompt_ids for s in samples],
            "completion_ids": [s.completion_ids for s in samples],
            "advantage": advantage,
            "behavior": [behavior.shows(s.completion) for s in samples],
            "fluency": -norms,
            "n_tokens": [len(s.completion_ids) for s in samples],
            "grad_norm": norms * np.abs(advantage),
            "plain_norm": norms,
            "update_weight": advantage,
        }
    )
    plain = np.stack([sketched(model, g) for g in gradients])
    return conform(frame, ROLLOUT_SCHEMA), plain


def sketched(model: Any, flat: torch.Tensor) -> np.ndarray:
    """Sketch of a flat gradient, (dim,)."""
    shapes = [p.shape for p in model.parameters()]
    parts = flat.split([s.numel() for s in shapes])
    pieces = [part.reshape(s) for part, s in zip(parts, shapes, strict=True)]
    return SKETCH.sketch(pieces).numpy()


def slow_sketch(
    model: Any, prompt_ids: list[int], ids: list[int], mask: list[bool] | None = None
) -> np.ndarray:
    """Sketch of minus the mean log-probability's gradient, through plain autograd, (dim,)."""
    return sketched(model, row_gradient(model, list(prompt_ids), list(ids), mask))
