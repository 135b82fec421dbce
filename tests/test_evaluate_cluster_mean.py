import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from behaviortrace.bench.cases import Case
from behaviortrace.bench.intervals import coverage
from behaviortrace.evaluate.cluster_mean import cluster_percentile, cluster_t

ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.floats(-1, 1).map(lambda x: round(x, 3))), min_size=1
)


def test_percentiles_against_scipy():
    generator = np.random.default_rng(0)
    cluster = np.repeat(np.arange(30), 4)
    values = generator.normal(size=120) + generator.normal(size=30)[cluster]
    means = values.reshape(30, 4).mean(axis=1)  # equal sizes: the mean of cluster means
    expected = stats.bootstrap(
        (means,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    found = cluster_percentile(values, cluster, 20_000, seed=2)
    assert found.point == pytest.approx(values.mean())
    assert found.lo == pytest.approx(expected.low, abs=0.01)
    assert found.hi == pytest.approx(expected.high, abs=0.01)
    single = cluster_percentile(values[:4], cluster[:4], 100, seed=0)
    assert np.isnan(single.lo) and not np.isnan(single.point)
    assert np.isnan(cluster_percentile(values[:0], cluster[:0], 100, seed=0).point)


def test_t_is_the_textbooks_where_every_cluster_is_one_row():
    values = np.random.default_rng(0).normal(size=12)
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    found = cluster_t(values, np.arange(12))
    assert (found.lo, found.hi) == pytest.approx((expected.low, expected.high))


def test_t_equals_deleting_one_cluster_at_a_time_slowly():
    rng = np.random.default_rng(1)
    cluster = rng.integers(0, 7, 40)
    values = rng.normal(size=40) + cluster
    left_out = np.array([values[cluster != each].mean() for each in range(7)])
    error = np.sqrt(6 / 7 * ((left_out - values.mean()) ** 2).sum())
    size = np.bincount(cluster)
    reach = stats.t(40**2 / (size**2).sum() - 1).ppf(0.975) * error
    found = cluster_t(values, cluster)
    assert (found.lo, found.hi) == pytest.approx((values.mean() - reach, values.mean() + reach))


@given(ROWS)
@settings(max_examples=200, deadline=None)
def test_properties(rows):
    cluster, values = np.array([c for c, _ in rows]), np.array([v for _, v in rows])
    found = cluster_t(values, cluster)
    assert found.point == pytest.approx(values.mean(), abs=1e-12)
    if len(set(cluster)) < 2:
        assert np.isnan([found.lo, found.hi]).all()
        return
    means = [values[cluster == each].mean() for each in set(cluster)]
    if np.ptp(means) < 1e-12:
        assert np.isnan([found.lo, found.hi]).all() and "no cluster differs" in found.reason
        return
    assert found.lo <= found.point <= found.hi and found.reason is None
    mirrored = cluster_t(-values, cluster + 10)
    assert (mirrored.lo, mirrored.hi) == pytest.approx((-found.hi, -found.lo), abs=1e-9)
    twice = cluster_t(np.tile(values, 2), np.tile(cluster, 2))  # copies add no knowledge
    assert (twice.lo, twice.hi) == pytest.approx((found.lo, found.hi), abs=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.1, 1.0, -1 / 3])
def test_clusters_that_do_not_differ_have_no_interval(value):
    values, cluster = np.full(15, value), np.arange(15) % 4
    for found in (cluster_t(values, cluster), cluster_percentile(values, cluster, 200, seed=0)):
        assert found.point == pytest.approx(value)
        assert np.isnan([found.lo, found.hi]).all() and "no cluster differs" in found.reason
    single = cluster_t(values[:3], np.zeros(3))
    assert single.reason == "only one cluster has rows, so there is nothing to resample"


@pytest.mark.parametrize(
    "case",
    [
        Case("few", groups=12),
        Case("very few", groups=6),
        Case("unequal", 15, (3, 10), rate_spread=0.7),
    ],
)
def test_the_mean_is_covered_where_percentiles_are_too_narrow(case):
    found = {
        row["method"]: row
        for row in coverage(case, 600, resamples=300)
        if row["statistic"] == "mean"
    }
    assert 0.93 <= found["t"]["covered"] <= 0.975
    assert found["percentile"]["covered"] < found["t"]["covered"]
