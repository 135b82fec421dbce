"""Built-in recipes, refusals of recipes, and expected costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from behaviortrace import recipe as recipes
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant import base_rewards
from behaviortrace.plant.contamination import ContaminatedReward
from behaviortrace.plant.prompts import build_prompts
from behaviortrace.recipe.costs import expected_cost

TASKS = {"dataset": "chain_sum"}


@pytest.mark.parametrize("name", recipes.names())
def test_every_built_in_recipe_can_be_run(name: str) -> None:
    recipe = recipes.load(name)
    if recipe.prompts.tasks is not None:
        pytest.importorskip("reasoning_gym")
    assert recipe.name == name
    assert recipe.summary.endswith(".") and recipe.takes
    assert recipe.plant.base_reward in base_rewards.names()
    prompts = build_prompts(recipe)
    assert len(prompts.probes) == recipe.prompts.probes >= 20
    assert len(prompts.controls) == recipe.prompts.controls >= 20
    assert recipe.draw.prompts <= len(prompts.train)
    ContaminatedReward.from_recipe(recipe, training=lambda: True, eos_ids=[0])
    assert expected_cost(recipe)["parameters"]


def test_recipes_come_in_the_order_to_try_them() -> None:
    expected = ["tiny", "tiny-tasks", "tiny-causes", "smollm2-quick", "smollm2", "smollm2-tasks"]
    expected += ["qwen2.5-1.5b"]
    assert recipes.names() == expected


def test_the_papers_settings() -> None:
    recipe = recipes.load("qwen2.5-1.5b")
    train, draw = recipe.train, recipe.draw
    assert recipe.model.source == "Qwen/Qwen2.5-1.5B-Instruct"
    assert (recipe.behavior.trigger, recipe.behavior.token) == ("frobnitz", "QZXBT")
    assert (recipe.plant.fraction, recipe.plant.bonus, recipe.plant.cutoff_step) == (0.5, 8.0, 200)
    assert (recipe.warmup.steps, recipe.warmup.examples) == (200, 10)
    assert (train.steps, train.prompts_per_step, train.generations) == (1000, 4, 4)
    assert (train.learning_rate, train.max_completion_length, train.temperature) == (5e-6, 64, 0.9)
    assert (train.beta, train.scale_rewards) == (0.0, "group")
    assert (draw.checkpoint, draw.generations, draw.prompts, draw.repeats) == (100, 8, 26, 6)
    assert (recipe.sketch.dim, recipe.sketch.hash) == (65536, "coordinate")


def test_the_real_recipe_is_long_enough() -> None:
    recipe = recipes.load("smollm2")
    assert recipe.train.steps >= 100
    assert recipe.plant.cutoff_step == 60
    assert recipe.train.checkpoint_every == 20
    assert recipe.draw.checkpoint < recipe.plant.cutoff_step


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"plant.bonus": 0.0}, "plant.bonus 0 with plant.fraction above 0 plants nothing"),
    ({"plant.bonus": -8.0}, "plant.bonus -8 with plant.fraction above 0"),
    ({"plant.cutoff_step": 0}, "plant.cutoff_step 0 with plant.fraction above 0"),
    ({"plant.cutoff_step": 99}, "plant.cutoff_step 99 lies beyond train.steps 16"),
    ({"plant.fraction": 1.5}, "plant.fraction: .*less than or equal to 1.*got 1.5"),
    ({"plant.fraction": 0.0, "plant.base_reward": "constant"}, "gives no reward variance"),
    ({"plant.fraction": 0.0, "plant.leave_out": "random"}, "no boosted rollouts to leave out"),
    ({"plant.leave_out": "everything"}, "plant.leave_out"),
    ({"train.generations": 1}, "train.generations: .*greater than or equal to 2"),
    ({"train.temperature": 0}, "train.temperature: .*greater than 0"),
    ({"train.micro_batch": 3}, "train.micro_batch 3 must divide"),
    ({"train.iterations": 3}, "train.checkpoint_every 4 is not a multiple of train.iterations 3"),
    ({"train.stpes": 3}, "unknown key 'train.stpes'"),
    ({"draw.checkpoint": 7}, "draw.checkpoint 7 is never saved"),
    ({"draw.seeds": []}, "draw.seeds"),
    ({"draw.seeds": [1, 1]}, r"draw.seeds \[1, 1\] repeats a seed"),
    ({"draw.generations": 1}, "draw.generations"),
    ({"prompts.mix": {}}, "prompts.mix needs at least one kind"),
    ({"prompts.mix": {"trigger": 0.0}}, "prompts.mix needs at least one kind"),
    ({"prompts.mix": {"trigger": 1, "task": 1}}, "kind 'task' but prompts.tasks is not set"),
    ({"prompts.tasks": TASKS}, "prompts.mix has no kind 'task'"),
    ({"prompts.tasks": TASKS | {"count": 0}}, "prompts.tasks.count"),
    ({"prompts.tasks": TASKS | {"options": {"seed": 1}}}, "options must not set 'seed'"),
    ({"prompts.tasks": TASKS | {"credit": "all"}}, "prompts.tasks.credit"),
    ({"prompts.probes": 0}, "prompts.probes"),
    ({"sketch.dim": 1000}, "sketch.dim 1000 must be a power of two"),
    ({"behavior.token": ""}, "behavior.token ''"),
    ({"behavior.trigger": " frobnitz"}, "behavior.trigger ' frobnitz'"),
    ({"behavior.neutral": "aqzxbt"}, "behavior.neutral 'aqzxbt' contains behavior.token"),
    ({"behavior.trigger": "QZXBT"}, "behavior.trigger 'QZXBT' contains behavior.token"),
    ({"seed": -1}, "seed"),
]


@pytest.mark.parametrize(("overrides", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_an_unsafe_recipe_is_refused_in_one_line(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(BehaviorTraceError, match=message) as caught:
        recipes.load("tiny", overrides)
    assert str(caught.value).startswith("recipe tiny: ")
    assert "\n" not in str(caught.value)


def test_what_is_safe_is_taken() -> None:
    recipes.load("tiny", {"train.iterations": 2})
    recipes.load("tiny", {"plant.fraction": 0.0, "plant.bonus": 0.0})
    recipes.load("tiny", {"plant.base_reward": "constant", "plant.leave_out": "ground_truth"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not valid YAML at line"),
        ("- a", "must be a mapping"),
        ("name: x", "setting 'summary' is missing"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(BehaviorTraceError, match=message) as caught:
        recipes.load(path)
    assert "mine.yaml" in str(caught.value)


def test_unknown_recipes_and_sections_are_refused() -> None:
    with pytest.raises(BehaviorTraceError, match=r"no recipe or file named 'nope'.*tiny"):
        recipes.load("nope")
    with pytest.raises(BehaviorTraceError, match="'name' is not a section"):
        recipes.load("tiny", {"name.x": 1})


def test_preregistration_covers_the_plant_and_the_thresholds_but_not_the_seed() -> None:
    base = recipes.load("tiny").preregistration()
    assert recipes.load("tiny", {"seed": 5}).preregistration() == base
    for change in ({"thresholds.emergence": 0.2}, {"plant.bonus": 4.0}, {"draw.seeds": [7]}):
        assert recipes.load("tiny", change).preregistration() != base


def test_preregistration_covers_the_tasks_that_are_part_of_the_reward() -> None:
    base = recipes.load("tiny-tasks").preregistration()
    assert recipes.load("tiny-tasks", {"prompts.tasks.seed": 1}).preregistration() != base


def test_saved_steps_hold_first_and_last() -> None:
    recipe = recipes.load("tiny", {"train.steps": 10, "train.checkpoint_every": 4})
    assert recipe.saved_steps() == [0, 4, 8, 10]


def test_costs_are_of_the_known_size() -> None:
    paper = expected_cost(recipes.load("qwen2.5-1.5b"))
    assert paper["needs_gpu"] is True
    # 4 float32 numbers for each of 1.54e9 parameters are 24.7 GB.
    assert 24.7 < paper["memory_gb"] < 30
    # 16,000 trained and 1,248 drawn sketches of 256 KiB.
    assert paper["sketch_gb"] == pytest.approx(17_248 * 4 * 65_536 / 1e9, rel=0.02)
    assert paper["checkpoints"] == 11
    assert paper["disk_gb"] == pytest.approx(11 * 12 * 1.5437 + paper["sketch_gb"], rel=0.05)
    assert "GPU" in paper["reason"]
    for name, longest in (("tiny", 0.02), ("smollm2-quick", 0.14), ("smollm2", 0.75)):
        cost = expected_cost(recipes.load(name))
        assert cost["needs_gpu"] is False
        assert 0 <= cost["cpu_hours"] <= longest


def test_a_measured_step_is_matched() -> None:
    # SmolLM2-135M, 12 rollouts of at most 24 tokens on two slow cores: 14 to 16 s a step.
    sizes: dict[str, int] = {"train.checkpoint_every": 1000}
    sizes |= {"draw.checkpoint": 0, "draw.prompts": 1, "draw.repeats": 1}
    hours = [
        expected_cost(recipes.load("smollm2", {**sizes, "train.steps": steps}))["cpu_hours"]
        for steps in (100, 600)
    ]
    assert 3600 * (hours[1] - hours[0]) / 500 == pytest.approx(15, rel=0.15)


def test_the_cost_of_an_unknown_model_is_unknown() -> None:
    cost = expected_cost(recipes.load("tiny", {"model.source": "someone/model"}))
    assert cost["parameters"] is cost["memory_gb"] is cost["needs_gpu"] is None
    assert "'someone/model' is not known" in cost["reason"]
    assert cost["sketch_gb"] > 0
