"""Power formulas against simulation and against the published headroom."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from behaviortrace.evaluate.auc import credit, within_group_pairs
from behaviortrace.evaluate.planned_power import (
    POWER,
    Pairing,
    Showing,
    both_beaten,
    detectable_auc,
    detectable_mean,
    detectable_over_runs,
    detectable_rate,
    findable_share,
    smallest_rate,
    step_ceiling,
    step_noise,
)
from behaviortrace.evaluate.precision import base_rate, ceiling, precision_at_ground_truth
from behaviortrace.evaluate.within_group import judge

CASES = [
    Showing(0.3, 0.2),
    Showing(0.9, 0.2, fraction=0.5),
    Showing(0.5, 0.0, fraction=0.5, silent=0.3),
    Showing(0.1, 0.6, fraction=0.8),
]


def simulated(showing: Showing, groups: int, size: int, seed: int = 0) -> np.ndarray:
    """(groups, size) labels, drawn one rollout at a time from the model the formulas are about."""
    rng = np.random.default_rng(seed)
    spread = 1 / showing.icc - 1 if showing.icc else math.inf
    propensity = np.full(groups, showing.rate)
    if showing.icc:
        propensity = rng.beta(showing.rate * spread, (1 - showing.rate) * spread, groups)
    propensity = propensity * (rng.random(groups) >= showing.silent)
    shows = rng.random((groups, size)) < propensity[:, None]
    return shows & (rng.random((groups, size)) < showing.fraction)


@pytest.mark.parametrize("showing", CASES)
def test_labels_of_a_group(showing: Showing) -> None:
    label, counts = simulated(showing, 40_000, 4), showing.counts(4)
    assert counts.sum() == pytest.approx(1) and (counts >= 0).all()
    assert counts @ np.arange(5) == pytest.approx(4 * showing.moment(1))
    observed = np.bincount(label.sum(axis=1), minlength=5) / len(label)
    assert np.abs(observed - counts).max() < 0.012
    assert label.all(axis=1).mean() == pytest.approx(showing.moment(4), abs=0.01)


@pytest.mark.parametrize("showing", CASES)
def test_the_findable_share(showing: Showing) -> None:
    label = simulated(showing, 60_000, 4)
    whole = label.all(axis=1)[:, None] & label
    assert findable_share(showing, 4) == pytest.approx(1 - whole.sum() / label.sum(), abs=0.012)


@pytest.mark.parametrize("showing", CASES)
@pytest.mark.parametrize(("groups", "size"), [(4, 4), (1, 6)])
def test_the_ceiling_of_steps_and_the_noise_under_it(
    showing: Showing, groups: int, size: int
) -> None:
    steps = 6_000
    label = simulated(showing, steps * groups, size).ravel()
    step = np.repeat(np.arange(steps), groups * size)
    assert step_ceiling(showing, groups, size) == pytest.approx(ceiling(label, step), abs=0.012)
    few, reached = 40, []
    rng = np.random.default_rng(1)
    for at in range(0, steps, few):
        rows = slice(at * groups * size, (at + few) * groups * size)
        if label[rows].any():
            score = np.repeat(rng.random(few), groups * size)
            gap = precision_at_ground_truth(score, label[rows]) - base_rate(label[rows])
            reached.append(gap)
    noise = step_noise(showing, groups, size, few)
    assert np.std(reached) == pytest.approx(noise, rel=0.25)


@pytest.mark.parametrize(
    ("chance", "top"), [(0.472, 0.582), (0.468, 0.572), (0.432, 0.551)], ids=["0", "1", "2"]
)
def test_the_papers_headroom_follows_from_its_settings(chance: float, top: float) -> None:
    showing = Showing(chance / 0.5, 0.2, fraction=0.5)
    assert showing.moment(1) == pytest.approx(chance)
    assert step_ceiling(showing, 4, 4) == pytest.approx(top, abs=0.02)


def scores(label: np.ndarray, auc: float, rng: np.random.Generator) -> np.ndarray:
    """Normal scores whose AUC is as given, with an offset of each group's own."""
    gap = math.sqrt(2) * stats.norm.ppf(auc)
    return rng.normal(size=label.shape) + gap * label + 3 * rng.normal(size=(len(label), 1))


