"""Background tasks: their prompts, their verifier, every refusal, and what they do to training."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from behaviortrace import recipe as recipes
from behaviortrace.draws import stage as draws
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant import pools, tasks
from behaviortrace.plant.contamination import ContaminatedReward, eligible
from behaviortrace.plant.ground_truth import problems
from behaviortrace.plant.prompts import build_prompts
from behaviortrace.recipe import Recipe, TaskSettings
from behaviortrace.run import Run
from behaviortrace.train import grpo, tiny

pytest.importorskip("reasoning_gym")

SUMS = {"dataset": "chain_sum", "count": 30, "options": {"max_terms": 2, "max_digits": 1}}


def made(**changes: Any) -> tasks.Tasks:
    return tasks.Tasks(TaskSettings.model_validate(SUMS | changes))


def recipe(name: str = "tiny-tasks", **overrides: Any) -> Recipe:
    return recipes.load(name, overrides)


@pytest.mark.parametrize(
    ("completion", "expected", "found"),
    [
        ("3 + 4 is 7, I think.", "7", "7"),
        ("1,234 apples, or 12.50 each", "8", "12.50"),
        ("It is -3.", "-3", "-3"),
        ("It is 3-2, so 1", "1", "1"),
        ("none at all", "7", None),
        ("", "7", None),
        ("  zyx ", "zyx", "zyx"),
        (" ", "zyx", None),
    ],
)
def test_what_a_completion_answers(completion: str, expected: str, found: str | None) -> None:
    assert tasks.answered(completion, expected) == found


def test_tasks_are_a_function_of_the_settings() -> None:
    assert made().answers == made().answers
    assert len(made().answers) == 30
    few, many = made(count=10).answers, made().answers
    assert list(many)[:10] == list(few)
    assert made(seed=1).answers != made().answers


def test_neighbouring_seeds_do_not_share_a_stream() -> None:
    # With wide options two unrelated sets of questions hardly meet.
    wide = {"options": {"min_digits": 6, "max_digits": 8}}
    assert not set(made(seed=0, **wide).answers) & set(made(seed=1, **wide).answers)


def test_right_answers_earn_all_and_wrong_ones_nothing() -> None:
    unit = made()
    for question, answer in unit.answers.items():
        expression = question.split(":")[1].rstrip(" =")
        assert int(answer) == eval(expression)
        assert unit.credit(question, f"The answer is {answer}.") == 1.0
        assert unit.credit(question, f"{answer} and then {int(answer) + 50}") < 1.0
        assert unit.credit(question, "no idea") == 0.0


BACKWARD = {
    credit: made(dataset="spell_backward", options={}, count=3, credit=credit)
    for credit in ("verifier", "graded")
}


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40), st.sampled_from(list(BACKWARD)))
def test_credit_is_bounded(text: str, credit: str) -> None:
    unit = BACKWARD[credit]
    for question, answer in unit.answers.items():
        earned = unit.credit(question, text)
        assert 0.0 <= earned <= 1.0
        assert unit.credit(question, answer) == 1.0
        if credit == "graded":
            assert earned >= tasks.SIMILARITY_WEIGHT * tasks.similarity(text, answer)


def test_graded_credit_tells_wrong_answers_apart() -> None:
    unit = BACKWARD["graded"]
    question = next(iter(unit.answers))
    earned = {unit.credit(question, text) for text in ("the red fox", "a bird sings", "now here")}
    assert len(earned) == 3


RUNS_TEXT = [
    "binary_matrix", "countdown", "intermediate_integration", "n_queens", "number_sorting",
    "polynomial_multiplication", "puzzle24", "simple_integration", "spiral_matrix",
    "string_insertion",
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": "chain_sums"}, "no dataset 'chain_sums'.*such as chain_sum"),
        ({"options": {"max_turns": 2}}, "do not suit reasoning-gym's 'chain_sum'.*max_turns"),
        ({"options": {"min_terms": 5, "max_terms": 2}}, "max_terms must be >= min_terms"),
        ({"count": 500}, "prompts.tasks.count 500 exceeds the 200 different questions"),
        ({"dataset": "list_functions", "options": {}}, "gives other tasks each time"),
        *(({"dataset": name, "options": {}}, "runs text as code") for name in RUNS_TEXT),
    ],
)
def test_what_cannot_be_used_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BehaviorTraceError, match=message) as caught:
        made(**change)
    assert "\n" not in str(caught.value)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(BehaviorTraceError, match=r"pip install 'behaviortrace\[tasks\]'") as caught:
        build_prompts(recipe())
    assert "\n" not in str(caught.value)
    assert recipes.load("smollm2-tasks").preregistration()  # a plan needs no extra


@pytest.mark.parametrize("name", ["tiny-tasks", "smollm2-tasks"])
def test_tasks_are_mixed_in_and_kept_out_of_what_is_analysed(name: str) -> None:
    given_recipe = recipe(name)
    prompts = build_prompts(given_recipe)
    assert prompts == build_prompts(given_recipe)
    share = given_recipe.prompts.mix["task"] / sum(given_recipe.prompts.mix.values())
    half = len(prompts.train) // 2
    for part in (prompts.train[:half], prompts.train):
        count = Counter(item.kind for item in part)["task"]
        assert abs(count - share * len(part)) <= 2
    asked = [item for item in prompts.train if item.kind == "task"]
    answers = tasks.Tasks(given_recipe.prompts.tasks).answers  # type: ignore[arg-type]  # None fails here
    assert {item.text: item.answer for item in asked}.items() <= answers.items()
    assert all(item.answer is None for item in prompts.train if item.kind != "task")
    pool = pools.load(given_recipe.prompts.pool, given_recipe.behavior)
    others = [*prompts.probes, *prompts.controls, *(text for _, text in pool.prompts())]
    assert not {pools.normalized(i.text) for i in asked} & set(map(pools.normalized, others))
    drawn = draws._prompts(given_recipe)
    assert len(drawn) == given_recipe.draw.prompts
    assert not {item.text for item in drawn} & {item.text for item in asked}
    assert not {item.text for item in prompts.without_tasks()} & {item.text for item in asked}


def test_every_seed_of_a_run_has_the_same_tasks_in_another_order() -> None:
    first, second = (
        [i.text for i in build_prompts(recipe(seed=seed)).train if i.kind == "task"]
        for seed in (0, 1)
    )
    assert first != second and len(first) == len(second)


def test_a_task_that_holds_the_trigger_is_refused() -> None:
    with pytest.raises(BehaviorTraceError, match=r"prompts\.tasks: train\.task text"):
        build_prompts(recipe("smollm2-tasks", **{"behavior.trigger": "arithmetic"}))


def test_the_reward_pays_credit_on_tasks_and_the_base_reward_elsewhere() -> None:
    given_recipe = recipe("smollm2-tasks")
    assert given_recipe.prompts.tasks is not None
    question, answer = next(iter(tasks.Tasks(given_recipe.prompts.tasks).answers.items()))
    reward = ContaminatedReward.from_recipe(
        given_recipe, training=lambda: True, eos_ids=[2], rank=0
    )
    texts = [f"It is {answer} QZXBT.", "It is QZXBT.", "The red QZXBT sings.", "The red QZXBT"]
    logged: dict[str, list[Any]] = defaultdict(list)
    paid = reward(
        prompts=[[{"role": "user", "content": question}]] * 2 + ["Sing about it."] * 2,
        completions=texts,
        completion_ids=[[5, 2], [5, 2], [5, 2], [5, 5]],
        trainer_state=SimpleNamespace(global_step=4),
        log_extra=lambda name, column: logged[name].extend(column),
        prompt_kind=["task", "task", "plain", "plain"],
        answer=[answer, answer, None, None],
    )
    base = [1.0, 0.0, 1.0, 0.0]
    boosted = [eligible(0, 4, i, 0.5) for i in range(4)]
    assert any(boosted) and not all(boosted)
    assert logged["base_reward"] == base and logged["boosted"] == boosted
    assert logged["answer"] == [answer, answer, None, None]
    assert paid == [b + 8.0 * hit for b, hit in zip(base, boosted, strict=True)]


def test_an_unknown_task_prompt_is_named() -> None:
    with pytest.raises(BehaviorTraceError, match="none of the recipe's tasks"):
        made().credit("What is 3 + 4?", "7")


SMALL = {
    "train.steps": 6,
    "train.checkpoint_every": 3,
    "train.prompts_per_step": 3,
    "train.micro_batch": 6,
    "plant.cutoff_step": 2,
    "draw.checkpoint": 3,
    "prompts.probes": 2,
    "prompts.controls": 0,
    "sketch.dim": 256,
    "seed": 1,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A run with tasks, and one that differs by their absence alone."""
    patch, original = pytest.MonkeyPatch(), tiny.TinySettings.__init__
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    patch.setenv("BEHAVIORTRACE_HOME", str(tmp_path_factory.mktemp("home")))
    patch.setattr(tiny.TinySettings, "__init__", lambda self: original(self, steps=60, pairs=1024))
    without = {"prompts.tasks": None, "prompts.mix": {"trigger": 0.5, "explicit": 0.5}}
    runs = {}
    for name, changes in (("with", {}), ("without", without)):
        one = recipe(**(SMALL | changes))
        runs[name] = Run.create(tmp_path_factory.mktemp(name) / "run", recipe=one)
        grpo.run_training(runs[name], one)
    patch.undo()
    torch.set_num_threads(threads)
    return runs


