import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from behaviortrace.bench.seeds import SPREADS, coverage_over_seeds
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate.components import components, sign_flips, standard_error

SEEDS, DRAWS = 3, 2
SEED = np.repeat(np.arange(SEEDS), DRAWS)


def measured(rng, between, draws, error, mean=0.6, seed=SEED):
    n = len(np.unique(seed))
    noise = rng.normal(size=len(seed)) * np.hypot(draws, error)
    return mean + between * rng.normal(size=n)[seed] + noise


def close(a, b, tolerance=1e-9):
    return a.point == pytest.approx(b.point, abs=tolerance) and (a.lo, a.hi) == pytest.approx(
        (b.lo, b.hi), abs=tolerance
    )


@given(
    st.lists(st.floats(0.3, 0.8), min_size=6, max_size=6),
    st.lists(st.floats(0.01, 0.1), min_size=6, max_size=6),
    st.floats(-0.1, 0.1),
)
@settings(max_examples=40, deadline=None)
def test_order_does_not_matter_and_a_shift_only_shifts(auc, error, shift):
    auc, error = np.array(auc), np.array(error)
    found = components(SEED, auc, error)
    assert 0 <= found.mean.lo <= found.mean.point <= found.mean.hi <= 1
    for part in (found.between_seeds, found.between_draws):
        assert 0 <= part.lo <= part.hi
    back = slice(None, None, -1)
    again = components(SEED, auc[back], error[back])  # seeds 0 and 2 change names
    for name in ("mean", "between_seeds", "between_draws", "within_draw"):
        assert close(getattr(found, name), getattr(again, name))
    moved = components(SEED, auc + shift, error)
    assert moved.mean.point == pytest.approx(found.mean.point + shift)
    assert close(moved.between_seeds, found.between_seeds, 1e-6)
    assert close(moved.between_draws, found.between_draws, 1e-6)


def test_without_errors_the_moments_are_those_of_the_analysis_of_variance():
    seed = np.repeat(np.arange(5), 4)
    auc = measured(np.random.default_rng(0), 0.08, 0.03, 0.0, seed=seed)
    found = components(seed, auc, np.zeros(20))
    table = auc.reshape(5, 4)
    inside, across = table.var(axis=1, ddof=1).mean(), 4 * table.mean(axis=1).var(ddof=1)
    assert found.between_draws.point == pytest.approx(np.sqrt(inside), rel=1e-6)
    assert found.between_seeds.point == pytest.approx(np.sqrt((across - inside) / 4), rel=1e-6)
    chi = stats.chi2(15).ppf([0.975, 0.025])
    assert (found.between_draws.lo, found.between_draws.hi) == pytest.approx(
        np.sqrt(15 * inside / chi), rel=0.03
    )


def test_the_mean_is_students_t_on_seeds_where_errors_do_not_matter():
    auc = measured(np.random.default_rng(1), 0.05, 0.0, 1e-5)
    means = auc.reshape(SEEDS, DRAWS).mean(axis=1)
    expected = stats.t(2, means.mean(), means.std(ddof=1) / np.sqrt(3)).interval(0.95)
    found = components(SEED, auc, np.full(6, 1e-5))
    assert (found.mean.lo, found.mean.hi) == pytest.approx(expected, abs=2e-4)
    assert (found.student.lo, found.student.hi) == pytest.approx(expected, abs=1e-9)


def sampled(auc, error, rng, samples=200_000):
    """The slow twin: pivotal quantities drawn at random, solved by bisection; balanced designs.

    Returns the drawn means, and variances between seeds.
    """
    table, own = auc.reshape(SEEDS, DRAWS), error**2

    def root(form, chi):
        lo, hi = np.zeros(samples), np.full(samples, 1e6)
        for _ in range(200):
            middle = (lo + hi) / 2
            lo, hi = np.where(form(middle) > chi, [middle, hi], [lo, middle])
        return np.where(form(np.zeros(samples)) > chi, (lo + hi) / 2, 0)

    inside, across = table.var(axis=1).sum() * DRAWS, table.mean(axis=1).var() * SEEDS
    draws = root(lambda v: inside / (v + own), rng.chisquare(SEEDS * (DRAWS - 1), samples))
    apart = (draws + own) / DRAWS
    seeds = root(lambda v: across / (v + apart), rng.chisquare(SEEDS - 1, samples))
    spread = np.sqrt((seeds + apart) / SEEDS)
    return auc.mean() + spread * rng.normal(size=samples), seeds


