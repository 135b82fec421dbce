import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from behaviortrace.evaluate.auc import Pairs, credit, group_codes, within_group_pairs
from behaviortrace.evaluate.fluency import matched
from behaviortrace.evaluate.multiplicity import holm
from behaviortrace.evaluate.power import chance_error, detectable
from behaviortrace.evaluate.within_group import judge


@given(st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=9, deadline=None)
def test_chance_error_of_a_whole_group_is_mann_and_whitneys(m, n):
    label = np.array([True] * m + [False] * n)
    pairs = within_group_pairs(label, np.zeros(m + n, dtype=int), 1)
    aucs = [
        credit(pairs.difference(np.array(order, float))).mean()
        for order in itertools.permutations(range(m + n))
    ]
    assert chance_error(pairs) == pytest.approx(np.std(aucs))


def test_chance_error_of_matched_pairs_equals_a_simulation():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(30), 8)
    label, fluency = rng.random(240) < 0.5, rng.normal(0, 0.25, 240)
    code, n = group_codes(group)
    near = matched(within_group_pairs(label, code, n), fluency, 0.1)
    aucs = [credit(near.difference(rng.normal(size=240))).mean() for _ in range(4000)]
    assert chance_error(near) == pytest.approx(np.std(aucs), rel=0.05)


def study(rng, effect):
    group = np.repeat(np.arange(60), 8)
    label = rng.random(480) < 0.5
    fluency = rng.normal(0, 0.25, 480)
    return label, group, rng.normal(size=480) + effect * label, fluency


def test_the_detectable_auc_is_detected_as_often_as_it_says():
    """The score's effect is set so that its matched AUC is the detectable one; see who finds it."""
    from scipy.special import ndtri

    smallest, found, studies = [], 0, 300
    for number in range(studies):
        rng = np.random.default_rng(number)
        label, group, _, fluency = study(rng, 0.0)
        code, n = group_codes(group)
        limit = detectable(matched(within_group_pairs(label, code, n), fluency, 0.1))
        score = rng.normal(size=480) + np.sqrt(2) * ndtri(limit) * label
        report = judge(label, group, {"s": score}, fluency, resamples=100)
        assert report.matched_detectable == limit and report.matched is not None
        smallest.append(limit)
        found += report.matched["s"].logit_t.lo > 0.5
    assert min(smallest) > 0.55 and max(smallest) < 0.7
    assert abs(found / studies - 0.8) < 3 * np.sqrt(0.8 * 0.2 / studies) + 0.02


def test_more_pairs_see_smaller_effects_and_no_pairs_see_none():
    def of(groups):
        label = np.tile([True, False, False], groups)
        return within_group_pairs(label, np.repeat(np.arange(groups), 3), groups)

    limits = [detectable(of(groups)) for groups in (2, 5, 20, 100)]
    assert limits == sorted(limits, reverse=True) and limits[-1] > 0.5
    none = of(5).keep(np.zeros(10, dtype=bool))
    assert np.isnan(detectable(none)) and np.isnan(chance_error(none))
    assert np.isnan(detectable(of(1)))
    assert isinstance(none, Pairs)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_equals_its_steps(p):
    adjusted = holm(np.array(p))
    for level in (0.01, 0.05, 0.2):
        rejected, order = set(), np.argsort(p, kind="stable")
        for step, i in enumerate(order):
            if p[i] * (len(p) - step) > level:
                break
            rejected.add(int(i))
        assert set(np.flatnonzero(adjusted <= level).tolist()) == rejected
    assert (adjusted >= np.array(p)).all() and (adjusted <= 1).all()


def test_holm_leaves_undefined_tests_out():
    found = holm(np.array([0.02, np.nan, 0.02]))
    assert found[[0, 2]].tolist() == [0.04, 0.04] and np.isnan(found[1])


def test_holm_keeps_the_family_wise_error():
    """Twelve worthless scores on the same rollouts: one of them looks good far too often."""
    any_raw = any_held = 0
    studies = 200
    for number in range(studies):
        rng = np.random.default_rng(number)
        label, group, _, _ = study(rng, 0.0)
        scores = {str(k): rng.normal(size=480) for k in range(12)}
        p = np.array([j.p for j in judge(label, group, scores, resamples=100).raw.values()])
        any_raw += (p <= 0.05).any()
        any_held += (holm(p) <= 0.05).any()
    slack = 3 * np.sqrt(0.05 * 0.95 / studies)
    assert any_held / studies <= 0.05 + slack
    assert any_raw / studies > 0.3  # what the correction is for