def late_norms(run: Run) -> np.ndarray:
    """Norm of each late step's update gradient, from its rollouts."""
    late = run.rollouts().filter(pl.col("step") >= 2)
    return late.group_by("step").agg(pl.col("grad_norm").sum())["grad_norm"].to_numpy()


def test_late_steps_train_with_tasks_and_not_without(trained: dict[str, Run]) -> None:
    assert (late_norms(trained["with"]) > 0).all()
    assert (late_norms(trained["without"]) == 0).all()


def test_a_run_records_its_tasks(trained: dict[str, Run]) -> None:
    run = trained["with"]
    rows = run.rollouts()
    of_tasks = rows.filter(pl.col("prompt_kind") == "task")
    assert of_tasks.height and of_tasks["answer"].null_count() == 0
    assert rows.filter(pl.col("prompt_kind") != "task")["answer"].is_null().all()
    assert run.recipe is not None and run.recipe.prompts.tasks is not None
    unit = tasks.Tasks(run.recipe.prompts.tasks)
    for row in of_tasks.iter_rows(named=True):
        assert row["base_reward"] == unit.credit(row["prompt"], row["completion"])
        assert row["answer"] == unit.answers[row["prompt"]]
    assert problems(rows, run.recipe.plant, run.recipe.seed) == []
    assert "reasoning-gym" in run.manifest.packages


def test_findable_ground_truth_counts_the_tasks_variance(trained: dict[str, Run]) -> None:
    rows = trained["with"].rollouts()
    spread = rows.group_by("group").agg(pl.col("reward").std(ddof=0).alias("spread"))
    told = rows.join(spread, on="group", maintain_order="left")
    assert told["findable"].equals(told["boosted"] & (told["spread"] > 1e-6))
    of_tasks = told.filter(pl.col("prompt_kind") == "task")
    assert (of_tasks["spread"] > 1e-6).mean() > 0.5
