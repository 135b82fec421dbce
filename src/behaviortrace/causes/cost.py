"""What a leave-out is expected to take, before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from behaviortrace.causes.arms import Arm, load, place
from behaviortrace.causes.measure import Exam
from behaviortrace.draws.checkpoint import need_recipe
from behaviortrace.recipe.costs import expected_cost, pass_seconds, sampling_seconds
from behaviortrace.run import Run

_PARTS = 3  # weights and Adam's two moments, which a replay under way keeps


def expected(run: Run, arms: Sequence[Arm]) -> dict[str, Any]:
    """Expected time and disk of the arms that have no outcome yet; an estimate, not a promise.

    Args:
        run: the run.
        arms: all of them.

    Returns:
        ``arms``, ``missing``, ``cpu_hours`` (two cores) and ``disk_gb`` (while an arm is made);
        None where the model's size is not known.
    """
    recipe = need_recipe(run)
    missing = [arm for arm in arms if load(place(run, arm)) is None]
    parameters = expected_cost(recipe)["parameters"]
    found: dict[str, Any] = {"arms": len(arms), "missing": len(missing)}
    if parameters is None:
        return {**found, "cpu_hours": None, "disk_gb": None}
    seconds, most = 0.0, 0.0
    for arm in missing:
        asked = sum(len(texts) for texts in Exam(recipe, arm.samples).asked().values())
        seconds += sampling_seconds(recipe, parameters, asked * (arm.samples + 1))
        rollouts = arm.until * recipe.train.rollouts_per_step
        seconds += pass_seconds(recipe, parameters, rollouts)
        copies = 1
        if arm.mode == "rerun":
            step = recipe.train.rollouts_per_step
            seconds += arm.until * sampling_seconds(recipe, parameters, step)
            copies = 2 + arm.until // recipe.train.checkpoint_every
        most = max(most, 4 * _PARTS * parameters * copies / 1e9)
    return {**found, "cpu_hours": round(seconds / 3600, 3), "disk_gb": round(most, 3)}
