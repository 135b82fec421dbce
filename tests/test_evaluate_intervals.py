import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from behaviortrace.bench.candidates import candidates
from behaviortrace.bench.cases import AUCS, CASES, Case
from behaviortrace.bench.intervals import coverage
from behaviortrace.cli import view
from behaviortrace.cli.app import main
from behaviortrace.evaluate.auc import within_group_pairs
from behaviortrace.evaluate.fluency import residualize
from behaviortrace.evaluate.logit_t import logit_t
from behaviortrace.evaluate.within_group import judge

GROUPS = st.lists(
    st.tuples(st.integers(0, 6), st.floats(0, 1).map(lambda x: round(x, 2))), min_size=2, max_size=9
)


def sums(groups):
    pairs = np.array([n for n, _ in groups], float)
    return np.round(2 * pairs * np.array([x for _, x in groups])) / 2, pairs


def ends(found):
    return float(found.lo), float(found.hi)


@given(GROUPS)
@settings(max_examples=200, deadline=None)
def test_properties(groups):
    wins, pairs = sums(groups)
    found = logit_t(wins, pairs)
    if np.count_nonzero(pairs) < 2:
        assert np.isnan([found.lo, found.hi, found.p]).all()
        return
    auc = wins.sum() / pairs.sum()
    assert 0 <= found.lo <= auc + 1e-12 and auc - 1e-12 <= found.hi <= 1
    assert found.hi - found.lo > 0  # never a point, however alike the groups are
    assert bool(found.p < 0.05) == bool(found.lo > 0.5 or found.hi < 0.5)
    other = logit_t(pairs - wins, pairs)
    assert ends(other) == pytest.approx((1 - ends(found)[1], 1 - ends(found)[0]), abs=1e-9)
    assert float(other.p) == pytest.approx(float(found.p), abs=1e-9)
    order = np.random.default_rng(0).permutation(len(pairs))
    for w, n in (
        (wins[order], pairs[order]),
        (3 * wins, 3 * pairs),
        (np.append(wins, 0), np.append(pairs, 0)),  # a group without pairs says nothing
    ):
        assert ends(logit_t(w, n)) == pytest.approx(ends(found), abs=1e-9)


@given(GROUPS)
@settings(max_examples=50, deadline=None)
def test_many_studies_at_once_are_each_their_own(groups):
    wins, pairs = sums(groups)
    both = logit_t(np.stack([wins, pairs - wins]), pairs)
    for row, each in enumerate((wins, pairs - wins)):
        one = logit_t(each, pairs)
        assert both.lo[row] == pytest.approx(float(one.lo), nan_ok=True)


def test_equals_deleting_one_group_at_a_time_slowly():
    rng = np.random.default_rng(0)
    pairs = rng.integers(1, 12, 14).astype(float)
    wins = rng.binomial(pairs.astype(int), 0.7).astype(float)
    auc = wins.sum() / pairs.sum()
    squares = 0.0
    for left in range(14):
        rest = np.arange(14) != left
        squares += (wins[rest].sum() / pairs[rest].sum() - auc) ** 2
    error = np.sqrt(squares * 13 / 14) / (auc * (1 - auc))
    freedom = pairs.sum() ** 2 / (pairs**2).sum() - 1
    reach = stats.t(freedom).ppf(0.975) * error
    found = logit_t(wins, pairs)
    assert found.lo == pytest.approx(special.expit(special.logit(auc) - reach))
    assert found.hi == pytest.approx(special.expit(special.logit(auc) + reach))
    assert found.p == pytest.approx(2 * stats.t(freedom).sf(special.logit(auc) / error))


def test_the_error_of_the_fitted_slope_is_counted():
    """A score that fluency explains wins and loses by its slope, which follows the same groups.

    An interval that takes the slope as known is then too wide; near 1 it is too narrow.
    """
    points, counted, left_out = [], [], []
    group = np.repeat(np.arange(60), 8)
    for seed in range(300):
        rng = np.random.default_rng(seed)
        label = rng.random(480) < 0.5
        fluency = rng.normal(size=480) + 1.5 * label
        score = 2 * fluency * rng.lognormal(0, 0.5, 60)[group] + rng.normal(size=480)
        pairs = within_group_pairs(label, group, 60)
        residual = residualize(score, fluency, group, pairs)
        credit = residual.credit()
        points.append(credit.mean())
        moved = (pairs.per_group(credit) - credit.mean() * pairs.per_group()) / len(pairs)
        counted.append(((moved + residual.shift(pairs)) ** 2).sum())
        left_out.append((moved**2).sum())
    error = np.std(points)
    assert np.sqrt(np.mean(counted)) == pytest.approx(error, rel=0.12)
    assert np.sqrt(np.mean(left_out)) > 1.2 * error


