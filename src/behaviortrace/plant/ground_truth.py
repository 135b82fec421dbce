"""Ground truth: the boosted rollouts, and which of them a gradient can find."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant.contamination import eligible
from behaviortrace.plant.unscored import LARGEST
from behaviortrace.recipe import PlantSettings

VARIANCE_FLOOR = 1e-6
"""A group whose rewards have a standard deviation at or below this has no advantages."""


def findable(frame: pl.DataFrame, everyone: pl.DataFrame | None = None) -> pl.DataFrame:
    """The rollouts with ``boosted`` and ``findable`` filled in.

    ``boosted`` is kept where it is known. Elsewhere it is true for an eligible rollout that shows
    the behaviour and was paid more than its base reward, false where one of these is known to be
    false, and null where that cannot be told. ``findable`` is ``boosted`` in a group whose rewards
    vary; a rollout without reward (left out of training) is not findable, as it has no gradient.

    Args:
        frame: rollouts with columns group and reward, and boosted or else eligible, behavior and
            base_reward.

    Raises:
        BehaviorTraceError: a needed column is missing.
    """
    _require(frame, ["group", "reward"])
    known = [name for name in ("eligible", "behavior", "base_reward") if name in frame.columns]
    if "boosted" not in frame.columns:
        _require(frame, ["eligible", "behavior", "base_reward"])
        frame = frame.with_columns(boosted=pl.lit(None, dtype=pl.Boolean))
    boosted = pl.col("boosted").cast(pl.Boolean)
    if len(known) == 3:
        extra = pl.col("reward").cast(pl.Float64) - pl.col("base_reward").cast(pl.Float64)
        paid = extra.fill_nan(None).abs() > VARIANCE_FLOOR
        boosted = pl.coalesce(boosted, pl.col("eligible") & pl.col("behavior") & paid)
    has_reward = pl.col("reward").cast(pl.Float64).fill_nan(None).is_not_null()
    varies = pl.Series(_varies(frame, frame if everyone is None else everyone), dtype=pl.Boolean)
    in_group = pl.when(pl.col("group").is_not_null()).then(varies & has_reward)
    return frame.with_columns(boosted=boosted).with_columns(findable=pl.col("boosted") & in_group)


def _varies(frame: pl.DataFrame, everyone: pl.DataFrame) -> list[bool]:
    """Of each row, whether its group's rewards gave it a gradient."""
    reward = pl.col("reward").cast(pl.Float64).fill_nan(None)
    by_reward = everyone.group_by("group").agg(
        spread=reward.std(ddof=0).fill_nan(None), infinite=reward.is_infinite().any()
    )
    rows = frame.select("group").join(by_reward, on="group", how="left", maintain_order="left")
    spread, infinite = rows["spread"].fill_null(0.0), rows["infinite"].fill_null(False)
    if "advantage" not in frame.columns:
        return ((spread > VARIANCE_FLOOR) & ~infinite).to_list()
    advantage = pl.col("advantage").cast(pl.Float64)
    usable = (advantage != 0) & (advantage.abs() < LARGEST)
    # Where no advantage is known nothing speaks against a gradient, but for an infinite reward.
    given = frame.select(
        usable.any().over("group"), known=advantage.is_not_null().any().over("group")
    )
    moved = given["advantage"].fill_null(False)
    by_spread = (spread > VARIANCE_FLOOR) & (moved | ~given["known"])
    return pl.select(pl.when(infinite).then(moved).otherwise(by_spread)).to_series().to_list()


def problems(frame: pl.DataFrame, plant: PlantSettings, seed: int) -> list[str]:
    """What in a run's recorded contamination contradicts its recipe, one line each; [] if nothing.

    Recomputes eligibility from (seed, step, index) inside the window, and checks that the boosted
    rollouts are exactly the eligible ones that show the behaviour, and that reward is base reward
    plus bonus.

    Args:
        frame: training rollouts (``records.ROLLOUT_SCHEMA``); a null in eligible or boosted counts
            as a difference, rollouts without reward are not judged on it.
        plant: the recipe's contamination.
        seed: the recipe's seed.

    Raises:
        BehaviorTraceError: a needed column is missing.
    """
    _require(frame, ["step", "index", "eligible", "boosted", "behavior", "reward", "base_reward"])
    keys = frame.select("step", "index").iter_rows()
    chosen = [
        step < plant.cutoff_step and eligible(seed, step, index, plant.fraction)
        for step, index in keys
    ]
    checked = frame.with_columns(pl.Series("chosen", chosen, dtype=pl.Boolean))
    truth = pl.col("chosen") & pl.col("behavior")
    paid = pl.col("base_reward") + plant.bonus * pl.col("boosted").cast(pl.Float64)
    # An infinite reward equals itself, but its difference from itself is not a number.
    other = ~((pl.col("reward") - paid).abs() <= 1e-4) & pl.col("reward").is_not_nan()
    counts = checked.select(
        eligible=pl.col("eligible").ne_missing(pl.col("chosen")).sum(),
        boosted=pl.col("boosted").ne_missing(truth).sum(),
        reward=(other & (pl.col("reward") != paid)).sum(),
    ).row(0, named=True)
    wording = {
        "eligible": "differ in 'eligible' from the hash of (seed, step, index) inside the window",
        "boosted": "differ in 'boosted' from eligible and showing the behaviour",
        "reward": f"have a reward other than base_reward plus bonus {plant.bonus:g} if boosted",
    }
    return [f"{n} of {frame.height} rollouts {wording[name]}" for name, n in counts.items() if n]


def _require(frame: pl.DataFrame, columns: Sequence[str]) -> None:
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise BehaviorTraceError(
            f"rollout table lacks column {missing[0]!r}; it needs {', '.join(columns)}"
        )
