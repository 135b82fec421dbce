import time

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from behaviortrace.evaluate.auc import credit, group_codes, within_group_pairs
from behaviortrace.evaluate.bootstrap import (
    percentile_interval,
    ratio,
    resample_counts,
)
from behaviortrace.evaluate.fluency import residualize
from behaviortrace.evaluate.within_group import judge
from tests.published import published
from tests.reference import statistics as slow


def sample(seed, groups=25, size=5, effect=0.8, spread=0.0):
    generator = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), size)
    label = generator.random(groups * size) < 0.5
    fluency = generator.normal(size=groups * size) + 0.7 * label
    lean = effect + spread * generator.normal(size=groups)
    score = generator.normal(size=groups * size) + lean[group] * label + 0.5 * fluency
    return label, group, score, fluency


def ends(values):
    return np.percentile(values, [2.5, 97.5])


def test_counts_are_draws_with_replacement(monkeypatch):
    whole = np.concatenate(list(resample_counts(7, 300, seed=3)))
    assert whole.shape == (300, 7)
    assert (whole.sum(axis=1) == 7).all()
    assert abs(whole.mean() - 1) < 1e-12
    assert whole.var() == pytest.approx(6 / 7, abs=0.1)  # binomial(7, 1/7)
    assert (whole == np.concatenate(list(resample_counts(7, 300, seed=3)))).all()
    assert (whole != np.concatenate(list(resample_counts(7, 300, seed=4)))).any()
    monkeypatch.setattr("behaviortrace.evaluate.bootstrap._CELLS", 70)
    chunks = list(resample_counts(7, 300, seed=3))
    assert len(chunks) == 30
    assert (np.concatenate(chunks) == whole).all()


def test_raw_interval_equals_resampling_rows_slowly():
    label, group, score, _ = sample(0)
    report = judge(label, group, {"s": score}, resamples=200, seed=5)

    def statistic(score, label, group):
        return slow.auc(score, label, group)

    values = slow.bootstrap(statistic, (score, label), group, resamples=200, seed=5)
    found = report.raw["s"]
    assert [found.lo, found.hi] == pytest.approx(ends(values), abs=1e-12)


@pytest.mark.parametrize("refit", [True, False])
def test_residualised_interval_equals_resampling_rows_slowly(refit):
    label, group, score, fluency = sample(1)
    report = judge(label, group, {"s": score}, fluency, resamples=200, seed=6, refit_slope=refit)

    def refitted(score, label, fluency, group):
        return slow.auc(slow.residuals(score, fluency, group), label, group)

    def fixed(score, label, fluency, group):
        return slow.auc(score, label, group)

    columns = (score if refit else slow.residuals(score, fluency, group), label, fluency)
    statistic = refitted if refit else fixed
    values = slow.bootstrap(statistic, columns, group, resamples=200, seed=6)
    assert report.residualized is not None
    found = report.residualized["s"]
    assert [found.lo, found.hi] == pytest.approx(ends(values), abs=1e-9)


def test_refitting_changes_the_interval_but_not_the_point():
    label, group, score, fluency = sample(2)
    ways = [
        judge(label, group, {"s": score}, fluency, resamples=500, refit_slope=refit).residualized
        for refit in (True, False)
    ]
    assert ways[0] is not None and ways[1] is not None
    assert ways[0]["s"].point == ways[1]["s"].point
    assert ways[0]["s"].lo != ways[1]["s"].lo