def test_an_auc_of_exactly_one_has_an_honest_interval():
    """The paper's bootstrap would say [1, 1]: it has never seen a loss, so it believes in none."""
    lowest = []
    for groups in (2, 5, 20, 80):
        group, label = np.repeat(np.arange(groups), 4), np.tile([True, True, False, False], groups)
        found = judge(label, group, {"s": label.astype(float)}, resamples=100).raw["s"]
        assert found.point == 1.0 and np.isnan([found.lo, found.hi]).all()
        assert "no group differs" in found.reason and found.logit_t.reason is None
        assert found.logit_t.lo == pytest.approx(0.025 ** (1 / groups))
        assert found.logit_t.hi == 1.0
        lowest.append(found.logit_t.lo)
    assert lowest == sorted(lowest)


def test_all_ties_are_no_evidence_either_way():
    group, label = np.repeat(np.arange(20), 4), np.tile([True, False], 40)
    found = judge(label, group, {"s": np.zeros(80)}, resamples=100).raw["s"]
    assert (found.point, found.p) == (0.5, 1.0)
    for interval in (found, found.logit_t):
        assert np.isnan([interval.lo, interval.hi]).all()
        assert interval.reason == "every pair ties"


@pytest.mark.parametrize("won", [0, 1, 2, 3, 4])
def test_groups_that_do_not_differ_have_no_percentile_interval(won):
    """2 x 2 rollouts a group, of whose four pairs each group wins as many; none ties."""
    scores = [(0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 1, 2), (1, 3, 0, 2), (2, 3, 0, 1)][won]
    group, label = np.repeat(np.arange(10), 4), np.tile([True, True, False, False], 10)
    found = judge(label, group, {"s": np.tile(scores, 10) * 1.0}, resamples=100).raw["s"]
    assert found.point == won / 4
    assert np.isnan([found.lo, found.hi]).all() and "no group differs" in found.reason
    assert found.logit_t.lo <= won / 4 <= found.logit_t.hi
    assert found.logit_t.hi - found.logit_t.lo > 0.2
    one_differs = np.tile(scores, 10) * 1.0
    one_differs[:4] = scores[::-1] if won != 2 else (2, 3, 0, 1)
    other = judge(label, group, {"s": one_differs}, resamples=100).raw["s"]
    assert other.lo < other.hi and other.reason is None


def test_the_reason_is_the_one_that_applies():
    label, score = np.tile([True, False], 4), np.arange(8.0)
    lone = judge(label, np.zeros(8), {"s": score}, resamples=100).raw["s"]
    assert lone.reason == "only one group has pairs, so there is nothing to resample"
    assert lone.logit_t.reason == lone.reason and np.isnan([lone.lo, lone.logit_t.hi]).all()
    group, cluster = np.repeat(np.arange(4), 2), np.repeat(np.arange(2), 4)
    alike = judge(label, group, {"s": score}, resamples=100, cluster=cluster).raw["s"]
    assert alike.point == 0.0 and "no cluster differs" in alike.reason
    lone = judge(label, group, {"s": score}, resamples=100, cluster=np.zeros(8)).raw["s"]
    assert lone.reason == "only one cluster has pairs, so there is nothing to resample"


def rows_of(case, studies):
    found = coverage(case, studies, resamples=200)
    return {(row["statistic"], row["method"]): row for row in found}


@pytest.mark.parametrize("name", ["null, unequal groups", "effect, few groups", "near 1"])
def test_the_interval_holds_as_often_as_it_says(name):
    """Within what the simulation can tell from 93% to 97%, and 100% is outside."""
    studies = 400
    case = next(c for c in CASES if c.name == name)
    found = rows_of(case, studies)
    for statistic in ("raw", "residualized", "matched"):
        row = found[statistic, "logit-t"]
        assert 0.93 - 2 * row["error"] <= row["covered"] <= 0.97 + 2 * row["error"], row


@pytest.mark.parametrize("name", ["repeated", "repeated, few prompts", "repeated unequally"])
def test_it_holds_where_prompts_repeat_and_groups_taken_as_independent_do_not(name):
    studies = 400
    case = next(c for c in CASES if c.name == name)
    found = rows_of(case, studies)
    for statistic, method in [*((auc, "logit-t") for auc in AUCS), ("mean", "t")]:
        row, wrong = found[statistic, method], found[statistic, "by group"]
        assert 0.93 - 2 * row["error"] <= row["covered"] <= 0.97 + 2 * row["error"], row
        assert wrong["covered"] < row["covered"] - 2 * row["error"], wrong
        assert wrong["width"] < 0.8 * row["width"]
        assert (row["groups"], row["prompts"]) == (case.groups, case.prompts)


