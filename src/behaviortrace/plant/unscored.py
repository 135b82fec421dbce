"""Rewards that are no numbers: how many there were, and what they did to their groups.

TRL leaves a rollout without reward (every reward function returned None or NaN) out of its group's
baseline and gives it no advantage. An infinite reward is not left out: the group's mean, and with
it every advantage of the group, is then undefined, which TRL replaces by zero, or by the largest
number it can hold where rewards are not scaled.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import polars as pl

LARGEST = 3.4e38
"""What TRL puts for an infinite advantage is above this: the largest float32."""


@dataclass(frozen=True)
class Unscored:
    """Counts over rollouts, those left out by a leave-out arm not among them.

    Attributes:
        rollouts: that were sampled for training.
        missing: without reward (None or NaN).
        infinite: with an infinite one.
        groups: that hold such a rollout.
        scored: rollouts of those groups whose reward is a finite number.
        without_advantage: of these, those whose advantage is zero.
        groups_without_advantage: of the groups, those in which every advantage is zero.
        steps_without_advantage: of the steps with such a rollout, those in which every one is, as
            where an infinite reward spoils the scale of a whole batch.
        beyond_numbers: rollouts whose advantage is infinite, or what TRL puts in its place.
        boosted: boosted rollouts of those groups, so far as they are known.
        findable: of these, those that a gradient can find.
    """

    rollouts: int = 0
    missing: int = 0
    infinite: int = 0
    groups: int = 0
    scored: int = 0
    without_advantage: int = 0
    groups_without_advantage: int = 0
    steps_without_advantage: int = 0
    beyond_numbers: int = 0
    boosted: int = 0
    findable: int = 0

    @property
    def any(self) -> bool:
        """Whether some reward or advantage is no number."""
        return self.missing + self.infinite + self.beyond_numbers > 0

    def note(self) -> dict[str, int]:
        """The counts by name, for the manifest and as evidence."""
        return asdict(self)

    def clause(self) -> str:
        """What happened, with its numbers; empty where every reward is a finite number."""
        if not self.any:
            return ""
        wrong = self.missing + self.infinite
        found = [
            f"{wrong:,} of {self.rollouts:,} rewards are not finite ({self.missing:,} missing or "
            f"NaN, {self.infinite:,} infinite), in {self.groups:,} group{'s' * (self.groups != 1)}",
            f"of the {self.scored:,} other rollouts there {self.without_advantage:,} have no "
            f"advantage, and {self.groups_without_advantage:,} of the groups and "
            f"{self.steps_without_advantage:,} of the steps have none at all",
        ]
        if self.boosted:
            found.append(f"{self.findable:,} of {self.boosted:,} boosted ones there can be found")
        if self.beyond_numbers:
            found.append(
                f"{self.beyond_numbers:,} advantages are infinite or the largest number there is"
            )
        return "; ".join(found)


def unscored(frame: pl.DataFrame) -> Unscored:
    """Count a table of training rollouts, one row a rollout.

    Args:
        frame: rollouts with the columns step, group, reward and advantage, and where they are known
            boosted, findable and left_out. A table in which no rollout has a reward, as of a
            supervised training, has nothing to count.
    """
    optional = {"boosted": pl.Boolean, "findable": pl.Boolean, "left_out": pl.Boolean}
    absent = [pl.lit(None, t).alias(c) for c, t in optional.items() if c not in frame.columns]
    reward, advantage = pl.col("reward").fill_nan(None), pl.col("advantage")
    out = pl.col("left_out").cast(pl.Boolean, strict=False).fill_null(False)
    rows = frame.with_columns(absent).with_columns(
        missing=reward.is_null() & ~out,
        infinite=reward.is_infinite().fill_null(False) & ~out,
        beyond=(advantage.is_nan() | (advantage.abs() >= LARGEST)).fill_null(False),
        none=(advantage == 0).fill_null(False),
        scored=reward.is_finite().fill_null(False),
    )
    if (
        not rows["scored"].any()
        and not rows["infinite"].any()
        and rows["advantage"].is_null().all()
    ):
        return Unscored()
    wrong = (pl.col("missing") | pl.col("infinite")).any().over("group")
    touched = rows.filter(wrong)
    empty = touched.group_by("group").agg(pl.col("none").all())["none"]
    steps = rows.filter(pl.col("step").is_in(touched["step"].unique().to_list()))
    idle = steps.group_by("step").agg(pl.col("none").all())["none"]
    scored = touched.filter("scored")
    return Unscored(
        rollouts=rows.height - int(rows.select(out.sum()).item()),
        missing=int(rows["missing"].sum()),
        infinite=int(rows["infinite"].sum()),
        groups=touched["group"].n_unique(),
        scored=scored.height,
        without_advantage=int(scored["none"].sum()),
        groups_without_advantage=int(empty.sum()),
        steps_without_advantage=int(idle.sum()),
        beyond_numbers=int(rows["beyond"].sum()),
        boosted=int(touched["boosted"].sum()),
        findable=int(touched["findable"].sum()),
    )
