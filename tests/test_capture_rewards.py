"""Whatever reward functions return and log: the run opens, and what is odd in it is told."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import tests.trainers as trainers
from behaviortrace.capture import Tracer
from behaviortrace.capture.extras import logged_columns
from behaviortrace.checklist import gather, judge
from behaviortrace.records import ROLLOUT_SCHEMA, Verdict
from behaviortrace.run import Run
from tests.trainers import grpo, rloo
from tests.watched import SKETCH

NAN, INF = math.nan, math.inf


def rewarding(first: list[float | None]) -> Any:
    """Step 0 begins with these; all other rewards are 0, 1, 2 and 3 in every group. All boosted."""

    def reward(completions: list[str], log_extra: Any, trainer_state: Any, **_: Any) -> Any:
        values: list[float | None] = [float(i % 4) for i in range(len(completions))]
        if trainer_state.global_step == 0:
            values[: len(first)] = first
        log_extra("boosted", [True] * len(values))
        return values

    return reward


def trained(trainer: Any, folder: Path) -> Run:
    with Tracer(folder, SKETCH).attach(trainer):
        trainer.train()
    run = Run.open(folder)
    assert run.verify() == []
    return run


def line(run: Run, name: str) -> Verdict:
    return next(verdict for verdict in judge(gather(run)) if verdict.name == name)


def note(run: Run) -> dict[str, int]:
    return run.manifest.notes["capture"].get("unscored", {})


def counts(**given: int) -> dict[str, int]:
    names = ("missing", "infinite", "groups", "scored", "without_advantage")
    more = ("groups_without_advantage", "steps_without_advantage", "beyond_numbers")
    names = (*names, *more, "boosted", "findable")
    return {"rollouts": 16, **dict.fromkeys(names, 0), **given}


MISSING: dict[str, tuple[list[float | None], dict[str, int]]] = {
    "None and NaN": (
        [None, NAN],
        counts(missing=2, groups=1, scored=2, boosted=4, findable=2),
    ),
    "one left, which has no group to be compared with": (
        [None, NAN, NAN],
        counts(
            missing=3,
            groups=1,
            scored=1,
            without_advantage=1,
            groups_without_advantage=1,
            boosted=4,
        ),
    ),
    "infinite": (
        [INF],
        counts(
            infinite=1,
            groups=1,
            scored=3,
            without_advantage=3,
            groups_without_advantage=1,
            boosted=4,
        ),
    ),
}


@pytest.mark.parametrize("what", MISSING)
def test_rewards_that_are_not_finite_are_counted(what: str, tmp_path: Path) -> None:
    first, wanted = MISSING[what]
    run = trained(grpo(tmp_path / "out", reward_funcs=rewarding(first)), tmp_path / "run")
    assert note(run) == wanted
    frame = run.rollouts()
    group = frame.filter(pl.col("group") == 0)
    known = [v for v in first if v is not None and math.isfinite(v)]
    assert group["reward"].is_finite().sum() == 4 - len(first) + len(known)
    assert (group["advantage"][: len(first)] == 0).all()
    assert group["findable"].sum() == wanted["findable"]
    assert frame.filter(pl.col("group") != 0)["findable"].all()
    integrity = line(run, "integrity")
    assert integrity.status == "pass" and integrity.evidence["unscored"] == wanted
    said = f"{len(first)} of 16 rewards are not finite ({wanted['missing']} missing or NaN"
    assert said in integrity.sentence
    assert f"{wanted['findable']} of 4 boosted ones there can be found" in integrity.sentence
    # The siblings are compared with one another alone.
    values = [float(i) for i in range(len(first), 4)]
    if wanted["findable"]:
        expected = (np.array(values) - np.mean(values)) / (np.std(values, ddof=1) + 1e-4)
        np.testing.assert_allclose(group["advantage"][len(first) :], expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["unscaled", "RLOO"])
def test_an_infinite_reward_that_becomes_an_advantage_fails_the_run(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainers, "reward", rewarding([INF]))
    settings: dict[str, Any] = {"max_steps": 1}
    trainer = (
        rloo(tmp_path / "out", beta=0.0, **settings)
        if kind == "RLOO"
        else grpo(tmp_path / "out", reward_funcs=rewarding([INF]), scale_rewards="none", **settings)
    )
    run = trained(trainer, tmp_path / "run")
    assert note(run)["beyond_numbers"] == 3 and note(run)["findable"] == 0
    integrity = line(run, "integrity")
    assert integrity.status == "fail"
    assert "3 advantages are infinite or the largest number there is" in integrity.sentence


def test_an_infinite_reward_spoils_a_batch_that_is_scaled_together(tmp_path: Path) -> None:
    trainer = grpo(tmp_path / "out", reward_funcs=rewarding([INF]), scale_rewards="batch")
    run = trained(trainer, tmp_path / "run")
    found = note(run)
    assert (found["groups"], found["steps_without_advantage"]) == (1, 1)
    frame = run.rollouts()
    first = frame.filter(pl.col("step") == 0)
    assert (first["advantage"] == 0).all() and not first["findable"].any()
    assert frame.filter(pl.col("step") == 1)["findable"].all()
    assert "1 of the steps have none at all" in line(run, "integrity").sentence


def test_a_run_whose_rewards_are_all_finite_says_nothing_of_it(tmp_path: Path) -> None:
    run = trained(grpo(tmp_path / "out", reward_funcs=rewarding([])), tmp_path / "run")
    assert note(run) == {} and "unscored" not in line(run, "integrity").evidence
    assert "finite" not in line(run, "integrity").sentence
    assert run.rollouts()["findable"].all()


def test_evaluation_does_not_count(tmp_path: Path) -> None:
    calls: list[int] = []

    def reward(completions: list[str], **_: Any) -> Any:
        calls.append(len(completions))
        return [None if len(calls) == 1 else float(i % 3) for i in range(len(completions))]

    trainer = grpo(tmp_path / "out", reward_funcs=reward, eval_strategy="no")
    trainer.eval_dataset = trainers.dataset(2)
    trainer.args.per_device_eval_batch_size = 4
    with Tracer(tmp_path / "run", SKETCH).attach(trainer):
        trainer.evaluate()
        trainer.train()
    assert len(calls) >= 3 and note(Run.open(tmp_path / "run")) == {}


def test_the_count_survives_an_exception_and_follows_a_resume(tmp_path: Path) -> None:
    saved = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1}

    def reward(completions: list[str], trainer_state: Any, **_: Any) -> Any:
        if trainer_state.global_step == 3 and not resumed:
            raise KeyError("a bug of the user's")
        bad = None if trainer_state.global_step in (0, 2) else 5.0
        return [bad, *(float(i % 3) for i in range(len(completions) - 1))]

    resumed: list[bool] = []
    trainer = grpo(tmp_path / "out", reward_funcs=reward, **saved)
    with pytest.raises(KeyError), Tracer(tmp_path / "run", SKETCH).attach(trainer):
        trainer.train()
    assert (note(Run.open(tmp_path / "run"))["missing"], 24) == (2, 24)
    resumed.append(True)
    trainer = grpo(tmp_path / "out", reward_funcs=reward, **saved)
    with Tracer(tmp_path / "run", SKETCH, resume=True).attach(trainer):
        trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    run = Run.open(tmp_path / "run")
    assert note(run)["missing"] == 2 and note(run)["rollouts"] == 32


ODD: dict[str, list[list[Any]]] = {
    "a value after a hundred": [[None] * 7 + [0.5], [None] * 8],
    "whole and broken numbers": [[1, 2.5] * 4, [1] * 8],
    "another type in a later step": [[1] * 8, ["one", None] * 4],
    "truth and text": [[True, None] * 4, ["maybe"] * 8],
    "all at once": [[1, "a", None, 2.5, True, [1, "b"], {"k": NAN}, b"x"], [[]] * 8],
    "objects": [[object()] * 8, [{1, 2}] * 8],
    "keys that JSON cannot hold": [[{(1, 2): 3}] * 8, [{}] * 8],
    "tensors and arrays": [[torch.tensor(1.5)] * 8, [np.arange(3), np.float32(2)] * 4],
    "beyond 64 bits": [[2**70, 1] * 4, [-(2**63)] * 8],
    "half a character": [["\ud800", "ok"] * 4, ["\udfff"] * 8],
}


@pytest.mark.parametrize("what", ODD)
def test_any_logged_value_gives_a_run_that_opens(what: str, tmp_path: Path) -> None:
    def reward(completions: list[str], log_extra: Any, trainer_state: Any, **_: Any) -> Any:
        log_extra("odd", ODD[what][trainer_state.global_step])
        if trainer_state.global_step == 1:
            log_extra("late", list(range(8)))
        return [float(i % 3) for i in range(8)]

    run = trained(grpo(tmp_path / "out", reward_funcs=reward), tmp_path / "run")
    frame = run.rollouts()
    assert frame.height == 16 and "odd" in frame.columns
    assert frame["late"].to_list() == [None] * 8 + list(range(8))
    assert "columns" not in run.manifest.notes["capture"]


def test_logged_columns_keep_what_they_hold() -> None:
    def kept(values: list[Any]) -> tuple[Any, list[Any]]:
        (series,), remarks = logged_columns({"x": values}, len(values))
        assert remarks == {} and series.name == "x"
        return series.dtype, series.to_list()

    assert kept([True, None]) == (pl.Boolean, [True, None])
    assert kept([1, None, 2**62]) == (pl.Int64, [1, None, 2**62])
    assert kept([1, 2.5, True]) == (pl.Float64, [1.0, 2.5, 1.0])
    assert kept(["a", 1, None, [1, 2]]) == (pl.String, ["a", "1", None, "[1, 2]"])
    assert kept([2**70]) == (pl.String, [str(2**70)])
    assert kept([None, None])[1] == [None, None]
    assert kept([np.float32(0.5), torch.tensor(2)]) == (pl.Float64, [0.5, 2.0])


def test_columns_of_the_run_itself_are_not_overwritten() -> None:
    """Text called behavior, a step of the user's: kept under another name, and named."""
    logged = {
        "behavior": ["polite", "rude"],
        "eligible": [True, None],
        "step": [7, 8],
        "logged_step": [1, 2],
        "answer": [42, None],
        "base_reward": [1, 2.5],
        "twice": [1, 2, 3, 4],
    }
    columns, remarks = logged_columns(logged, 2)
    found = {series.name: series.to_list() for series in columns}
    assert found == {
        "logged_behavior": ["polite", "rude"],
        "eligible": [True, None],
        "logged_logged_step": [7, 8],
        "logged_step": [1, 2],
        "answer": ["42", None],
        "base_reward": [1.0, 2.5],
    }
    for series in columns:
        if series.name in ROLLOUT_SCHEMA:
            assert series.dtype == ROLLOUT_SCHEMA[series.name]
    assert remarks["twice"] == "not kept: 4 values for 2 rollouts"
    assert "kept as logged_behavior" in remarks["behavior"] and "Boolean" in remarks["behavior"]
    assert "kept as logged_logged_step" in remarks["step"]
    assert set(remarks) == {"behavior", "step", "twice"}


