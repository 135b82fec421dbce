"""Whether a recipe can answer, before it is run: headroom and power at every level."""

from __future__ import annotations

import math
from typing import Any

from scipy import stats

from behaviortrace import estimators
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate.planned_power import (
    POWER,
    Pairing,
    Showing,
    detectable_auc,
    detectable_mean,
    detectable_over_runs,
    detectable_rate,
    findable_share,
    smallest_rate,
    step_ceiling,
    step_noise,
)
from behaviortrace.evaluate.step_null import ALPHA
from behaviortrace.plant.emergence import START, hits_needed
from behaviortrace.plant.prompts import training_prompts
from behaviortrace.recipe import Recipe
from behaviortrace.recipe.costs import expected_cost

_TOKEN_LIMIT = 160  # responses that the token level compares at most


def plan(
    recipe: Recipe,
    *,
    rate: float | None = None,
    seeds: int | None = None,
    draws: int | None = None,
) -> dict[str, Any]:
    """What a run of a recipe could show, from the recipe and what it assumes.

    Args:
        recipe: any valid recipe; nothing is loaded or run.
        rate: behaviour rate, in place of ``assume.behavior_rate``.
        seeds: training runs of the study; ``thresholds.seeds`` where None.
        draws: of each run; as many as ``draw.seeds`` where None.

    Returns:
        ``name``; ``assumed``; ``emergence``, ``step``, ``training``, ``rollout`` and ``token``,
        each a mapping of numbers (None where undefined) with ``answers`` and ``sentence``; and
        ``cost``, as :func:`~behaviortrace.recipe.costs.expected_cost` gives it.

    Raises:
        BehaviorTraceError: a rate outside (0, 1), or fewer than one seed or draw.

    Example:
        >>> from behaviortrace.recipe import load
        >>> plan(load("qwen2.5-1.5b"), rate=0.9)["step"]["answers"]
        False
    """
    seeds = recipe.thresholds.seeds if seeds is None else seeds
    draws = len(recipe.draw.seeds) if draws is None else draws
    rate = recipe.assume.behavior_rate if rate is None else rate
    if not 0 < rate < 1:
        raise BehaviorTraceError(f"rate {rate:g} is no behaviour rate; give one between 0 and 1")
    for name, value in (("seeds", seeds), ("draws", draws)):
        if value < 1:
            raise BehaviorTraceError(f"{name} is {value}; give 1 or more")
    assumed = recipe.assume.model_dump() | {"behavior_rate": rate, "seeds": seeds, "draws": draws}
    shows = Showing(rate, recipe.assume.icc)
    return {
        "name": recipe.name,
        "assumed": assumed,
        "emergence": _emergence(recipe),
        "step": _step(recipe, _boosted(recipe, shows)),
        "training": _training(recipe, shows),
        "rollout": _rollout(recipe, shows, seeds, draws),
        "token": _token(recipe, shows),
        "cost": expected_cost(recipe),
    }


def _boosted(recipe: Recipe, shows: Showing) -> Showing:
    """How training rollouts inside the window become ground truth."""
    return Showing(shows.rate, shows.icc, recipe.plant.fraction, _silent(recipe))


def _silent(recipe: Recipe) -> float:
    return recipe.prompts.mix.get("task", 0.0) / sum(recipe.prompts.mix.values())


def _emergence(recipe: Recipe) -> dict[str, Any]:
    """The last checkpoint's s_b passes the bar by itself; the highest of several by more hits."""
    bar, n = recipe.thresholds.emergence, recipe.prompts.probes
    smallest = detectable_rate(bar, n)
    looks = sum(step > START for step in recipe.saved_steps())
    hits = hits_needed(n, looks, bar)
    highest = None if hits is None else smallest_rate(hits, n)
    unlearned = "never" if highest is None else f"from {highest:.2f} on"
    sentence = (
        f"with {n} probes, s_b passes the bar of {bar:g} in {POWER:.0%} of runs from a true "
        f"share of {smallest:.2f} on; where it is unlearned by the end, {unlearned} at one of "
        f"{looks} checkpoints"
        if smallest is not None
        else f"no share of {n} probes exceeds the bar of {bar:g}; lower thresholds.emergence"
    )
    return {
        "probes": n,
        "smallest_s_b": smallest,
        "smallest_s_b_unlearned": highest,
        "answers": smallest is not None,
        "sentence": sentence,
    }


