"""The permutation test of the step-level margin, and the rule that rests on it."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest

from behaviortrace.bench.steps import step_verdicts
from behaviortrace.evaluate.precision import precision_at_ground_truth
from behaviortrace.evaluate.step_null import margin_of, step_margin
from behaviortrace.records import ROLLOUT_SCHEMA, SCORE_SCHEMA, conform

SIZE = 4


def by_step(values: np.ndarray) -> np.ndarray:
    return np.repeat(values, SIZE)


def margin(rankings: np.ndarray, truth: np.ndarray) -> float:
    reached = [precision_at_ground_truth(by_step(each), truth.ravel()) for each in rankings]
    return max(reached[:-1]) - reached[-1]


def test_every_order_of_few_steps_against_the_slow_twin() -> None:
    rng = np.random.default_rng(0)
    steps = 5
    truth = rng.random((steps, SIZE)) < 0.4
    rankings = rng.integers(0, 4, (4, steps)).astype(float)  # steps tie
    orders = list(itertools.permutations(range(steps)))
    luck = np.array([margin(rankings, truth[list(order)]) for order in orders])
    code = np.repeat(np.arange(steps), SIZE)
    found = margin_of([by_step(each) for each in rankings], truth.ravel(), code, 20_000)
    assert found.margin == pytest.approx(margin(rankings, truth))
    assert found.p == pytest.approx((luck >= found.margin - 1e-12).mean(), abs=0.015)
    assert (found.rankings, found.steps) == (3, steps)


def test_one_order_always_counts_and_luck_is_even() -> None:
    """Under no link p is uniform: the share below any level is at most that level."""
    rng = np.random.default_rng(1)
    code, found = np.repeat(np.arange(20), SIZE), []
    for _ in range(300):
        truth = rng.random(20 * SIZE) < 0.3
        rankings = [by_step(rng.normal(size=20)) for _ in range(6)]
        found.append(margin_of(rankings, truth, code, 200).p)
    assert min(found) >= 1 / 201
    for level in (0.05, 0.2, 0.5):
        share = np.mean(np.array(found) <= level)
        assert share <= level + 3 * np.sqrt(level * (1 - level) / 300)
    assert np.mean(found) < 0.65  # and it is no test that never rejects


def table(values: dict[tuple[str, str | None], np.ndarray]) -> tuple[pl.DataFrame, pl.DataFrame]:
    n = len(next(iter(values.values())))
    ids = [f"r{i}" for i in range(n)]
    step = np.arange(n) // SIZE
    rollouts = conform(
        pl.DataFrame({"rollout_id": ids, "step": step, "boosted": step % 3 == 0}), ROLLOUT_SCHEMA
    )
    scores = [
        pl.DataFrame({"rollout_id": ids, "score": column}).with_columns(
            source=pl.lit("training"),
            embedding=pl.lit("step"),
            estimator=pl.lit(name),
            target=pl.lit(target, dtype=pl.String),
        )
        for (name, target), column in values.items()
    ]
    return rollouts, conform(pl.concat(scores), SCORE_SCHEMA)


def test_a_run_is_asked_of_its_trained_window() -> None:
    truth = by_step(np.arange(30) % 3 == 0).astype(float)
    flat = np.zeros(len(truth))
    rollouts, scores = table({("gas", "t"): truth, ("dot", "t"): flat, ("norm", None): flat})
    found = step_margin(rollouts, scores, range(30))
    assert found is not None and found.margin == pytest.approx(1 - 1 / 3)
    assert found.p < 0.001 and (found.rankings, found.steps) == (2, 30)
    assert step_margin(rollouts, scores, [1, 2]) is None  # no ground truth there
    alone = scores.filter(pl.col("estimator") != "norm")
    assert step_margin(rollouts, alone, range(30)) is None


@pytest.mark.parametrize("steps", [20, 60])
def test_the_rule_passes_no_more_often_than_it_may(steps: int) -> None:
    assert step_verdicts("unrelated", steps, 200)["share"] <= 0.05


def test_the_margin_alone_is_reached_by_luck_in_a_short_window() -> None:
    assert step_verdicts("unrelated", 20, 100)["margin_alone"] > 0.2


def test_an_oracle_passes() -> None:
    assert step_verdicts("oracle", 60, 100)["share"] >= 0.9
