"""Rewards that are no numbers, counted from the rows of a run."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from behaviortrace.plant.unscored import Unscored, unscored

NAN, INF, MOST = float("nan"), float("inf"), 3.4028234663852886e38


def rows(*given: tuple[int, int, float | None, float | None], **more: list[Any]) -> pl.DataFrame:
    """(step, group, reward, advantage) a row."""
    schema = {"step": pl.Int32, "group": pl.Int32, "reward": pl.Float64, "advantage": pl.Float64}
    return pl.DataFrame(list(given), schema=schema, orient="row").with_columns(
        **{name: pl.Series(values, dtype=pl.Boolean) for name, values in more.items()}
    )


def test_every_count() -> None:
    frame = rows(
        (0, 0, None, 0.0),
        (0, 0, NAN, 0.0),
        (0, 0, 1.0, -0.7),
        (0, 0, 2.0, 0.7),
        (1, 1, INF, 0.0),
        (1, 1, 1.0, 0.0),
        (1, 2, 1.0, -0.0),
        (1, 2, 2.0, 0.0),
        (2, 3, -INF, 0.0),
        (2, 3, 1.0, MOST),
        (2, 4, 1.0, 1.0),
        (2, 4, 1.0, None),
        boosted=[True] * 6 + [False, None] + [True] * 4,
        findable=[False, False, True, True, *[False] * 4, *[False] * 4],
    )
    found = unscored(frame)
    assert found == Unscored(
        rollouts=12,
        missing=2,
        infinite=2,
        groups=3,
        scored=4,
        without_advantage=1,
        groups_without_advantage=1,
        steps_without_advantage=1,
        beyond_numbers=1,
        boosted=8,
        findable=2,
    )
    assert found.clause() == (
        "4 of 12 rewards are not finite (2 missing or NaN, 2 infinite), in 3 groups; of the 4 "
        "other rollouts there 1 have no advantage, and 1 of the groups and 1 of the steps have "
        "none at all; 2 of 8 boosted ones there can be found; 1 advantages are infinite or the "
        "largest number there is"
    )


def test_finite_rewards_count_nothing() -> None:
    found = unscored(rows((0, 0, 1.0, 0.0), (0, 0, 1.0, 0.0)))
    assert found == Unscored(rollouts=2) and not found.any and found.clause() == ""


def test_examples_without_reward_are_not_rollouts_that_lack_one() -> None:
    assert unscored(rows((0, 0, None, None), (0, 1, None, None))) == Unscored()


def test_a_run_in_which_nothing_was_scored_is_counted() -> None:
    found = unscored(rows((0, 0, NAN, 0.0), (0, 0, None, 0.0)))
    assert (found.missing, found.groups_without_advantage, found.scored) == (2, 1, 0)


def test_what_a_leave_out_arm_removed_is_not_missing() -> None:
    given = ((0, 0, None, 0.0), (0, 0, 1.0, -1.0), (0, 0, 2.0, 1.0))
    assert not unscored(rows(*given, left_out=[True, False, False])).any
    assert unscored(rows(*given, left_out=[None, False, False])).missing == 1
    assert unscored(rows(*given, left_out=[True, False, False])).rollouts == 2


@pytest.mark.parametrize("advantage", [INF, -INF, NAN, MOST, -MOST])
def test_an_advantage_that_is_no_number_counts_by_itself(advantage: float) -> None:
    found = unscored(rows((0, 0, 1.0, advantage), (0, 0, 2.0, 1.0)))
    assert found.any and found.beyond_numbers == 1 and "1 advantages" in found.clause()