def _step(recipe: Recipe, boosted: Showing) -> dict[str, Any]:
    """Headroom of step-level precision, and the ground truth there is to find."""
    train, window = recipe.train, recipe.plant.cutoff_step
    if boosted.moment(1) == 0:
        sentence = "nothing is planted (plant.fraction 0), so there is no ground truth to rank"
        return {"answers": False, "sentence": sentence}
    chance = boosted.moment(1)
    top = step_ceiling(boosted, train.prompts_per_step, train.generations)
    noise = step_noise(boosted, train.prompts_per_step, train.generations, window)
    share = findable_share(boosted, train.generations)
    n_boosted = window * train.rollouts_per_step * chance
    room = top - chance
    margin = _margin(recipe, noise)
    need = max(recipe.thresholds.headroom, margin)
    facts = {
        "n_rollouts": train.steps * train.rollouts_per_step,
        "n_boosted": n_boosted,
        "n_findable": n_boosted * share,
        "findable_share": share,
        "chance": chance * window / train.steps,
        "chance_trained_window": chance,
        "ceiling_trained_window": top,
        "room": room,
        "needed": need,
        "smallest_margin": margin,
    }
    numbers = (
        f"in the trained window chance is {chance:.3f} and the ceiling of whole steps {top:.3f}: "
        f"room for {room:.3f}, where {need:.3f} is needed"
    )
    if room >= need:
        return {**facts, "answers": True, "sentence": f"can answer: {numbers}"}
    return {
        **facts,
        "answers": False,
        "sentence": f"cannot answer: {numbers}; {_step_remedy(recipe, boosted)}",
    }


def _margin(recipe: Recipe, noise: float) -> float:
    """Smallest true margin over norm that passes the norm control in 80% of runs.

    It must reach the bar, and what the best of all rankings reaches by luck in 5% of orders
    (Bonferroni); the difference of two rankings varies by twice the variance of one.
    """
    error = math.sqrt(2) * noise
    luck = float(stats.norm.isf(ALPHA / _rankings(recipe))) * error
    return max(recipe.thresholds.step_margin, luck) + float(stats.norm.ppf(POWER)) * error


def _rankings(recipe: Recipe) -> int:
    """Targeted step-level rankings at most: every estimator that takes a target, with each."""
    chosen = recipe.evaluate.estimators or estimators.names()
    targeted = sum(not estimators.get(name).target_free for name in chosen)
    return max(1, targeted * len(recipe.targets.names))


def _step_remedy(recipe: Recipe, boosted: Showing) -> str:
    """What would give steps headroom: smaller steps, where they suffice; rollouts in any case."""
    generations, window = recipe.train.generations, recipe.plant.cutoff_step
    rollouts = "score rollouts instead, whose ceiling is 1 (level training)"
    for groups in range(recipe.train.prompts_per_step - 1, 0, -1):
        room = step_ceiling(boosted, groups, generations) - boosted.moment(1)
        noise = step_noise(boosted, groups, generations, window)
        if room >= max(recipe.thresholds.headroom, _margin(recipe, noise)):
            size = groups * generations
            fitting = max(n for n in range(1, recipe.train.micro_batch + 1) if size % n == 0)
            also = "" if fitting == recipe.train.micro_batch else f" and micro_batch to {fitting}"
            return (
                f"lower train.prompts_per_step to {groups}{also} (room {room:.3f}), or {rollouts}"
            )
    return rollouts


def _training(recipe: Recipe, shows: Showing) -> dict[str, Any]:
    """Rollout level on the training rollouts themselves, all of them and inside the window."""
    train = recipe.train
    every = Showing(shows.rate, shows.icc, 1.0, _silent(recipe))
    behavior = _trained_pairing(recipe, every, train.steps)
    boosted = _trained_pairing(recipe, _boosted(recipe, shows), recipe.plant.cutoff_step)
    facts = {
        "behavior": _paired(behavior),
        "boosted_trained_window": _paired(boosted),
    }
    found = facts["behavior"]["smallest_auc"]
    planted = facts["boosted_trained_window"]["smallest_auc"]
    if found is None:
        sentence = "cannot answer: no within-group AUC would be told from 0.5; raise train.steps"
        return {**facts, "answers": False, "sentence": sentence}
    also = "" if planted is None else f", and of boosted rollouts in the window from {planted:.3f}"
    sentence = (
        f"can answer: about {behavior.pairs:,.0f} pairs tell an AUC of the behaviour from 0.5 from "
        f"{found:.3f} on{also}"
    )
    return {**facts, "answers": True, "sentence": sentence}


