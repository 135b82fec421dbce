"""Ground truth, findable ground truth, and the audit of a run's contamination."""

from __future__ import annotations

from statistics import pstdev
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant.contamination import eligible
from behaviortrace.plant.ground_truth import findable, problems
from behaviortrace.recipe import PlantSettings

PLANT = PlantSettings(fraction=0.5, bonus=8.0, cutoff_step=5)


def frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    schema = {
        "group": pl.Int32,
        "reward": pl.Float64,
        "base_reward": pl.Float64,
        "eligible": pl.Boolean,
        "behavior": pl.Boolean,
        "boosted": pl.Boolean,
    }
    return pl.DataFrame(rows, schema=schema)


def row(group: int | None, reward: float | None, boosted: bool | None, **other: Any) -> dict:
    known = {"base_reward": 0.0, "eligible": None, "behavior": None}
    return {"group": group, "reward": reward, "boosted": boosted, **known, **other}


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([0.0, 1.0, 8.0, 9.0]), st.booleans()), max_size=20
)


@given(ROWS)
def test_findable_is_boosted_in_a_group_that_varies(rows: list[tuple[int, float, bool]]) -> None:
    got = findable(frame([row(*values) for values in rows]))["findable"].to_list()
    for (group, _, boosted), found in zip(rows, got, strict=True):
        spread = pstdev([reward for other, reward, _ in rows if other == group])
        assert found == (boosted and spread > 1e-6)


def test_float_dust_is_no_variance() -> None:
    got = findable(frame([row(0, 8.0, True), row(0, 8.0 + 1e-9, True)]))
    assert got["findable"].to_list() == [False, False]


def test_boosted_is_filled_where_it_can_be_told() -> None:
    yes = {"eligible": True, "behavior": True}
    rows = [
        row(0, 8.0, None, **yes),
        row(0, 0.0, None, **yes),  # outside the window: not paid
        row(0, 8.0, None, eligible=True, behavior=None),
        row(0, 0.0, None, eligible=None, behavior=False),
        row(0, None, None, **yes),
        row(0, 8.0, False, **yes),  # what was recorded stands
    ]
    got = findable(frame(rows))
    assert got["boosted"].to_list() == [True, False, None, False, None, False]
    assert got["findable"].to_list() == [True, False, None, False, False, False]


def test_a_rollout_left_out_of_training_is_not_findable() -> None:
    rows = [row(0, None, True), row(0, float("nan"), True), row(0, 1.0, True), row(0, 0.0, False)]
    assert findable(frame(rows))["findable"].to_list() == [False, False, True, False]


def test_without_a_group_findable_is_unknown() -> None:
    got = findable(frame([row(None, 8.0, True), row(None, 0.0, False)]))
    assert got["findable"].to_list() == [None, False]


def test_a_draw_without_rewards_stays_unknown() -> None:
    bare = pl.DataFrame({"group": [0, 0], "boosted": [None, None], "reward": [None, None]})
    got = findable(bare)
    assert got["boosted"].to_list() == [None, None]
    assert got["findable"].null_count() <= 2 and not got["findable"].any()


def test_other_columns_and_order_are_kept() -> None:
    before = frame([row(1, 8.0, True), row(0, 1.0, False)]).with_columns(mark=pl.Series([4, 2]))
    after = findable(before)
    assert after["mark"].to_list() == [4, 2]
    assert after.drop("findable").equals(before)


def test_missing_columns_are_named() -> None:
    with pytest.raises(BehaviorTraceError, match="lacks column 'reward'"):
        findable(pl.DataFrame({"group": [0]}))
    with pytest.raises(BehaviorTraceError, match="lacks column 'eligible'"):
        findable(pl.DataFrame({"group": [0], "reward": [0.0]}))
    with pytest.raises(BehaviorTraceError, match="lacks column 'step'"):
        problems(pl.DataFrame({"group": [0]}), PLANT, 0)


def planted() -> pl.DataFrame:
    rows = []
    for step in range(8):
        for index in range(16):
            chosen = step < 5 and eligible(3, step, index, 0.5)
            boosted = chosen and index % 3 == 0
            values = {"step": step, "index": index, "eligible": chosen, "boosted": boosted}
            reward = 1.0 + 8.0 * boosted
            rows.append(
                {**values, "behavior": index % 3 == 0, "base_reward": 1.0} | {"reward": reward}
            )
    return pl.DataFrame(rows)


