"""`behaviortrace plan`: what it says of every recipe, and that its advice works."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from scipy import stats

from behaviortrace import cli
from behaviortrace import recipe as recipes
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate.plan import plan
from behaviortrace.recipe.costs import expected_cost

LEVELS = ["emergence", "step", "training", "rollout", "token"]


def planned(name: str, changes: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    return plan(recipes.load(name, changes), **options)


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_can_be_planned(name: str) -> None:
    found = planned(name)
    for level in LEVELS:
        assert isinstance(found[level]["answers"], bool)
        assert found[level]["sentence"]
    step = found["step"]
    assert 0 < step["n_findable"] <= step["n_boosted"] < step["n_rollouts"]
    assert step["chance"] < step["chance_trained_window"] < step["ceiling_trained_window"] < 1
    assert found["cost"] == expected_cost(recipes.load(name))
    json.dumps(found, allow_nan=False)


def test_the_papers_run_has_the_headroom_the_paper_found() -> None:
    step = planned("qwen2.5-1.5b", rate=0.94)["step"]
    assert step["chance_trained_window"] == pytest.approx(0.47)
    assert step["ceiling_trained_window"] == pytest.approx(0.58, abs=0.02)
    assert step["room"] == pytest.approx(0.11, abs=0.02)
    assert step["n_boosted"] == pytest.approx(0.47 * 3200)


def test_the_papers_draw_is_precise_enough_only_were_its_repeats_independent() -> None:
    """26 prompts, six groups of each: as 156 prompts they would do; as 26 they do not."""
    apart = {"draw.prompts": 156, "draw.repeats": 1}
    found, as_it_is = (
        planned("qwen2.5-1.5b", changes, rate=0.85, draws=2)["rollout"] for changes in (apart, {})
    )
    assert found["answers"] and found["width"] < 0.15
    assert found["pairs"] == pytest.approx(882, rel=0.05)
    assert (found["design_effect"], as_it_is["design_effect"]) == (1.0, 2.0)
    assert as_it_is["pairs"] == found["pairs"] and as_it_is["prompts"] == 26
    assert not as_it_is["answers"] and as_it_is["width"] > 1.4 * found["width"]
    assert "in 156 groups of 26 prompts" in as_it_is["sentence"]
    # The paper's point: with its spread between seeds, three seeds tell no AUC it saw from 0.5.
    assert found["smallest_auc"] < 0.6 < 0.65 < found["smallest_auc_study"]


def test_the_advice_on_a_draws_prompts_brings_the_width_under_the_limit() -> None:
    found = planned("smollm2")["rollout"]
    assert not found["answers"] and found["width"] > found["width_limit"]
    prompts = int(re.search(r"raise draw\.prompts to (\d+)", found["sentence"])[1])  # type: ignore[index]  # no match fails here
    better = planned("smollm2", {"draw.prompts": prompts})["rollout"]
    assert better["answers"] and better["width"] <= better["width_limit"]
    assert not planned("smollm2", {"draw.prompts": prompts - 1})["rollout"]["answers"]


def test_the_advice_counts_prompts_where_they_repeat() -> None:
    changes = {"draw.repeats": 4, "draw.prompts": 12}
    found = planned("smollm2", changes)["rollout"]
    advised = re.search(r"raise draw\.prompts to (\d+)", found["sentence"])
    assert advised and not found["answers"]
    prompts = int(advised[1])
    better = planned("smollm2", {**changes, "draw.prompts": prompts})["rollout"]
    assert better["answers"] and better["width"] <= better["width_limit"]
    fewer = planned("smollm2", {**changes, "draw.prompts": prompts - 1})["rollout"]
    assert not fewer["answers"]


def test_prompts_that_come_round_in_training_count_once() -> None:
    """104 prompts, asked 300 times in 100 steps of three; in 30 steps none comes round."""
    short = {"train.steps": 30, "plant.cutoff_step": 30, "draw.checkpoint": 20}
    once, again = (planned("smollm2", changes)["training"]["behavior"] for changes in (short, {}))
    assert (once["prompts"], once["groups"], once["design_effect"]) == (90, 90, 1.0)
    assert (again["prompts"], again["groups"]) == (104, 300)
    assert again["design_effect"] == pytest.approx(1 + (300 / 104 - 1) * 0.2)


def test_tokens_are_counted_by_prompt() -> None:
    one, many = (
        planned("smollm2", {"draw.prompts": 20, "draw.repeats": repeats})["token"]
        for repeats in (1, 8)
    )
    assert one["prompts"] < many["prompts"] <= 20
    assert many["responses"] > 2 * one["responses"]


def test_the_advice_on_prompts_gives_steps_their_headroom() -> None:
    changes = {"thresholds.headroom": 0.2, "thresholds.step_margin": 0.2, "plant.cutoff_step": 100}
    found = planned("smollm2", changes, rate=0.6)["step"]
    assert not found["answers"] and "score rollouts instead" in found["sentence"]
    advised = re.search(r"prompts_per_step to (\d) and micro_batch to (\d)", found["sentence"])
    assert advised
    smaller = {"train.prompts_per_step": int(advised[1]), "train.micro_batch": int(advised[2])}
    better = planned("smollm2", {**changes, **smaller}, rate=0.6)
    assert better["step"]["answers"] and better["step"]["room"] > found["room"]


def test_nothing_planted_leaves_nothing_to_rank() -> None:
    step = planned("smollm2", {"plant.fraction": 0.0})["step"]
    assert step["answers"] is False and "nothing is planted" in step["sentence"]


def test_tasks_take_a_share_of_the_ground_truth() -> None:
    without, with_tasks = (planned(name)["step"] for name in ("smollm2", "smollm2-tasks"))
    recipe = recipes.load("smollm2-tasks")
    mix = recipe.prompts.mix
    left = 1 - mix["task"] / sum(mix.values())
    more = recipe.train.prompts_per_step / recipes.load("smollm2").train.prompts_per_step
    assert with_tasks["n_boosted"] == pytest.approx(left * more * without["n_boosted"])


def test_one_seed_is_told_to_sweep() -> None:
    found = planned("smollm2", seeds=1)["rollout"]
    assert found["smallest_auc_study"] is None and "sweep three or more" in found["sentence"]


def test_a_behaviour_that_is_unlearned_must_have_shown_more_often() -> None:
    """Of 20 responses at one of 5 checkpoints 7 are needed: 6 are too many for luck (p 0.056)."""
    found = planned("smollm2")["emergence"]
    assert found["smallest_s_b"] == pytest.approx(0.202, abs=5e-4)
    assert stats.binom.sf(6, 20, found["smallest_s_b_unlearned"]) == pytest.approx(0.8)
    assert "unlearned by the end, from 0.42 on at one of 5 checkpoints" in found["sentence"]


def test_too_few_probes_for_the_bar_are_named() -> None:
    found = planned("tiny", {"thresholds.emergence": 1.0})["emergence"]
    assert found["answers"] is False and "lower thresholds.emergence" in found["sentence"]


@pytest.mark.parametrize("options", [{"rate": 0.0}, {"rate": 1.0}, {"seeds": 0}, {"draws": -1}])
def test_what_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BehaviorTraceError, match="give"):
        planned("tiny", **options)


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    return int(stop.value.code or 0)


def test_the_command_prints_levels_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", "smollm2", "--rate", "0.5", "--set", "draw.repeats=9", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["assumed"]["behavior_rate"] == 0.5
    assert found["rollout"]["groups"] == 26 * 9
    assert call("plan", "smollm2") == 0
    printed = " ".join(capsys.readouterr().out.split())
    for level in ("step level: ", "rollout level, draws: ", "token level: ", "cost: "):
        assert level in printed
    assert "134.5 M parameters" in printed


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["tiny", "--rate", "2"], ["tiny", "--set", "draw.repeets=3"]]
)
def test_a_bad_plan_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", *arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("rate", [1e-200, 1e-9, 1 - 1e-10])
def test_a_label_that_is_never_mixed_needs_another_checkpoint(rate: float) -> None:
    found = planned("smollm2", rate=rate)["rollout"]
    assert found["groups_needed"] is None and not found["answers"]
    assert "neither rare nor saturated" in found["sentence"]
    assert "no interval" in found["sentence"] and "nan" not in found["sentence"]
    assert "no AUC is told from 0.5" in found["sentence"]


def test_fewer_rankings_need_less_of_a_margin() -> None:
    changes = {"thresholds.step_margin": 0.0}
    many = planned("smollm2", changes)["step"]["smallest_margin"]
    few = planned("smollm2", {**changes, "evaluate.estimators": ["gas", "norm"]})["step"]
    assert 0 < few["smallest_margin"] < many
