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


def test_every_order_of_few_prompts_against_the_slow_twin() -> None:
    """Four prompts asked twice or thrice over five steps; what is given is given in turn."""
    rng = np.random.default_rng(2)
    asked = np.array([[0, 1], [2, 3], [1, 0], [3, 2], [0, 3]])
    truth = rng.random((5, 2, SIZE)) < np.array([0.9, 0.1, 0.5, 0.3])[asked][:, :, None]
    rankings = rng.normal(size=(4, 5))
    rows = {
        "group": np.repeat(np.arange(10), SIZE),
        "prompt": np.repeat([f"p{each}" for each in asked.ravel()], SIZE),
        "step": np.repeat(np.arange(5), 2 * SIZE),
    }
    tiled = [np.repeat(each, 2 * SIZE) for each in rankings]
    place = rows["group"], rows["prompt"]
    found = margin_of(tiled, truth.ravel(), rows["step"], 20_000, place=place)
    alone = margin_of(tiled, truth.ravel(), rows["step"], 20_000)
    taken = [
        np.array([precision_at_ground_truth(each, truth.ravel()) for each in tiled]),
        np.stack([share_taken(each, truth.sum()) for each in tiled]),
    ]
    assert (taken[1] @ truth.mean(axis=(1, 2))) == pytest.approx(taken[0])
    luck = []
    for order in itertools.permutations(range(4)):
        groups, turn = np.zeros((5, 2)), dict.fromkeys(range(4), 0)
        for step, place_in in itertools.product(range(5), range(2)):
            prompt = asked[step, place_in]
            giver = order[prompt]
            own = [truth[s, q].mean() for s in range(5) for q in range(2) if asked[s, q] == giver]
            groups[step, place_in] = own[turn[prompt] % len(own)]
            turn[prompt] += 1
        precision = taken[1] @ groups.mean(axis=1)
        luck.append(precision[:-1].max() - precision[-1])
    share = (np.array(luck) >= found.margin - 1e-12).mean()
    assert found.p == pytest.approx(max(share, alone.p), abs=0.015)
    assert share > alone.p + 0.03  # so that the prompts' orders are what is seen
    assert (found.prompts, alone.prompts) == (4, None)
    once = margin_of(tiled, truth.ravel(), rows["step"], 20_000, place=(rows["group"],) * 2)
    assert once == alone


def share_taken(score: np.ndarray, k: int) -> np.ndarray:
    """Of the k best rows, the share in each of five steps; whole steps first, the last in part."""
    left, shares = float(k), np.zeros(5)
    by_step = score.reshape(5, -1)
    for step in np.argsort(-by_step[:, 0]):
        shares[step] = min(left, by_step.shape[1])
        left -= shares[step]
    return shares / k


def test_prompts_that_come_round_are_no_evidence() -> None:
    """Rankings and ground truth both go by the prompt, and know nothing of one another."""
    passes, studies, steps = np.zeros(2), 200, 60
    step = np.repeat(np.arange(steps), 3 * SIZE)
    for seed in range(studies):
        rng = np.random.default_rng(seed)
        asked = np.concatenate([rng.permutation(15) for _ in range(12)])
        label = rng.random((180, SIZE)) < rng.beta(1, 2, 15)[asked][:, None]
        scores = [rng.normal(size=15)[asked].reshape(steps, 3).sum(axis=1) for _ in range(9)]
        rankings = [np.repeat(each, 3 * SIZE) for each in scores]
        place = np.repeat(np.arange(180), SIZE), np.repeat(asked, SIZE)
        for at, given in enumerate((place, None)):
            found = margin_of(rankings, label.ravel(), step, 200, place=given)
            passes[at] += found.p <= 0.05
    assert passes[0] / studies <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / studies)
    assert passes[1] / studies > 0.12


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
