import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate import auc as auc_module
from behaviortrace.evaluate.auc import credit, group_codes, within_group_pairs
from behaviortrace.evaluate.fluency import matched, residualize
from behaviortrace.evaluate.within_group import judge
from tests.published import published
from tests.reference import statistics as slow

ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.booleans(), st.integers(-5, 5), st.integers(-9, 9)),
    min_size=1,
    max_size=24,
)
FEW = 100  # resamples: only the point estimates are looked at


def columns(rows):
    group, label, score, fluency = (np.array(c) for c in zip(*rows, strict=True))
    return group, label.astype(bool), score.astype(float), fluency / 7


def point(label, group, score):
    return judge(label, group, {"s": score}, resamples=FEW).raw["s"].point


@given(ROWS)
@settings(max_examples=100, deadline=None)
def test_equals_two_loops(rows):
    group, label, score, _ = columns(rows)
    assert point(label, group, score) == pytest.approx(slow.auc(score, label, group), nan_ok=True)


@given(ROWS, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_symmetries(rows, random):
    group, label, score, _ = columns(rows)
    found = point(label, group, score)
    order = list(range(len(rows)))
    random.shuffle(order)
    assert found == pytest.approx(point(label[order], group[order], score[order]), nan_ok=True)
    for rising in (np.exp(score / 3), score**3, 1e6 + 2.5 * score):
        assert found == pytest.approx(point(label, group, rising), nan_ok=True)
    assert point(label, group, -score) == pytest.approx(1 - found, nan_ok=True)
    assert point(~label, group, score) == pytest.approx(1 - found, nan_ok=True)
    shifted = score + 100.0 * group  # nothing that differs between groups can matter
    assert found == pytest.approx(point(label, group, shifted), nan_ok=True)
    constant = point(label, group, np.full(len(rows), 3.0))
    assert np.isnan(constant) if np.isnan(found) else constant == 0.5


@given(ROWS)
@settings(max_examples=100, deadline=None)
def test_residualised_equals_a_least_squares_fit(rows):
    group, label, score, fluency = columns(rows)
    noisy = score + np.linspace(0, 0.1, len(score)) ** 2  # no exact ties among residuals
    report = judge(label, group, {"s": noisy}, fluency, resamples=FEW)
    left = slow.residuals(noisy, fluency, group)
    left = np.round(left, 9)  # the fit's own rounding is not a ranking
    assert report.residualized is not None
    assert report.residualized["s"].point == pytest.approx(
        slow.auc(left, label, group), nan_ok=True, abs=1e-9
    )


@given(ROWS, st.sampled_from([0.1, 1 / 7, 0.5, 10.0]))
@settings(max_examples=60, deadline=None)
def test_matched_pairs(rows, delta):
    group, label, _, fluency = columns(rows)
    code, n = group_codes(group)
    pairs = within_group_pairs(label, code, n)
    expected = {
        (i, j)
        for i in range(len(rows))
        for j in range(len(rows))
        if group[i] == group[j]
        and label[i]
        and not label[j]
        and abs(fluency[i] - fluency[j]) <= delta + 1e-12
    }
    near = matched(pairs, fluency, delta)
    assert set(zip(near.shows.tolist(), near.lacks.tolist(), strict=True)) == expected
    assert len(near) == len(expected)


def test_decimal_differences_equal_to_the_bound_match():
    pairs = within_group_pairs(np.array([True, False]), np.array([0, 0]), 1)
    assert 1.3 - 1.2 > 0.1  # as floats
    assert len(matched(pairs, np.array([1.3, 1.2]), 0.1)) == 1
    assert len(matched(pairs, np.array([1.3001, 1.2]), 0.1)) == 0


@pytest.mark.parametrize("shift", [0.0, 5.0, -1234.5])
@pytest.mark.parametrize("factor", [1.0, -3.7, 1e-4])
def test_a_score_that_is_fluency_leaves_only_ties(shift, factor):
    generator = np.random.default_rng(0)
    group = np.repeat(np.arange(30), 8)
    label, fluency = generator.random(240) < 0.5, -generator.random(240)
    report = judge(label, group, {"s": factor * fluency + shift}, fluency, resamples=FEW)
    assert report.residualized is not None
    assert report.residualized["s"].point == 0.5
    assert any("linear function of fluency" in w for w in report.warnings)


def test_constant_fluency_controls_nothing():
    generator = np.random.default_rng(1)
    group = np.repeat(np.arange(20), 6)
    fluency = np.repeat(-generator.random(20), 6)
    label, score = generator.random(120) < 0.5, generator.normal(size=120)
    code, n = group_codes(group)
    fitted = residualize(score, fluency, code, within_group_pairs(label, code, n))
    assert fitted.constant and fitted.slopes == 0.0
    report = judge(label, group, {"s": score}, fluency, resamples=FEW)
    assert report.residualized == report.raw
    assert "fluency varies inside no group: nothing is controlled for" in report.warnings


def test_no_pairs_and_one_group():
    label, group = np.array([True, True, False]), np.array([0, 0, 1])
    report = judge(label, group, {"s": np.arange(3.0)}, np.arange(3.0), resamples=FEW)
    assert report.pairs == report.matched_pairs == report.groups_with_pairs == 0
    assert np.isnan(report.raw["s"].point)
    assert report.residualized is not None and np.isnan(report.residualized["s"].point)
    one = judge(np.array([True, False, True]), group, {"s": np.arange(3.0)}, resamples=FEW)
    assert one.raw["s"].point == 0.0
    assert np.isnan(one.raw["s"].lo)
    assert any("only 1 group" in w for w in one.warnings)


def test_few_groups_are_warned_about():
    group = np.repeat(np.arange(9), 2)
    label = np.tile([True, False], 9)
    report = judge(label, group, {"s": np.arange(18.0)}, resamples=FEW)
    assert any("only 9 groups" in w for w in report.warnings)
    group = np.repeat(np.arange(10), 2)
    report = judge(np.tile([True, False], 10), group, {"s": np.arange(20.0)}, resamples=FEW)
    assert report.warnings == ()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"resamples": 99}, "resamples is 99"),
        ({"delta": 0.0}, "matched is 0.0"),
        ({"delta": float("nan")}, "matched is nan"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_settings_out_of_range(setting, message):
    with pytest.raises(BehaviorTraceError, match=message):
        judge(np.array([True, False]), np.array([0, 0]), {"s": np.arange(2.0)}, **setting)


def test_too_many_pairs_are_refused(monkeypatch):
    monkeypatch.setattr(auc_module, "MAX_PAIRS", 3)
    label, code = np.array([True, True, False, False]), np.zeros(4, dtype=np.int64)
    with pytest.raises(BehaviorTraceError, match="hold 4 pairs, above the limit of 3"):
        within_group_pairs(label, code, 1)


def test_credit():
    assert credit(np.array([1.0, 0.0, -1.0])).tolist() == [1.0, 0.5, 0.0]
    assert credit(np.array([0.2, -0.2, 0.3]), 0.25).tolist() == [0.5, 0.5, 1.0]


def test_published_values():
    rows = published("rollout_rows_seed2.csv")
    names = ["cos_centered", "cos_plain", "norm", "fluency"]
    report = judge(
        rows["has_behavior"].to_numpy() == 1,
        rows["group"].to_numpy(),
        {name: rows[name].to_numpy() for name in names},
        rows["fluency"].to_numpy(),
    )
    assert (report.pairs, report.groups, report.matched_pairs) == (882, 156, 136)
    raw = [round(report.raw[name].point, 4) for name in names]
    assert raw == [0.6689, 0.6519, 0.7211, 0.7245]
    assert report.residualized is not None
    controlled = [round(report.residualized[name].point, 4) for name in names]
    assert controlled == [0.6293, 0.6077, 0.7370, 0.5]


@pytest.mark.parametrize("control", ["linear", "spline"])
@pytest.mark.parametrize("power", [-1000, -600, 600, 1000])
def test_the_unit_of_score_and_fluency_does_not_matter(power, control):
    """Not even where squares overflow or vanish."""
    generator = np.random.default_rng(2)
    group = np.repeat(np.arange(20), 6)
    label, fluency = generator.random(120) < 0.5, generator.normal(size=120)
    score = fluency + generator.normal(size=120)
    options = {"resamples": FEW, "control": control, "delta": 0.1}
    own = judge(label, group, {"s": score}, fluency, **options)
    for a, b in ((power, 0), (0, power), (power, power), (power, -power)):
        found = judge(label, group, {"s": np.ldexp(score, a)}, np.ldexp(fluency, b), **options)
        assert found.residualized == own.residualized
        assert not any("nothing is controlled for" in said for said in found.warnings)