def _trained_pairing(recipe: Recipe, showing: Showing, steps: int) -> Pairing:
    """Of the first so many steps, whose prompts come round again once all had their turn."""
    groups = steps * recipe.train.prompts_per_step
    repeats = max(1.0, groups / training_prompts(recipe))
    return Pairing(showing, groups, recipe.train.generations, repeats, recipe.assume.repeat_icc)


def _rollout(recipe: Recipe, shows: Showing, seeds: int, draws: int) -> dict[str, Any]:
    """The pre-registered rollout level: fresh draws, one and over a study's runs."""
    one = _draw_pairing(recipe, shows)
    limits = recipe.thresholds
    study = detectable_over_runs(
        one,
        seeds=seeds,
        draws=draws,
        between_seeds=recipe.assume.between_seeds,
        between_draws=recipe.assume.between_draws,
    )
    paired = _paired(one)
    facts = {
        **paired,
        "width_limit": limits.rollout_width,
        "matched_pairs": one.pairs * recipe.assume.matched_share,
        "smallest_auc_study": study,
    }
    narrow = one.width() <= limits.rollout_width
    of = "" if one.repeats == 1 else f" of {recipe.draw.prompts} prompts"
    found = (
        f"a draw has about {one.pairs:,.0f} pairs in {one.groups} groups{of}: {_wide(one)} where "
        f"{limits.rollout_width:g} is allowed, and {_told(paired['smallest_auc'])}"
    )
    over = (
        f"over {seeds} seeds with {draws} draws each, a mean AUC from {study:.3f} on"
        if study is not None
        else f"over {seeds} seeds no mean AUC is told from 0.5; sweep more seeds"
        if seeds > 1
        else "one seed cannot tell how much a rerun would differ; sweep three or more"
    )
    if narrow:
        return {**facts, "answers": True, "sentence": f"can answer: {found}; {over}"}
    groups = one.groups_for_width(limits.rollout_width)
    if groups is None:
        remedy = "draw from a checkpoint where the behaviour is neither rare nor saturated"
    else:
        # More repeats tell more of the same prompts, and do not help beyond what those can.
        remedy = f"raise draw.prompts to {math.ceil(groups / recipe.draw.repeats)}"
    return {
        **facts,
        "groups_needed": groups,
        "answers": False,
        "sentence": f"cannot answer: {found}; {remedy}; {over}",
    }


def _wide(one: Pairing) -> str:
    width = one.width()
    return f"an interval {width:.3f} wide" if math.isfinite(width) else "no interval"


def _told(smallest: float | None) -> str:
    return f"{'no AUC' if smallest is None else f'an AUC from {smallest:.3f} on'} is told from 0.5"


def _draw_pairing(recipe: Recipe, shows: Showing) -> Pairing:
    draw = recipe.draw
    groups = draw.prompts * draw.repeats
    return Pairing(shows, groups, draw.generations, draw.repeats, recipe.assume.repeat_icc)


def _paired(pairing: Pairing) -> dict[str, Any]:
    return {
        "groups": pairing.groups,
        "prompts": round(pairing.groups / pairing.repeats),
        "design_effect": pairing.design_effect,
        "groups_with_pairs": pairing.groups_with_pairs,
        "pairs": pairing.pairs,
        "standard_error": _defined(pairing.standard_error(0.5)),
        "width": _defined(pairing.width()),
        "smallest_auc": detectable_auc(pairing),
    }


def _token(recipe: Recipe, shows: Showing) -> dict[str, Any]:
    """Responses with the behaviour to compare, of how many prompts."""
    one = _draw_pairing(recipe, shows)
    asked = recipe.draw.repeats * one.size  # responses to a prompt
    with_one = recipe.draw.prompts * (1 - float(shows.counts(asked)[0]))
    responses = min(one.groups * one.size * shows.rate, _TOKEN_LIMIT)
    clusters = min(with_one, responses)
    bar = recipe.thresholds.token_in_context
    smallest = detectable_mean(bar, recipe.assume.cosine_sd, clusters)
    facts = {"responses": responses, "prompts": clusters, "smallest_cosine": smallest}
    if smallest is None:
        sentence = (
            f"cannot answer: about {responses:.0f} responses with the behaviour to "
            f"{clusters:.0f} prompts; raise draw.prompts, or draw from a later checkpoint"
        )
        return {**facts, "answers": False, "sentence": sentence}
    sentence = (
        f"can answer: about {responses:.0f} responses with the behaviour to {clusters:.0f} "
        f"prompts; a mean in-context cosine from {smallest:.3f} on clears the bar of {bar:g}"
    )
    return {**facts, "answers": True, "sentence": sentence}


def _defined(value: float) -> float | None:
    return value if math.isfinite(value) else None