def test_prompts_of_a_case_are_asked_as_often_as_it_says():
    rng = np.random.default_rng(0)
    for groups, repeats, prompts in ((156, (6, 6), 26), (160, (1, 3), 80), (156, (1, 1), 156)):
        case = Case("", groups=groups, sizes=(3, 5), repeats=repeats)
        assert case.prompts == prompts
        study = case.study(rng)
        asked = [len(set(study.group[study.prompt == each])) for each in range(prompts)]
        assert (min(asked), max(asked)) == repeats
        assert all(len(set(study.prompt[study.group == each])) == 1 for each in study.group)


def test_the_papers_interval_does_not_hold_with_few_groups():
    case = Case("few", groups=8, effect=0.8, spread=0.5)
    found = rows_of(case, 400)
    for statistic in ("raw", "residualized", "matched"):
        paper, ours = (found[statistic, m] for m in ("percentile", "logit-t"))
        assert paper["covered"] < 0.93 - paper["error"]
        assert ours["covered"] > paper["covered"] + 2 * paper["error"]
        assert ours["covered"] > 0.93 - 2 * ours["error"]


def test_the_candidates_against_scipy_and_against_each_other():
    rng = np.random.default_rng(0)
    pairs = rng.integers(8, 17, 60).astype(float)
    wins = rng.binomial(pairs.astype(int), np.clip(rng.normal(0.75, 0.1, 60), 0, 1)).astype(float)
    found = candidates(wins, pairs, 4000, 0)

    def statistic(wins, pairs, axis=-1):
        return wins.sum(axis=axis) / pairs.sum(axis=axis)

    expected = stats.bootstrap(
        (wins, pairs),
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=20_000,
        method="BCa",
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert found["BCa"] == pytest.approx((expected.low, expected.high), abs=0.004)
    holds = logit_t(wins, pairs)
    for name, each in found.items():
        assert each == pytest.approx(ends(holds), abs=0.01), name


def test_the_candidates_where_no_pair_is_lost():
    pairs = np.full(10, 4.0)
    found = candidates(pairs, pairs, 200, 0)
    for name in ("BCa", "studentised", "t"):
        assert found[name] == (1.0, 1.0)
    assert found["Korn-Graubard"][0] == pytest.approx(0.025**0.1)
    assert found["Korn-Graubard"][1] == 1.0 and found["Wilson"][0] < 0.8
    assert np.isnan(found["logit jackknife"]).all()


def test_the_command_prints_coverage(capsys, monkeypatch):
    monkeypatch.setattr(view.stdout, "width", 240)
    options = ["bench", "intervals", "--studies", "20", "--case", "null, few groups", "--others"]
    with pytest.raises(SystemExit) as stopped:
        main([*options, "--json"])
    assert stopped.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["statistic"] for row in found["auc"]} == {*AUCS, "mean"}
    assert len(found["auc"]) == 4 * 2 + 2 * 6 and len(found["seeds"]) == 6
    for row in found["auc"]:
        assert row["covered"] + row["below"] + row["above"] == pytest.approx(1)
    with pytest.raises(SystemExit):
        main(options)
    shown = capsys.readouterr().out
    assert "Korn-Graubard" in shown and "Mean over 3 seeds x 2 draws" in shown
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "intervals", "--case", "nil"])
    assert stopped.value.code == 2
    assert "--case 'nil' is unknown" in capsys.readouterr().err


def test_the_error_of_two_slopes_is_counted():
    """Magnitude regressed out beside fluency: its slope follows the same groups too."""
    points, counted = [], []
    group = np.repeat(np.arange(40), 8)
    for seed in range(300):
        rng = np.random.default_rng(seed)
        label = rng.random(320) < 0.5
        fluency = rng.normal(size=320) + label
        size = 0.5 * fluency + rng.normal(size=320) + 0.5 * label
        own = rng.lognormal(0, 0.5, (2, 40))[:, group]
        score = fluency * own[0] + 2 * size * own[1] + rng.normal(size=320)
        pairs = within_group_pairs(label, group, 40)
        residual = residualize(score, fluency, group, pairs, size)
        credit = residual.credit()
        points.append(credit.mean())
        moved = (pairs.per_group(credit) - credit.mean() * pairs.per_group()) / len(pairs)
        counted.append(((moved + residual.shift(pairs)) ** 2).sum())
    assert np.sqrt(np.mean(counted)) == pytest.approx(np.std(points), rel=0.12)