@pytest.mark.parametrize("between", [0.0, 0.05])
def test_the_integrals_are_those_of_pivotal_quantities_drawn_at_random(between):
    auc = measured(np.random.default_rng(5), between, 0.03, 0.03)
    found = components(SEED, auc, np.full(6, 0.03))
    mean, seeds = sampled(auc, 0.03, np.random.default_rng(6))
    ends = np.clip(np.percentile(mean, [2.5, 97.5]), 0, 1)
    assert (found.mean.lo, found.mean.hi) == pytest.approx(ends, abs=0.003)
    ends = np.sqrt(np.percentile(seeds, [2.5, 97.5]))
    parts = found.between_seeds.lo, found.between_seeds.hi
    assert parts == pytest.approx(ends, rel=0.02, abs=1e-6)


@given(
    st.lists(st.floats(0.3, 0.8), min_size=6, max_size=6),
    st.lists(st.floats(0.01, 0.1), min_size=6, max_size=6),
)
@settings(max_examples=20, deadline=None)
def test_more_nodes_change_nothing(auc, error):
    """A verdict must not hang on how finely it was integrated."""
    few, many = (components(SEED, auc, error, nodes=n) for n in (64, 160))
    for name in ("mean", "between_seeds", "between_draws", "fresh"):
        assert close(getattr(few, name), getattr(many, name), 1e-3)


def test_equal_results_leave_the_draws_own_error():
    found = components(SEED, np.full(6, 0.6), np.full(6, 0.03))
    assert found.between_seeds.point == found.between_draws.point == 0
    assert found.within_draw.point == pytest.approx(0.03)
    half = 1.96 * 0.03 / np.sqrt(6)
    assert (found.mean.lo, found.mean.hi) == pytest.approx((0.6 - half, 0.6 + half), abs=1e-5)
    assert found.verdict == "above"
    assert components(SEED, np.full(6, 0.4), np.full(6, 0.03)).verdict == "below"
    assert components(SEED, np.full(6, 0.51), np.full(6, 0.03)).verdict == "open"


def test_seeds_count_and_not_only_draws():
    """Six draws that all separate say little where the seeds differ as much as this."""
    auc = np.array([0.56, 0.57, 0.68, 0.69, 0.82, 0.83])
    found = components(SEED, auc, np.full(6, 0.02))
    assert found.between_seeds.point == pytest.approx(0.13, abs=0.01)
    assert found.verdict == "open"
    assert found.fresh.lo < found.mean.lo


@pytest.mark.parametrize(("between", "draws"), SPREADS)
def test_three_seeds_of_two_draws_cover(between, draws):
    """The mean's interval holds it as often as it says, and the components' own are not narrower.

    A single draw's interval, which knows of neither, holds it less often the more there is of them.
    """
    n = 400
    found = coverage_over_seeds(between, draws, n)
    slack = 3 * np.sqrt(0.95 * 0.05 / n)
    for name in ("components", "seeds_held", "draws_held"):
        assert found[name] >= 0.94 - slack
    assert found["student"] == pytest.approx(0.95, abs=slack)  # whatever the variances
    if between >= 0.1:  # where seeds differ most the mean's interval is Student's t
        assert found["components"] <= 0.95 + slack
        assert found["one_draw"] < 0.6 and found["all_draws"] < 0.6


def test_what_cannot_be_told_apart_is_refused():
    for seed in ([0, 0, 0], [0, 1, 2]):
        with pytest.raises(BehaviorTraceError, match="cannot tell seeds from draws"):
            components(seed, [0.6, 0.6, 0.7], [0.03] * 3)


def test_unequal_draws_are_weighed():
    seed = [0, 0, 0, 1, 2]
    found = components(seed, [0.6, 0.62, 0.58, 0.6, 0.61], [0.03, 0.04, 0.02, 0.03, 0.05])
    assert (found.seeds, found.draws) == (3, 5)
    assert found.mean.lo < 0.6 < found.mean.hi


def test_sign_flips_as_in_the_paper():
    seed, auc = [0, 0, 1, 1, 2], [0.486, 0.446, 0.624, 0.526, 0.629]
    lo = [0.415, 0.37, 0.548, 0.45, 0.573]
    hi = [0.56, 0.52, 0.70, 0.60, 0.685]
    rows = sign_flips(seed, auc, lo, hi)
    assert [r["flips"] for r in rows] == [False, True, False]  # seed 1 flips its own verdict
    assert [r["separating"] for r in rows] == [0, 1, 1]
    assert [r["above"] for r in rows] == [0, 2, 1]
    assert [r["reversed"] for r in rows] == [0, 0, 0]
    turned = sign_flips(seed, *(1 - np.array(each) for each in (auc, hi, lo)))
    assert [r["reversed"] for r in turned] == [0, 1, 1]
    assert [r["flips"] for r in turned] == [r["flips"] for r in rows]


def test_standard_error_of_an_interval():
    assert standard_error(0.5 - 1.959964 * 0.03, 0.5 + 1.959964 * 0.03) == pytest.approx(0.03)