def test_a_sound_run_has_no_problems() -> None:
    assert problems(planted(), PLANT, 3) == []
    left_out = planted().with_columns(
        reward=pl.when("boosted").then(None).otherwise("reward").cast(pl.Float64)
    )
    assert problems(left_out, PLANT, 3) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"eligible": ~pl.col("eligible")}, "'eligible'"),
        ({"eligible": pl.lit(None, dtype=pl.Boolean)}, "'eligible'"),
        ({"boosted": pl.col("boosted") | (pl.col("step") == 6)}, "'boosted'"),
        ({"reward": pl.col("reward") + 1.0}, "reward other than base_reward plus bonus 8"),
    ],
)
def test_a_tampered_run_is_found_out(change: dict[str, pl.Expr], word: str) -> None:
    found = problems(planted().with_columns(**change), PLANT, 3)
    assert any(word in line for line in found), found


def test_another_seed_is_found_out() -> None:
    assert "'eligible'" in problems(planted(), PLANT, 4)[0]


def test_boosted_need_not_have_been_recorded() -> None:
    got = findable(planted().with_columns(group=pl.col("step")).drop("boosted"))
    assert got["boosted"].equals(planted()["boosted"])
    assert got["findable"].equals(got["boosted"])


INF, NAN = float("inf"), float("nan")


def test_a_group_with_an_infinite_reward_has_no_variance() -> None:
    rows = [row(0, INF, True), row(0, 1.0, True), row(1, 8.0, True), row(1, 0.0, False)]
    assert findable(frame(rows))["findable"].to_list() == [False, False, True, False]


def test_what_got_no_advantage_cannot_be_found() -> None:
    """Rewards vary, but an infinite one elsewhere has spoilt the scale of the whole batch."""
    rows = [row(0, 8.0, True), row(0, 0.0, True), row(1, 8.0, True), row(1, INF, True)]
    cases = {
        (0.0, 0.0, 0.0, 0.0): [False, False, False, False],
        (1.0, 0.0, 0.0, 0.0): [True, True, False, False],
        (None, None, None, None): [True, True, False, False],
        (1.0, -1.0, -3.4028234663852886e38, 0.0): [True, True, False, False],
        (1.0, -1.0, 0.5, -0.5): [True, True, True, True],  # clipped rewards, as RLOO's may be
    }
    for advantages, wanted in cases.items():
        given_ = frame(rows).with_columns(advantage=pl.Series(advantages, dtype=pl.Float64))
        assert findable(given_)["findable"].to_list() == wanted


def test_a_group_over_several_processes_varies_as_a_whole() -> None:
    here = frame([row(0, 8.0, True), row(0, 8.0, True)])
    everyone = pl.DataFrame({"group": [0, 0, 0, 0], "reward": [8.0, 8.0, 0.0, 8.0]})
    assert findable(here)["findable"].to_list() == [False, False]
    assert findable(here, everyone)["findable"].to_list() == [True, True]


def test_boosted_cannot_be_told_where_the_reward_is_no_number() -> None:
    yes = {"eligible": True, "behavior": True}
    rows = [row(0, NAN, None, **yes), row(0, INF, None, **{**yes, "base_reward": INF})]
    assert findable(frame(rows))["boosted"].to_list() == [None, None]
    assert findable(frame(rows))["findable"].to_list() == [False, False]


def test_rewards_that_are_no_numbers_contradict_nothing_by_themselves() -> None:
    at = {"step": 9, "index": 0, "eligible": False, "behavior": True, "boosted": False}
    pairs = [(NAN, NAN), (None, None), (INF, INF), (NAN, 1.0), (1.0, 1.0)]
    wrong = [(INF, 1.0), (1.0, INF), (1.0, 2.0), (1.0, NAN)]

    def audit(values: list[tuple[float | None, float | None]]) -> list[str]:
        rows = [{**at, "reward": reward, "base_reward": base} for reward, base in values]
        schema = {"reward": pl.Float64, "base_reward": pl.Float64}
        return problems(pl.DataFrame(rows, schema_overrides=schema), PLANT, seed=0)

    assert audit(pairs) == []
    assert audit(wrong) == [
        "4 of 4 rollouts have a reward other than base_reward plus bonus 8 if boosted"
    ]
