"""The target stage: takes a run's targets at its checkpoints and stores them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from behaviortrace.draws.checkpoint import Loader, Policy, need_recipe, open_policy
from behaviortrace.plant import behaviors
from behaviortrace.recipe import Recipe, TrainSettings
from behaviortrace.records import Target
from behaviortrace.targets import registry
from behaviortrace.targets.registry import Context, TargetUnavailable

if TYPE_CHECKING:
    from behaviortrace.run import Run
    from behaviortrace.train.progress import Progress

COSINES = "results/target_cosines"


def make_targets(
    run: Run, loader: Loader | None = None, *, progress: Progress | None = None
) -> dict[str, str]:
    """Take and store every target the recipe names.

    Each is taken at ``draw.checkpoint``; those that need no sampling also at every other saved
    checkpoint, which TracInCP sums over. Stored targets are replaced.

    Args:
        run: a trained run with a recipe.
        loader: how to load a checkpoint folder; by default as any model source is loaded.
        progress: called with the stage "target", in checkpoints.

    Returns:
        Name -> reason of each target that could not be made at ``draw.checkpoint``; also stored as
        ``results/targets_missing``.

    Raises:
        BehaviorTraceError: no recipe, unknown target name, or a missing checkpoint.
    """
    from behaviortrace.train.progress import Clock

    recipe = need_recipe(run)
    kinds = [registry.get(name) for name in recipe.targets.names]
    analysed = recipe.draw.checkpoint
    others = [step for step in sorted(run.checkpoints()) if step != analysed]
    if not any(kind.each_checkpoint for kind in kinds):
        others = []
    clock = Clock(progress, "target", 1 + len(others))
    missing: dict[str, str] = {}
    for done, step in enumerate([analysed, *others], start=1):
        context = _context(recipe, open_policy(run, step, loader))
        for kind in kinds:
            if step != analysed and (not kind.each_checkpoint or kind.name in missing):
                continue
            try:
                run.save_target(_with_rate(kind(context), recipe.train))
            except TargetUnavailable as reason:
                if step != analysed:
                    raise
                missing[kind.name] = str(reason)
        clock.at(done)
    run.save_json("results/targets_missing", missing)
    _save_cosines(run, analysed)
    return missing


def target_cosines(run: Run) -> dict[str, float]:
    """Cosine of each pair of targets taken at ``draw.checkpoint``, keyed "cosine_NAME_NAME".

    Read from ``results/target_cosines``, which a run made before there was one gets now.

    Raises:
        BehaviorTraceError: the run has neither that nor its targets' vectors.
    """
    if not run.has(COSINES):
        _save_cosines(run, need_recipe(run).draw.checkpoint)
    found: dict[str, float] = run.json(COSINES)
    return found


def _save_cosines(run: Run, step: int) -> None:
    unit = {
        name: target.vector / np.linalg.norm(target.vector)
        for name, series in sorted(run.targets().items())
        for target in series
        if target.step == step and np.linalg.norm(target.vector) > 0
    }
    pairs = itertools.combinations(unit, 2)
    run.save_json(COSINES, {f"cosine_{a}_{b}": float(unit[a] @ unit[b]) for a, b in pairs})


def learning_rate(train: TrainSettings, step: int) -> float:
    """Learning rate of the step taken from the checkpoint of ``step``, in the recipe's schedule."""
    share = min(step / train.steps, 1.0)
    factor = {
        "constant": 1.0,
        "linear": 1.0 - share,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * share)),
    }
    return train.learning_rate * factor[train.lr_schedule]


def _context(recipe: Recipe, policy: Policy) -> Context:
    from behaviortrace.plant.prompts import build_prompts

    return Context(policy, recipe, build_prompts(recipe), behaviors.build(recipe.behavior))


def _with_rate(target: Target, train: TrainSettings) -> Target:
    meta = {**target.meta, "learning_rate": learning_rate(train, target.step)}
    return dataclasses.replace(target, meta=meta)
