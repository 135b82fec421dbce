"""Prompts asked more than once: all of their groups are one unit of every interval."""

import dataclasses

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate.auc import credit, within_group_pairs
from behaviortrace.evaluate.cluster_mean import cluster_percentile
from behaviortrace.evaluate.clusters import by_prompt, cluster_codes, split_group
from behaviortrace.evaluate.fluency import residualize
from behaviortrace.evaluate.power import chance_error, detectable
from behaviortrace.evaluate.spline import spline_fit
from behaviortrace.evaluate.within_group import judge
from tests.reference import statistics as slow

REPEATS = (1, 4, 2, 6, 3, 3, 1, 5)  # groups of each prompt


def study(seed, repeats=REPEATS, size=5):
    """Groups of prompts in random order, the effect varying between prompts."""
    rng = np.random.default_rng(seed)
    asked = rng.permutation(np.repeat(np.arange(len(repeats)), repeats))
    group = np.repeat(np.arange(len(asked)), size)
    prompt = asked[group]
    label = rng.random(len(group)) < 0.5
    fluency = rng.normal(size=len(group)) + 0.7 * label
    effect = 0.6 + rng.normal(size=len(repeats))
    score = rng.normal(size=len(group)) + effect[prompt] * label + 0.5 * fluency
    return label, group, prompt, score, fluency


def test_a_prompts_cluster_is_the_first_group_that_asked_it():
    frame = pl.DataFrame(
        {"group": [7, 3, 5, 3, 9, 8], "prompt": ["a", "b", "a", "b", None, None]},
        schema_overrides={"group": pl.Int32},
    )
    assert by_prompt(frame).tolist() == [5, 3, 5, 3, 9, 8]
    assert by_prompt(frame.head(0)).tolist() == []
    unasked = frame.with_columns(prompt=pl.lit(None, dtype=pl.String))
    assert by_prompt(unasked).tolist() == frame["group"].to_list()


def test_clusters_are_numbered_as_they_appear():
    group = np.array([2, 2, 0, 1, 3, 0])
    cluster = np.array(["x", "x", "z", "x", "a", "z"])
    assert cluster_codes(group, cluster).tolist() == [0, 1, 1, 2]
    assert cluster_codes(group[:0], cluster[:0]).tolist() == []
    assert split_group(group, cluster) is None
    assert split_group(group, np.array(["x", "x", "z", "x", "a", "y"])) == (2, 5)


def test_a_group_in_two_clusters_is_refused_by_name():
    label, group = np.array([True, False] * 2), np.array(["g0", "g0", "g1", "g1"])
    cluster = np.array(["why?", "why?", "how?", "why?"])
    with pytest.raises(BehaviorTraceError, match=r"group g1 lies in clusters 'how\?' and 'why\?'"):
        judge(label, group, {"s": np.arange(4.0)}, cluster=cluster)


