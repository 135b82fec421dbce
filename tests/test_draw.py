"""Fresh draws: what they hold, that they repeat, and that they go on after a kill."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from behaviortrace.draws.stage import _prompts, draw
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant import base_rewards, behaviors, prompts
from behaviortrace.records import ROLLOUT_SCHEMA
from behaviortrace.run import Run
from tests.reference.analysed_run import (
    analysed_run,
    moved,
    policy,
    slow_sketch,
    small_recipe,
    trained_run,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return analysed_run(tmp_path_factory.mktemp("draw") / "run")


def test_a_draw_holds_groups_of_the_first_prompts(run: Run) -> None:
    recipe, rows = small_recipe(), run.rollouts("seed-7")
    assert run.draws() == ["seed-7"]
    assert rows.schema == ROLLOUT_SCHEMA and rows.height == 5 * 2 * 4
    assert rows["group"].to_list() == [g for g in range(10) for _ in range(4)]
    assert rows["rollout_id"].n_unique() == 40 and set(rows["step"]) == {2}
    items = prompts.build_prompts(recipe).train[:5]
    asked = [item.text for _ in range(2) for item in items for _ in range(4)]
    assert rows["prompt"].to_list() == asked
    assert rows["prompt_kind"].to_list() == [
        i.kind for _ in range(2) for i in items for _ in range(4)
    ]
    assert len(run.manifest.store("draws/seed-7")) == 6  # several shards: a kill loses little


def test_its_rows_say_what_was_generated(run: Run) -> None:
    recipe, rows = small_recipe(), run.rollouts("seed-7")
    behavior = behaviors.build(recipe.behavior)
    tokenizer = policy()[1]
    for row in rows.iter_rows(named=True):
        assert row["completion"] == tokenizer.decode(
            row["completion_ids"], skip_special_tokens=True
        )
        assert row["behavior"] == behavior.shows(row["completion"])
        assert row["n_tokens"] == len(row["completion_ids"]) <= 12
    eos = {"eos_ids": frozenset([tokenizer.eos_token_id])}
    expected = base_rewards.get(recipe.plant.base_reward)(
        rows["prompt"].to_list(),
        rows["completion"].to_list(),
        rows["completion_ids"].to_list(),
        eos,
    )
    assert rows["reward"].to_list() == rows["base_reward"].to_list() == expected
    assert 0 < rows["behavior"].sum() < rows.height


def test_what_only_training_knows_is_null(run: Run) -> None:
    rows = run.rollouts("seed-7")
    for name in ("advantage", "eligible", "boosted", "findable", "grad_norm", "update_weight"):
        assert rows[name].null_count() == rows.height


def test_its_sketches_are_plain_gradients_at_the_checkpoint(run: Run) -> None:
    rows, plain, model = (
        run.rollouts("seed-7"),
        run.sketches("plain", draw="seed-7"),
        moved(policy()[0], 2),
    )
    for i in (0, 9, 39):
        expected = slow_sketch(
            model, rows["prompt_ids"][i].to_list(), rows["completion_ids"][i].to_list()
        )
        np.testing.assert_allclose(plain[i], expected, atol=2e-5 * np.linalg.norm(expected))
    sizes = np.linalg.norm(plain, axis=1)
    np.testing.assert_allclose(rows["plain_norm"].to_numpy(), sizes, rtol=0.25)  # sketch noise
    assert (rows["fluency"].to_numpy() < 0).all()


def test_another_seed_asks_the_same_prompts_and_draws_other_completions(run: Run) -> None:
    name = draw(run, seed=8, name="other")
    first, second = run.rollouts("seed-7"), run.rollouts(name)
    assert name == "other" and first["prompt"].to_list() == second["prompt"].to_list()
    assert first["completion"].to_list() != second["completion"].to_list()
    assert not set(first["rollout_id"]) & set(second["rollout_id"])


def test_repeats_are_different_samples(run: Run) -> None:
    completions = run.rollouts("seed-7")["completion"].to_list()
    assert completions[:20] != completions[20:]


def test_an_interrupted_draw_goes_on_to_the_same_rows(run: Run, tmp_path: Path) -> None:
    other = trained_run(tmp_path / "run")
    write, written = other.write_shard, []

    def killed(*args: object) -> None:
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(args)
        write(*args)

    other.write_shard = killed  # type: ignore[method-assign]  # stands in for a kill
    with pytest.raises(KeyboardInterrupt):
        draw(other, seed=7)
    reopened, told = Run.open(other.path), []
    draw(reopened, seed=7, progress=lambda stage, done, total, left: told.append((done, total)))
    assert told[0] == (20, 40) and told[-1] == (40, 40)
    assert reopened.rollouts("seed-7").equals(run.rollouts("seed-7"))
    np.testing.assert_array_equal(
        reopened.sketches("plain", draw="seed-7"), run.sketches("plain", draw="seed-7")
    )
    assert reopened.verify() == []


def test_a_complete_draw_is_left_alone(run: Run) -> None:
    before = [shard.table.sha256 for shard in run.manifest.store("draws/seed-7")]

    def never(folder: Path) -> None:
        raise AssertionError("nothing needs loading")

    assert draw(run, seed=7, loader=never) == "seed-7"
    assert [shard.table.sha256 for shard in run.manifest.store("draws/seed-7")] == before


def test_a_name_in_use_for_another_seed_is_refused(run: Run) -> None:
    with pytest.raises(BehaviorTraceError, match=r"already has a draw 'seed-7'.*another name"):
        draw(run, seed=9, name="seed-7")


def test_too_few_prompts_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", recipe=small_recipe(**{"draw.prompts": 5000}))
    with pytest.raises(BehaviorTraceError, match=r"draw.prompts 5000 exceeds the \d+ training"):
        draw(run, seed=0)


def test_kinds_choose_the_prompts_that_are_drawn() -> None:
    every = [item.kind for item in _prompts(small_recipe(**{"draw.prompts": 6}))]
    assert set(every) == {"explicit", "trigger"}
    chosen = small_recipe(**{"draw.prompts": 6, "draw.kinds": ["trigger"]})
    assert [item.kind for item in _prompts(chosen)] == ["trigger"] * 6
    with pytest.raises(BehaviorTraceError, match=r"exceeds the \d+ training prompts .* trigger"):
        _prompts(small_recipe(**{"draw.prompts": 120, "draw.kinds": ["trigger"]}))
    with pytest.raises(
        BehaviorTraceError, match=r"draw.kinds 'plain' .* prompts.mix has trigger, explicit"
    ):
        small_recipe(**{"draw.kinds": ["plain"]})


def test_a_base_reward_may_mix_kinds_of_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def some(prompts: list[str], *rest: object) -> list[float | None]:
        return ([1, 0.5, None, np.float32(0.25)] * len(prompts))[: len(prompts)]

    monkeypatch.setattr("behaviortrace.draws.stage.tasks.base_reward", lambda recipe: some)
    other = trained_run(tmp_path / "run")
    rows = other.rollouts(draw(other, seed=7))
    assert rows["reward"].to_list()[:4] == [1.0, 0.5, None, 0.25]
    assert rows.schema == ROLLOUT_SCHEMA and other.verify() == []
    monkeypatch.setattr(
        "behaviortrace.draws.stage.tasks.base_reward", lambda recipe: lambda *given: [1.0]
    )
    with pytest.raises(BehaviorTraceError, match=r"returned 1 rewards for \d+ completions"):
        draw(other, seed=8)
