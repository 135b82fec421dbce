import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate.spline import basis, spline_fit
from behaviortrace.evaluate.within_group import judge

GROUPS, SIZE = 120, 8


def bent(seed, effect=0.0):
    """Fluency lifts the score in one steep step, and the behaviour shows in the fluent texts."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(GROUPS), SIZE)
    fluency = rng.normal(-1, 0.4, GROUPS * SIZE)
    label = rng.random(len(group)) < 1 / (1 + np.exp(-6 * (fluency + 1)))
    score = np.tanh(6 * (fluency + 1)) + effect * label
    return label, group, score + 0.3 * rng.normal(size=len(group)), fluency


@given(st.integers(0, 1000), st.integers(2, 60))
@settings(max_examples=60, deadline=None)
def test_basis_is_one_in_all_and_straight_outside(seed, n):
    fluency = np.random.default_rng(seed).normal(size=n)
    found = basis(fluency)
    assert found.shape[0] == n and found.shape[1] <= 5
    assert found.sum(axis=1) == pytest.approx(np.ones(n))  # a constant is a spline
    knots = np.unique(np.quantile(fluency, (0.05, 0.275, 0.5, 0.725, 0.95)))
    assert found @ (3 * knots - 1) == pytest.approx(3 * fluency - 1)  # so is a line, everywhere


SLOPES = st.floats(-3, 3).filter(lambda slope: slope == 0 or abs(slope) > 1e-300)
"""Below the smallest normal numbers a line is none: its values are rounded to steps."""


@example(0, 1e-13, 1.0)  # as flat as rounding lets a line be: what pairs see, the fit must see
@example(3, -4e-15, -2.0)
@example(7, 2e-16, 0.5)
@given(st.integers(0, 1000), SLOPES, st.floats(-2, 2))
@settings(max_examples=30, deadline=None)
def test_a_score_that_is_a_line_of_fluency_is_explained_whole(seed, slope, level):
    rng = np.random.default_rng(seed)
    group, fluency = np.repeat(np.arange(12), 5), rng.normal(size=60)
    score = slope * fluency + level * group
    label = rng.random(60) < 0.5
    report = judge(label, group, {"s": score}, fluency, resamples=100, control="spline")
    assert report.residualized is not None
    assert report.residualized["s"].point == pytest.approx(0.5, nan_ok=True)


def test_groups_are_not_fitted_on_themselves():
    _, group, score, fluency = bent(0)
    fitted = spline_fit(score, fluency, group, GROUPS)
    changed = np.where(group == 7, score + 5 * np.sin(9 * fluency), score)
    again = spline_fit(changed, fluency, group, GROUPS)
    assert again[group == 7] == pytest.approx(fitted[group == 7])
    assert np.abs(again - fitted).max() > 1e-3


def test_a_bent_effect_of_fluency_fools_the_line_and_not_the_spline():
    """No rollout's score knows the behaviour; how often does each control say that it does?"""
    studies, fooled = 60, {"linear": 0, "spline": 0}
    for seed in range(studies):
        label, group, score, fluency = bent(seed)
        for control in fooled:
            report = judge(
                label, group, {"s": score}, fluency, resamples=100, seed=seed, control=control
            )
            assert report.residualized is not None and report.control == control
            interval = report.residualized["s"].logit_t
            fooled[control] += interval.lo > 0.5 or interval.hi < 0.5
    assert fooled["linear"] > 0.9 * studies
    assert fooled["spline"] <= studies * 0.05 + 3 * np.sqrt(studies * 0.05 * 0.95)


def test_the_spline_leaves_an_effect_of_the_behaviour():
    label, group, score, fluency = bent(1, effect=0.4)
    report = judge(label, group, {"s": score}, fluency, resamples=100, control="spline")
    assert report.residualized is not None and report.residualized["s"].logit_t.lo > 0.6


def test_where_nothing_can_be_fitted_nothing_is_explained():
    score = np.arange(6.0)
    flat = np.repeat([0.0, 1.0], 3)
    assert (spline_fit(score, np.ones(6), flat.astype(int), 2) == 0).all()
    assert (spline_fit(score, np.arange(6.0), np.zeros(6, dtype=int), 1) == 0).all()
    within = spline_fit(score, flat, flat.astype(int), 2)  # it differs between groups only
    assert within[:3] == pytest.approx(within[0])
    label = np.array([True, False, True] * 2)
    none = judge(np.ones(6, dtype=bool), flat, {"s": score}, score, control="spline")
    assert none.residualized is not None and np.isnan(none.residualized["s"].point)
    with pytest.raises(BehaviorTraceError, match="residual is 'cubic'"):
        judge(label, flat, {"s": score}, score, control="cubic")  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(BehaviorTraceError, match="refit_slope"):
        judge(label, flat, {"s": score}, score, control="spline", refit_slope=True)