@pytest.mark.parametrize("control", ["linear", "spline"])
@given(seed=st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_prompts_asked_once_change_no_number(control, seed):
    label, group, _, score, fluency = study(seed)
    named = np.random.default_rng(seed).permutation(1000)[group]  # a prompt for every group
    options = {"resamples": 100, "seed": 4, "control": control}
    plain = judge(label, group, {"s": score}, fluency, **options)
    found = judge(label, group, {"s": score}, fluency, cluster=named, **options)
    assert repr(found) == repr(plain)  # to the last bit, NaN included
    assert plain.clusters == plain.groups and plain.clusters_with_pairs == plain.groups_with_pairs


def every_interval(report):
    blocks = (report.raw, report.residualized, report.matched)
    found = [block["s"] for block in blocks]
    ends = [(j.lo, j.hi, j.logit_t.lo, j.logit_t.hi, j.p) for j in found]
    return np.array([*np.ravel(ends), report.detectable, report.matched_detectable])


@pytest.mark.parametrize("also", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_relabelling_and_permuting_change_nothing(seed, also):
    label, group, prompt, score, fluency = study(seed)
    size = np.random.default_rng(seed).normal(size=len(label)) + score
    options = {"resamples": 100, "seed": 3, "delta": 0.3}

    def judged(rows, cluster):
        taken = {"also": size[rows]} if also else {}
        given = (label[rows], group[rows], {"s": score[rows]}, fluency[rows])
        return judge(*given, cluster=cluster[rows], **options, **taken)

    rows = np.arange(len(label))
    found = judged(rows, prompt)
    assert found.clusters == len(REPEATS) and found.groups == sum(REPEATS)
    names = np.array([f"prompt {name}" for name in (3, 1, 7, 0, 6, 2, 5, 4)])
    assert judged(rows, names[prompt]) == found
    shuffled = np.random.default_rng(seed).permutation(len(label))
    expected = pytest.approx(every_interval(found), abs=1e-12)
    assert every_interval(judged(shuffled, prompt)) == expected


@pytest.mark.parametrize("control", ["one slope", "two slopes", "spline"])
def test_copies_of_a_prompts_groups_add_no_knowledge(control):
    """Each group asked again with the very same outcome: as if it had been asked once."""
    label, group, _, score, fluency = study(5)
    size = np.random.default_rng(5).normal(size=len(label)) + score
    twice = [np.tile(each, 2) for each in (label, score, fluency, size)]
    copies = np.concatenate([group, group + group.max() + 1])
    options = {"delta": 0.3, "resamples": 100}
    if control == "spline":
        options |= {"control": "spline"}
    one, two = dict(options), dict(options)
    if control == "two slopes":
        one, two = one | {"also": size}, two | {"also": twice[3]}
    once = judge(label, group, {"s": score}, fluency, **one)
    again = judge(twice[0], copies, {"s": twice[1]}, twice[2], cluster=np.tile(group, 2), **two)
    assert every_interval(again)[:-2] == pytest.approx(every_interval(once)[:-2], abs=1e-9)
    apart = judge(twice[0], copies, {"s": twice[1]}, twice[2], **two)
    widths = [r.raw["s"].logit_t.hi - r.raw["s"].logit_t.lo for r in (once, apart)]
    assert widths[1] < 0.8 * widths[0]


def test_the_percentiles_equal_resampling_prompts_slowly():
    label, group, prompt, score, _ = study(1)
    found = judge(label, group, {"s": score}, resamples=200, seed=5, cluster=prompt).raw["s"]
    values = slow.cluster_bootstrap(slow.auc, (score, label), group, prompt, 200, seed=5)
    assert [found.lo, found.hi] == pytest.approx(np.percentile(values, [2.5, 97.5]), abs=1e-12)


@pytest.mark.parametrize("refit", [True, False])
def test_residualised_percentiles_equal_resampling_prompts_slowly(refit):
    label, group, prompt, score, fluency = study(2)
    options = {"resamples": 200, "seed": 6, "refit_slope": refit, "cluster": prompt}
    report = judge(label, group, {"s": score}, fluency, **options)
    assert report.residualized is not None
    found = report.residualized["s"]

    def refitted(score, label, fluency, group):
        return slow.auc(slow.residuals(score, fluency, group), label, group)

    def fixed(score, label, fluency, group):
        return slow.auc(score, label, group)

    columns = (score if refit else slow.residuals(score, fluency, group), label, fluency)
    statistic = refitted if refit else fixed
    values = slow.cluster_bootstrap(statistic, columns, group, prompt, 200, seed=6)
    assert [found.lo, found.hi] == pytest.approx(np.percentile(values, [2.5, 97.5]), abs=1e-9)


def pairs_of_prompts(label, group, prompt):
    """Pairs of every prompt that has any, by loops."""
    held = {}
    for each in set(group):
        own = label[group == each]
        name = prompt[group == each][0]
        held[name] = held.get(name, 0) + own.sum() * (~own).sum()
    return np.array([pairs for pairs in held.values() if pairs], float)


def freedom(label, group, prompt):
    """Prompts by the pairs they hold, less one."""
    weight = pairs_of_prompts(label, group, prompt)
    return weight.sum() ** 2 / (weight**2).sum() - 1


@pytest.mark.parametrize("seed", [3, 4])
def test_logit_t_equals_deleting_one_prompt_at_a_time_slowly(seed):
    label, group, prompt, score, _ = study(seed)
    auc, left = slow.leave_one_out(slow.auc, (score, label, group), prompt)
    n = len(pairs_of_prompts(label, group, prompt))
    error = np.sqrt((n - 1) / n * ((left - auc) ** 2).sum()) / (auc * (1 - auc))
    t = stats.t(freedom(label, group, prompt))
    reach = t.ppf(0.975) * error
    found = judge(label, group, {"s": score}, resamples=100, cluster=prompt).raw["s"]
    assert found.logit_t.lo == pytest.approx(special.expit(special.logit(auc) - reach))
    assert found.logit_t.hi == pytest.approx(special.expit(special.logit(auc) + reach))
    assert found.p == pytest.approx(2 * t.sf(abs(special.logit(auc)) / error))


def test_the_slopes_error_is_counted_over_prompts():
    """The slope of fluency differs between prompts: the whole AUC refitted without each tells."""
    points, counted, by_group = [], [], []
    prompt_of, group = np.repeat(np.arange(25), 6), np.repeat(np.arange(150), 4)
    for seed in range(300):
        rng = np.random.default_rng(seed)
        label = rng.random(600) < 0.5
        fluency = rng.normal(size=600) + 1.5 * label
        own = rng.lognormal(0, 0.8, 25)[prompt_of][group]
        score = 2 * fluency * own + rng.normal(size=600)
        errors = []
        for cluster_of in (prompt_of, None):
            pairs = within_group_pairs(label, group, 150, cluster_of)
            residual = residualize(score, fluency, group, pairs)
            won = residual.credit()
            moved = pairs.per_cluster(won) - won.mean() * pairs.per_cluster()
            errors.append(((moved / len(pairs) + residual.shift(pairs)) ** 2).sum())
        points.append(won.mean())
        counted.append(errors[0])
        by_group.append(errors[1])
    assert np.sqrt(np.mean(counted)) == pytest.approx(np.std(points), rel=0.12)
    assert np.sqrt(np.mean(by_group)) < 0.8 * np.std(points)


def test_against_scipy_on_the_sums_of_prompts():
    label, group, prompt, score, _ = study(6, repeats=(2, 3, 4, 5) * 10)
    pairs = within_group_pairs(label, group, 140, cluster_codes(group, prompt))
    wins, number = pairs.per_cluster(credit(pairs.difference(score))), pairs.per_cluster()
    assert wins.shape == (40,)

    def statistic(wins, number, axis=-1):
        return wins.sum(axis=axis) / number.sum(axis=axis)

    options = {"paired": True, "vectorized": True, "n_resamples": 20_000, "method": "percentile"}
    rng = np.random.default_rng(1)
    expected = stats.bootstrap((wins, number), statistic, rng=rng, **options).confidence_interval
    found = judge(label, group, {"s": score}, resamples=20_000, seed=2, cluster=prompt).raw["s"]
    assert (found.lo, found.hi) == pytest.approx((expected.low, expected.high), abs=0.004)


def test_no_prompt_is_fitted_on_itself_by_the_spline():
    _, group, prompt, score, fluency = study(7)
    cluster_of = cluster_codes(group, prompt)
    fitted = spline_fit(score, fluency, group, sum(REPEATS), 0, cluster_of)
    own = prompt == 3
    changed = np.where(own, score + 5 * np.sin(9 * fluency), score)
    again = spline_fit(changed, fluency, group, sum(REPEATS), 0, cluster_of)
    assert again[own] == pytest.approx(fitted[own])
    assert np.abs(again - fitted).max() > 1e-3
    one = spline_fit(score, fluency, group, sum(REPEATS), 0, np.zeros(sum(REPEATS), dtype=int))
    assert (one == 0).all()  # no other prompt to fit on


def test_few_prompts_are_told_however_many_groups_there_are():
    label, group, prompt, score, _ = study(8, repeats=(10, 10, 10))
    report = judge(label, group, {"s": score}, resamples=100, cluster=prompt)
    (warning,) = report.warnings
    assert warning.startswith("only 3 clusters have pairs") and "go by the logit-t" in warning
    apart = judge(label, group, {"s": score}, resamples=100)
    assert not apart.warnings
    widths = [r.raw["s"].logit_t.hi - r.raw["s"].logit_t.lo for r in (report, apart)]
    assert widths[0] > widths[1] and stats.t(2).ppf(0.975) > 4  # t follows the three prompts
    single = judge(label, group, {"s": score}, resamples=100, cluster=np.zeros(len(label)))
    assert np.isnan(single.raw["s"].logit_t.lo) and not np.isnan(single.raw["s"].point)
    assert single.warnings[0].startswith("only 1 cluster has pairs")


def test_what_is_detectable_has_the_prompts_degrees_of_freedom():
    label, group, prompt, _, _ = study(9)
    pairs = within_group_pairs(label, group, sum(REPEATS), cluster_codes(group, prompt))
    apart = dataclasses.replace(pairs, cluster_of=np.arange(sum(REPEATS)))
    assert chance_error(pairs) == chance_error(apart)  # of a score that knows nothing
    t = stats.t(freedom(label, group, prompt))
    reach = (t.ppf(0.975) + t.ppf(0.8)) * 4 * chance_error(pairs)
    assert detectable(pairs) == pytest.approx(special.expit(reach))
    assert detectable(pairs) > detectable(apart)
    assert np.isnan(detectable(dataclasses.replace(pairs, cluster_of=np.zeros(25, dtype=int))))


def test_a_mean_equals_resampling_prompts_slowly():
    _, group, prompt, score, _ = study(10)

    def mean(values, group):
        return values.mean()

    cluster = cluster_codes(group, prompt)[group]
    found = cluster_percentile(score, cluster, 200, seed=3)
    values = slow.cluster_bootstrap(mean, (score,), group, prompt, 200, seed=3)
    assert [found.lo, found.hi] == pytest.approx(np.percentile(values, [2.5, 97.5]))