@given(st.integers(0, 10_000), st.integers(2, 12), st.sampled_from([1, 7, 100, 10**6]))
@settings(max_examples=40, deadline=None)
def test_settled_pairs_are_a_shortcut_only(seed, groups, cells):
    generator = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), 4)
    label = generator.random(len(group)) < 0.5
    score, fluency = (generator.integers(-4, 5, len(group)) / 4 for _ in range(2))
    code, n = group_codes(group)
    pairs = within_group_pairs(label, code, n)
    residual = residualize(score, fluency, code, pairs)
    counts = next(resample_counts(n, 50, seed))
    cross, square = counts @ residual.cross[:, 0], counts @ residual.square[:, 0, 0]
    expected = []
    for row in range(50):
        slope = cross[row] / square[row] if square[row] > 0 else 0.0
        expected.append((residual.credit(np.array([slope])) * counts[row][pairs.group]).sum())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("behaviortrace.evaluate.fluency._CELLS", cells)
        assert residual.resampled_wins(counts, pairs) == pytest.approx(expected, abs=1e-9)


def test_against_scipy_on_the_group_level_statistic():
    label, group, score, _ = sample(3, groups=40)
    code, n = group_codes(group)
    pairs = within_group_pairs(label, code, n)
    wins, number = pairs.per_group(credit(pairs.difference(score))), pairs.per_group()

    def statistic(wins, number, axis=-1):
        return wins.sum(axis=axis) / number.sum(axis=axis)

    expected = stats.bootstrap(
        (wins, number),
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    found = judge(label, group, {"s": score}, resamples=20_000, seed=2).raw["s"]
    assert found.lo == pytest.approx(expected.low, abs=0.004)
    assert found.hi == pytest.approx(expected.high, abs=0.004)


def test_undefined_resamples_are_left_out():
    values = np.array([np.nan, *np.linspace(0, 1, 1001)])
    interval = percentile_interval(0.5, values)
    assert (interval.lo, interval.hi) == pytest.approx((0.025, 0.975))
    none = percentile_interval(0.5, np.array([np.nan]))
    assert np.isnan(none.lo) and none.reason == "it is undefined in every resample"
    same = percentile_interval(0.5, np.full(100, 0.5) + 1e-15 * np.arange(100))
    assert same.point == 0.5 and np.isnan([same.lo, same.hi]).all()
    assert "no group differs" in same.reason and interval.reason is None
    assert np.isnan(ratio(np.array([1.0, 1.0]), np.array([0.0, 2.0]))).tolist() == [True, False]


def test_intervals_cover_about_as_often_as_they_say():
    truth_label, truth_group, truth_score, _ = sample(99, groups=20_000, spread=0.5)
    truth = judge(truth_label, truth_group, {"s": truth_score}, resamples=100).raw["s"].point
    inside = 0
    for seed in range(150):
        label, group, score, _ = sample(seed, groups=40, spread=0.5)
        found = judge(label, group, {"s": score}, resamples=300, seed=seed).raw["s"]
        inside += found.lo <= truth <= found.hi
    assert 0.88 <= inside / 150 <= 0.99


def test_published_intervals():
    rows = published("rollout_rows_seed2.csv")
    expected = published("published_results_table.csv").filter(pl.col("table").str.contains("roll"))
    ours = {"gas_centered": "cos_centered", "cosine_plain": "cos_plain"}
    names = ["cos_centered", "cos_plain", "norm", "fluency"]
    start = time.perf_counter()
    report = judge(
        rows["has_behavior"].to_numpy() == 1,
        rows["group"].to_numpy(),
        {name: rows[name].to_numpy() for name in names},
        rows["fluency"].to_numpy(),
    )
    assert time.perf_counter() - start < 2.0
    assert report.residualized is not None
    compared = 0
    for table, method, value, lo, hi in expected.select(
        "table", "method", "value", "lo", "hi"
    ).iter_rows():
        block = report.raw if table == "rollout_raw" else report.residualized
        found = block[ours.get(method, method)]
        assert found.point == pytest.approx(value, abs=5e-5)
        assert found.lo == pytest.approx(lo, abs=0.01)
        assert found.hi == pytest.approx(hi, abs=0.01)
        compared += 1
    assert compared == 7
    norm = report.residualized["norm"]
    assert (norm.lo, norm.hi) == pytest.approx((0.684, 0.789), abs=0.01)
