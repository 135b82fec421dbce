"""P1: overall precision tells trained from untrained steps, whatever the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from behaviortrace.checklist import rows
from behaviortrace.evaluate.precision import base_rate, precision_at_ground_truth
from behaviortrace.pitfalls.demonstration import Demonstration, Training, defined, training

if TYPE_CHECKING:
    from behaviortrace.run import Run

TRAINED = "trained or not"
CONTROLS = ("norm", "local_buffer", "random")
SHARE = 0.5
RULE = (
    "knowing only which steps trained has at least half of the gain over chance of the best "
    "targeted estimator"
)
TITLE = "P1: step-level precision is the cliff between trained and untrained steps"


def cliff(run: Run) -> Demonstration:
    """Compare estimators with a score that knows nothing but which steps trained.

    That score is 1 for rollouts of steps with an update gradient and 0 for the others. What it
    gains over chance is the cliff; an estimator that gains no more has found no behaviour. Where
    late steps train too, as with background tasks, it gains nothing and the cliff is gone.

    Args:
        run: an evaluated run.

    Returns:
        One row a score: precision at |GT| and lift overall and in the trained window. Facts:
        ``chance``, ``cliff`` (what "trained or not" gains over chance), ``cliff_share`` (of the
        best targeted estimator's gain), ``targeted`` (how many that one is the best of, by the very
        number it is shown for), ``late_steps`` and ``late_steps_trained``.

    Raises:
        BehaviorTraceError: the run is not evaluated.
    """
    level, given = run.table("results/step_level"), training(run)
    score = np.isin(given.step, given.trained).astype(float)
    found = [_row(TRAINED, None, _precisions(given, score), level)]
    best = rows.best_targeted(level, "overall")
    tried = level.filter((pl.col("table") == "overall") & pl.col("target").is_not_null()).height
    picked = [(best["estimator"], best["target"])] if best else []
    for estimator, target in [*picked, *((name, None) for name in CONTROLS)]:
        stored = [_stored(level, table, estimator, target) for table in _TABLES]
        if any(value is not None for value in stored):
            found.append(_row(estimator, target, stored, level))
    facts = {**_facts(given, found), "targeted": tried}
    share = facts["cliff_share"]
    shows = None if share is None else share >= SHARE
    return Demonstration("cliff", TITLE, RULE, shows, _sentence(found, facts), _frame(found), facts)


_TABLES = ("overall", "trained_window")


def _precisions(given: Training, score: np.ndarray) -> list[float | None]:
    inside = given.inside
    return [
        defined(precision_at_ground_truth(score, given.boosted)),
        defined(precision_at_ground_truth(score[inside], given.boosted[inside])),
    ]


def _stored(level: pl.DataFrame, table: str, estimator: str, target: str | None) -> float | None:
    same_target = pl.col("target").is_null() if target is None else pl.col("target") == target
    found = level.filter(
        (pl.col("table") == table) & (pl.col("estimator") == estimator) & same_target
    )
    return rows.finite(found["precision"][0]) if found.height else None


def _row(
    score: str, target: str | None, precision: list[float | None], level: pl.DataFrame
) -> dict[str, Any]:
    row: dict[str, Any] = {"score": score, "target": target}
    for table, value in zip(_TABLES, precision, strict=True):
        chance = rows.finite(level.filter(pl.col("table") == table)["base_rate"].first())
        row[table] = value
        row[f"lift_{table}"] = None if value is None or not chance else value / chance
    return row


def _facts(given: Training, found: list[dict[str, Any]]) -> dict[str, Any]:
    chance = defined(base_rate(given.boosted))
    knows = found[0]["overall"]
    best = next((row for row in found if row["target"] is not None), None)
    gain = None if knows is None or chance is None else knows - chance
    whole = best["overall"] - chance if best and chance is not None else None
    late = np.unique(given.step) if given.cutoff is None else np.unique(given.step[_late(given)])
    return {
        "chance": chance,
        "chance_trained_window": defined(base_rate(given.boosted[given.inside])),
        "cliff": gain,
        "cliff_share": gain / whole if gain is not None and whole and whole > 0 else None,
        "steps": len(np.unique(given.step)),
        "steps_trained": len(given.trained),
        "late_steps": len(late),
        "late_steps_trained": int(np.isin(late, given.trained).sum()),
    }


def _late(given: Training) -> np.ndarray:
    return given.step >= (given.cutoff or 0)


def _sentence(found: list[dict[str, Any]], facts: dict[str, Any]) -> str:
    late = f"{facts['late_steps_trained']} of {facts['late_steps']} steps after the window trained"
    knows, chance = found[0]["overall"], facts["chance"]
    if knows is None or chance is None:
        return f"No rollout is boosted, so there is no precision to explain; {late}."
    told = (
        f"Knowing only which steps trained gives a precision of {knows:.3f} where chance is "
        f"{chance:.3f} ({late})"
    )
    best = next((row for row in found if row["target"] is not None), None)
    if best is None:
        return f"{told}; no targeted estimator was scored."
    inside, rate = best["trained_window"], facts["chance_trained_window"]
    window = (
        f"in the trained window it has {inside:.3f} where chance is {rate:.3f}"
        if inside is not None and rate is not None
        else "in the trained window it is undefined"
    )
    share = facts["cliff_share"]
    of_gain = "which gains nothing over chance" if share is None else f"{share:.0%} of the gain"
    return (
        f"{told}: {of_gain} of {best['score']}, the best of {facts['targeted']} targeted scores "
        f"in hindsight, at {best['overall']:.3f}; {window}."
    )


def _frame(found: list[dict[str, Any]]) -> pl.DataFrame:
    numbers = [f"{lift}{table}" for table in _TABLES for lift in ("", "lift_")]
    schema = {"score": pl.String, "target": pl.String, **dict.fromkeys(numbers, pl.Float64)}
    return pl.DataFrame(found, schema=schema)