@pytest.mark.parametrize("auc", [0.5, 0.7])
@pytest.mark.parametrize("showing", [CASES[0], CASES[2]])
def test_pairs_and_their_standard_error(auc: float, showing: Showing) -> None:
    groups, size, repeats = 40, 6, 500
    pairing = Pairing(showing, groups, size)
    code = np.repeat(np.arange(groups), size)
    rng, points, counts, held = np.random.default_rng(2), [], [], []
    for seed in range(repeats):
        label = simulated(showing, groups, size, seed)
        pairs = within_group_pairs(label.ravel(), code, groups)
        score = scores(label, auc, rng).ravel()
        points.append(credit(pairs.difference(score)).mean())
        counts.append(len(pairs))
        held.append(np.count_nonzero(pairs.per_group()))
    assert np.mean(counts) == pytest.approx(pairing.pairs, rel=0.05)
    assert np.mean(held) == pytest.approx(pairing.groups_with_pairs, rel=0.05)
    assert np.mean(points) == pytest.approx(auc, abs=0.02)
    assert np.std(points) == pytest.approx(pairing.standard_error(auc), rel=0.12)


@pytest.mark.parametrize("showing", [CASES[0], CASES[1], Showing(0.3, 0.2, silent=0.3)])
def test_repeated_prompts_have_fewer_degrees_of_freedom(showing: Showing) -> None:
    """Prompts by their pairs, of very many; the propensity is the prompt's."""
    prompts, repeats, size = 20_000, 3, 5
    label = simulated(showing, prompts, repeats * size).reshape(prompts, repeats, size)
    shown = label.sum(axis=2)
    held = (shown * (size - shown)).sum(axis=1).astype(float)
    effective = held.sum() ** 2 / (held**2).sum()
    found = Pairing(showing, prompts * repeats, size, repeats)
    assert found.freedom + 1 == pytest.approx(effective, rel=0.03)
    assert found.freedom < Pairing(showing, prompts * repeats, size).freedom
    once = Pairing(showing, prompts, size)
    assert Pairing(showing, prompts, size, 1, 0.9) == dataclasses.replace(once, alike=0.9)
    assert dataclasses.replace(once, alike=0.9).width() == once.width()


def test_the_design_effect_is_what_effects_that_vary_between_prompts_do() -> None:
    """Groups' AUCs of equal error correlate by their share of variance that is the prompt's."""
    showing, prompts, repeats, size, auc = Showing(0.5, 0.0), 20, 6, 8, 0.5
    between, rng, points, alone = 0.1, np.random.default_rng(6), [], []
    group = np.repeat(np.arange(prompts * repeats), size)
    for seed in range(400):
        label = simulated(showing, prompts * repeats, size, seed)
        effect = np.repeat(rng.normal(auc, between, prompts), repeats)
        gap = math.sqrt(2) * stats.norm.ppf(effect)[:, None]
        score = (rng.normal(size=label.shape) + gap * label).ravel()
        pairs = within_group_pairs(label.ravel(), group, prompts * repeats)
        won = pairs.per_group(credit(pairs.difference(score)))
        points.append(won.sum() / len(pairs))
        alone.append((won / np.maximum(pairs.per_group(), 1))[pairs.per_group() > 0].var())
    alike = between**2 / np.mean(alone)
    pairing = Pairing(showing, prompts * repeats, size, repeats, alike)
    assert pairing.design_effect == pytest.approx(1 + 5 * alike)
    # The formula's error of independent groups leaves out what effects add to each.
    expected = pairing.standard_error(auc) / math.sqrt(1 - alike)
    assert np.std(points) == pytest.approx(expected, rel=0.1)
    apart = Pairing(showing, prompts * repeats, size).standard_error(auc)
    assert np.std(points) > 1.25 * apart


@given(st.floats(0.5, 0.99))
@settings(max_examples=25, deadline=None)
def test_two_comparisons_of_one_score(auc: float) -> None:
    assert auc**2 - 1e-9 <= both_beaten(auc) <= auc + 1e-9
    if auc == 0.5:
        assert both_beaten(auc) == pytest.approx(1 / 3)


def test_the_published_interval_is_about_as_wide_as_expected() -> None:
    # 156 groups of 8 with 882 pairs gave an interval of 0.561 to 0.688.
    pairing = Pairing(Showing(0.85, 0.2), 156, 8)
    assert pairing.pairs == pytest.approx(882, rel=0.05)
    assert pairing.width(0.63) == pytest.approx(0.688 - 0.561, abs=0.025)