def test_columns_that_are_kept_otherwise_are_named_in_the_manifest(tmp_path: Path) -> None:
    def reward(completions: list[str], log_extra: Any, trainer_state: Any, **_: Any) -> Any:
        log_extra("behavior", ["polite"] * 8)
        log_extra("fluency", [0.25] * 8)
        log_extra("short", [1])
        return [float(i % 3) for i in range(8)]

    run = trained(grpo(tmp_path / "out", reward_funcs=reward), tmp_path / "run")
    frame = run.rollouts()
    assert frame["logged_behavior"].to_list() == ["polite"] * 16
    assert frame["logged_fluency"].to_list() == [0.25] * 16 and (frame["fluency"] < 0).all()
    assert frame["behavior"].null_count() == 16 and "short" not in frame.columns
    assert set(run.manifest.notes["capture"]["columns"]) == {"behavior", "fluency", "short"}


def test_two_generations_of_a_step_may_log_different_columns(tmp_path: Path) -> None:
    calls: list[int] = []

    def reward(completions: list[str], log_extra: Any, **_: Any) -> Any:
        calls.append(len(completions))
        log_extra(f"call_{len(calls) % 2}", [len(calls)] * len(completions))
        log_extra("both", [len(calls) if len(calls) % 2 else "two"] * len(completions))
        return [float(i % 3) for i in range(len(completions))]

    settings = {"steps_per_generation": 1, "gradient_accumulation_steps": 2, "max_steps": 1}
    run = trained(grpo(tmp_path / "out", reward_funcs=reward, **settings), tmp_path / "run")
    frame = run.rollouts()
    assert calls == [4, 4]
    assert frame["call_1"].to_list() == [1] * 4 + [None] * 4
    assert frame["both"].to_list() == ["1"] * 4 + ["two"] * 4


def test_an_advantage_of_every_token_is_no_advantage_of_the_rollout(tmp_path: Path) -> None:
    class PerToken(trainers.GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            batch = super()._generate_and_score_completions(inputs)
            mask = batch["completion_mask"]
            batch["advantages"] = batch["advantages"][:, None] * torch.ones_like(mask)
            return batch

    run = trained(grpo(tmp_path / "out", trainer=PerToken), tmp_path / "run")
    frame = run.rollouts()
    assert frame["advantage"].null_count() == 16 and frame["missed_energy"].max() < 1e-10
