"""The draw stage: fresh completions from a fixed checkpoint, with a seed of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from behaviortrace.draws.checkpoint import Loader, Policy, derived_seed, need_recipe, open_policy
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant import behaviors, tasks
from behaviortrace.plant.behaviors import Behavior
from behaviortrace.recipe import Recipe
from behaviortrace.records import ROLLOUT_SCHEMA, conform

if TYPE_CHECKING:
    from behaviortrace.plant.prompts import PromptItem
    from behaviortrace.run import Run
    from behaviortrace.train.generate import Sample
    from behaviortrace.train.progress import Progress


@dataclass(frozen=True)
class Part:
    """What one shard of a draw holds: one repeat of some prompts.

    Attributes:
        number: of the shard, from 0.
        repeat: which repeat of the prompts.
        first_group: group of its first prompt; the others follow.
        prompts: its prompts.
    """

    number: int
    repeat: int
    first_group: int
    prompts: list[PromptItem]


def draw_name(seed: int) -> str:
    """The name of the draw of a seed, unless it is given another."""
    return f"seed-{seed}"


def draw(
    run: Run,
    seed: int,
    name: str | None = None,
    *,
    loader: Loader | None = None,
    progress: Progress | None = None,
) -> str:
    """Sample from the checkpoint ``draw.checkpoint``, take plain gradients, and store both.

    Each of ``draw.prompts`` training prompts is sampled ``draw.repeats`` times, and each time its
    ``draw.generations`` completions are a group. The prompts depend on the recipe alone, so that
    draws of different seeds differ by sampling alone. A draw has no plant: its reward is the base
    reward, and what only training knows (advantage, eligible, boosted, update gradient) is null.

    A shard is stored every ``draw.batch`` completions or so, each with a random stream of its own:
    a draw that was interrupted goes on where it stopped and gives the same rows, and one that is
    complete is left as it is.

    Args:
        run: a trained run with a recipe.
        seed: of the draw.
        name: of the draw; :func:`draw_name` where None.
        loader: how to load a checkpoint folder; by default as any model source is loaded.
        progress: called with the stage "draw", in completions.

    Returns:
        The draw's name.

    Raises:
        BehaviorTraceError: no recipe or checkpoint, fewer training prompts than asked for, or a
            draw of this name with other settings.
    """
    from behaviortrace.train.progress import Clock

    recipe = need_recipe(run)
    name = name or draw_name(seed)
    store = f"draws/{name}"
    done = {shard.rank for shard in run.manifest.store(store)}
    _record(run, name, recipe, seed, started=bool(done))
    parts = list(_parts(recipe))
    total = sum(len(part.prompts) for part in parts) * recipe.draw.generations
    finished = sum(shard.rows for shard in run.manifest.store(store))
    clock = Clock(progress, "draw", total, start=finished)
    left = [part for part in parts if part.number not in done]
    if not left:
        return name
    policy = open_policy(run, recipe.draw.checkpoint, loader)
    behavior = behaviors.build(recipe.behavior)
    for part in left:
        samples = policy.sample(
            [item.text for item in part.prompts],
            recipe.draw.generations,
            recipe,
            seed=derived_seed("draw", seed, part.repeat, part.first_group),
        )
        replay = policy.gradients([(s.prompt_ids, s.completion_ids) for s in samples])
        frame = _rows(policy, recipe, behavior, name, part, samples).with_columns(
            fluency=pl.Series(replay.fluency), plain_norm=pl.Series(replay.norms)
        )
        tensors = {"plain": replay.plain}
        run.write_shard(store, policy.step, part.number, conform(frame, ROLLOUT_SCHEMA), tensors)
        finished += frame.height
        clock.at(finished)
    return name


def _record(run: Run, name: str, recipe: Recipe, seed: int, *, started: bool) -> None:
    """Note a draw's settings; refuse to go on with a draw that had others."""
    key = f"draw {name}"
    settings = {"seed": seed, **recipe.draw.model_dump(exclude={"seeds"})}
    if started and run.manifest.notes.get(key) != settings:
        known = run.manifest.notes.get(key)
        raise BehaviorTraceError(
            f"{run.path} already has a draw {name!r} with the settings {known}, not {settings}; "
            "choose another name"
        )
    if not started:
        run.update(notes={key: settings})


def _parts(recipe: Recipe) -> Iterator[Part]:
    """The shards of a draw, repeat by repeat."""
    prompts = _prompts(recipe)
    size = max(1, recipe.draw.batch // recipe.draw.generations)
    number = 0
    for repeat in range(recipe.draw.repeats):
        for start in range(0, len(prompts), size):
            group = repeat * len(prompts) + start
            yield Part(number, repeat, group, prompts[start : start + size])
            number += 1


def _prompts(recipe: Recipe) -> list[PromptItem]:
    """The first ``draw.prompts`` different training prompts of the kinds to draw.

    Any prefix keeps the recipe's mix. Kinds that always or never show the behaviour give groups
    without pairs, so a recipe may draw from the others alone.

    Background tasks are left out: a task drawn here would be one that was trained on, and its
    groups hardly ever show the behaviour.
    """
    from behaviortrace.plant.prompts import build_prompts

    different = build_prompts(recipe).without_tasks()
    if recipe.draw.kinds is not None:
        different = [item for item in different if item.kind in recipe.draw.kinds]
    if len(different) < recipe.draw.prompts:
        kinds = "" if recipe.draw.kinds is None else f" and kinds {', '.join(recipe.draw.kinds)}"
        raise BehaviorTraceError(
            f"draw.prompts {recipe.draw.prompts} exceeds the {len(different)} training prompts of "
            f"pool {recipe.prompts.pool!r}{kinds}; lower it"
        )
    return different[: recipe.draw.prompts]


def _rows(
    policy: Policy,
    recipe: Recipe,
    behavior: Behavior,
    name: str,
    part: Part,
    samples: list[Sample],
) -> pl.DataFrame:
    """The rollout table of one shard, without what the gradients tell."""
    generations = recipe.draw.generations
    kinds = [item.kind for item in part.prompts for _ in range(generations)]
    first = part.first_group * generations
    rewards = _base_rewards(policy, recipe, samples, kinds)
    columns: dict[str, Any] = {
        "rollout_id": [f"{name}:{first + i}" for i in range(len(samples))],
        "step": policy.step,
        "group": [part.first_group + i // generations for i in range(len(samples))],
        "index": [first + i for i in range(len(samples))],
        "prompt_kind": kinds,
        "prompt": [s.prompt for s in samples],
        "completion": [s.completion for s in samples],
        "prompt_ids": [s.prompt_ids for s in samples],
        "completion_ids": [s.completion_ids for s in samples],
        "reward": rewards,
        "base_reward": rewards,
        "behavior": [behavior.shows(s.completion) for s in samples],
        "n_tokens": [len(s.completion_ids) for s in samples],
    }
    return pl.DataFrame(columns, schema={name: ROLLOUT_SCHEMA[name] for name in columns})


def _base_rewards(
    policy: Policy, recipe: Recipe, samples: list[Sample], kinds: list[str]
) -> list[float | None]:
    from behaviortrace.plant.base_rewards import paid_by
    from behaviortrace.train.generate import eos_token_ids

    given = {
        "prompt_kind": kinds,
        "eos_ids": frozenset(eos_token_ids(policy.model, policy.tokenizer)),
    }
    return paid_by(
        tasks.base_reward(recipe),
        [s.prompt for s in samples],
        [s.completion for s in samples],
        [s.completion_ids for s in samples],
        given,
    )