@pytest.mark.parametrize(
    ("showing", "groups"), [(CASES[0], 12), (CASES[0], 40), (Showing(0.85, 0.2), 26)]
)
def test_a_detectable_auc_is_detected_in_four_of_five_draws(showing: Showing, groups: int) -> None:
    """By the interval that runs are judged by, raw and with fluency regressed out."""
    size, repeats = 8, 400
    auc = detectable_auc(Pairing(showing, groups, size))
    assert auc is not None and 0.55 < auc < 0.8
    rng, group = np.random.default_rng(3), np.repeat(np.arange(groups), size)
    found, width = np.zeros(2), []
    for seed in range(repeats):
        label = simulated(showing, groups, size, seed)
        score = scores(label, auc, rng).ravel()
        fluency = rng.normal(size=len(group))
        report = judge(label.ravel(), group, {"s": score}, fluency, resamples=100, seed=seed)
        assert report.residualized is not None
        both = (report.raw["s"].logit_t, report.residualized["s"].logit_t)
        found += [each.lo > 0.5 for each in both]
        width.append(both[0].hi - both[0].lo)
    assert found / repeats == pytest.approx(POWER, abs=0.055)  # 2.75 standard errors
    assert np.nanmean(width) == pytest.approx(Pairing(showing, groups, size).width(auc), rel=0.05)


def test_more_groups_detect_less_and_groups_for_a_width_suffice() -> None:
    small, large = (Pairing(CASES[0], groups, 8) for groups in (26, 104))
    assert detectable_auc(small) > detectable_auc(large)  # type: ignore[operator]  # None fails here
    assert 2 * large.width() < small.width() < 2.3 * large.width()  # few groups pay for it
    needed = small.groups_for_width(0.15)
    assert Pairing(CASES[0], needed, 8).width() <= 0.15 < Pairing(CASES[0], needed - 1, 8).width()
    assert detectable_auc(Pairing(CASES[0], 1, 8)) is None  # nothing to resample
    assert math.isnan(Pairing(Showing(0.3, 0.2, silent=1.0), 5, 8).standard_error(0.5))


@pytest.mark.parametrize(("seeds", "draws"), [(3, 2), (5, 1)])
def test_a_study_of_seeds_and_draws(seeds: int, draws: int) -> None:
    pairing, between = Pairing(CASES[0], 100, 8), {"between_seeds": 0.03, "between_draws": 0.02}
    auc = detectable_over_runs(pairing, seeds=seeds, draws=draws, **between)
    assert auc is not None
    rng, repeats = np.random.default_rng(4), 20_000
    error = pairing.standard_error(auc)
    run = rng.normal(auc, 0.03, (repeats, seeds, 1)) + rng.normal(0, 0.02, (repeats, seeds, draws))
    means = (run + rng.normal(0, error, run.shape)).mean(axis=2)
    half = stats.t.ppf(0.975, seeds - 1) * means.std(axis=1, ddof=1) / math.sqrt(seeds)
    assert np.mean(means.mean(axis=1) - half > 0.5) == pytest.approx(POWER, abs=0.015)


def test_one_seed_cannot_tell() -> None:
    pairing = Pairing(CASES[0], 100, 8)
    nothing = {"between_seeds": 0.0, "between_draws": 0.0}
    assert detectable_over_runs(pairing, seeds=1, draws=9, **nothing) is None
    wide = {"between_seeds": 0.5, "between_draws": 0.0}
    assert detectable_over_runs(pairing, seeds=2, draws=1, **wide) is None


def test_a_detectable_share_of_probes() -> None:
    rate = detectable_rate(0.1, 20)
    assert rate is not None
    assert stats.binom.sf(2, 20, rate) == pytest.approx(POWER)
    assert detectable_rate(1.0, 20) is None
    assert stats.binom.sf(6, 20, smallest_rate(7, 20)) == pytest.approx(POWER)


def test_a_detectable_mean() -> None:
    mean = detectable_mean(0.05, 0.2, 40)
    assert mean is not None
    rng = np.random.default_rng(5)
    found = rng.normal(mean, 0.2 / math.sqrt(40), 40_000) - 1.96 * 0.2 / math.sqrt(40) > 0.05
    assert found.mean() == pytest.approx(POWER, abs=0.01)
    assert detectable_mean(0.05, 0.2, 1.5) is None
