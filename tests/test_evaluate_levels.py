import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from behaviortrace.checklist.collect import own_replicates
from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.fluency import fluency
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate.levels import (
    ROLLOUT_LEVEL_SCHEMA,
    STEP_LEVEL_SCHEMA,
    rollout_level,
    step_level,
    trained_window,
)
from behaviortrace.evaluate.within_group import judge
from behaviortrace.recipe import EvaluateSettings
from behaviortrace.records import ROLLOUT_SCHEMA, SCORE_SCHEMA, conform
from tests.published import ground_truth_rows
from tests.reference import statistics as slow

FEW = EvaluateSettings(resamples=200)


def rollouts(steps=12, groups=2, size=4, seed=0, **columns):
    generator = np.random.default_rng(seed)
    n = steps * groups * size
    frame = pl.DataFrame(
        {
            "rollout_id": [f"r{i}" for i in range(n)],
            "step": np.repeat(np.arange(steps), groups * size),
            "group": np.repeat(np.arange(steps * groups), size),
            "behavior": generator.random(n) < 0.5,
            "boosted": generator.random(n) < 0.2,
            "fluency": -generator.random(n),
            "plain_norm": 1 + generator.random(n),
        }
        | columns
    )
    return conform(frame, ROLLOUT_SCHEMA)


def scores(frame, values, *, embedding, estimator="gas", target="minimal_pair", source="training"):
    long = pl.DataFrame({"rollout_id": frame["rollout_id"], "score": values}).with_columns(
        source=pl.lit(source),
        embedding=pl.lit(embedding),
        estimator=pl.lit(estimator),
        target=pl.lit(target),
    )
    return conform(long, SCORE_SCHEMA)


@given(
    st.dictionaries(st.integers(0, 30), st.sampled_from([0.0, 1e-9, 0.5, 1.0, 20.0])),
    st.integers(0, 31),
)
def test_trained_window(norms, cutoff):
    nonzero = [v for v in norms.values() if v > 0]
    floor = 1e-6 * np.median(nonzero) if nonzero else 0
    expected = [s for s in sorted(norms) if s < cutoff and norms[s] > floor]
    assert trained_window(norms, cutoff) == expected


def test_trained_window_edges():
    assert trained_window({0: 0.0, 1: 0.0}, 5) == []
    assert trained_window({}, 5) == []
    assert trained_window({0: float("nan"), 1: 2.0}, None) == [1]
    assert trained_window({0: 1.0, 1: 1e-7, 2: 1.0}, None) == [0, 2]  # rounding is not a gradient


def test_step_level_reproduces_the_published_frame():
    rows = ground_truth_rows().with_row_index("row")
    frame = conform(rows.with_columns(rollout_id=pl.col("row").cast(pl.String)), ROLLOUT_SCHEMA)
    last = (frame["step"] >= 900).cast(pl.Float64)
    table = scores(frame, last, embedding="step", estimator="local_buffer", target=None)
    found = step_level(frame, table, range(200))
    assert dict(found.schema) == STEP_LEVEL_SCHEMA
    overall, window = found.rows(named=True)
    assert (overall["table"], window["table"]) == ("overall", "trained_window")
    assert (overall["n"], overall["positives"], window["n"]) == (16_000, 1383, 3200)
    assert overall["precision"] == 0.0
    numbers = [overall["base_rate"], overall["ceiling"], window["precision"], window["ceiling"]]
    assert [round(x, 4) for x in numbers] == [0.0864, 0.5510, 0.4322, 0.5510]
    assert overall["target_free"] and overall["target"] is None


def test_step_level_puts_tied_scores_first_and_bounds_each_by_its_own_ceiling():
    frame = rollouts()
    single = frame["boosted"].cast(pl.Float64)
    tied = frame["step"].cast(pl.Float64)
    table = pl.concat(
        [scores(frame, single, embedding="update"), scores(frame, tied, embedding="step")]
    )
    found = step_level(frame, table, range(6))
    assert found["embedding"].to_list() == ["step", "update"] * 2
    exact = found.filter(pl.col("embedding") == "update")
    assert exact["precision"].to_list() == [1.0, 1.0] and exact["ceiling"].to_list() == [1.0, 1.0]
    step = found.filter(pl.col("embedding") == "step")
    assert (step["precision"] <= step["ceiling"]).all() and (step["ceiling"] < 1).all()
    assert (found["lift"] - found["precision"] / found["base_rate"]).abs().max() < 1e-12


def test_step_level_undefined():
    frame = rollouts()
    values = frame["step"].cast(pl.Float64).to_list()
    values[-8:] = [float("nan")] * 8  # the last step, which would otherwise be the best
    found = step_level(frame, scores(frame, values, embedding="step"), [])
    assert found["undefined"].to_list() == [8, 0]
    worse = [-1.0 if np.isnan(v) else v for v in values]
    same = step_level(frame, scores(frame, worse, embedding="step"), [])
    assert found["precision"][0] == same["precision"][0]
    assert found["precision"][1] is None and found["base_rate"][1] is None
    assert found["reason"].to_list() == [None, "no rollout is in table 'trained_window'"]
    clean = frame.with_columns(boosted=pl.lit(None, dtype=pl.Boolean))
    none = step_level(clean, scores(frame, values, embedding="step"), range(6))
    assert none["precision"].null_count() == none["lift"].null_count() == 2
    assert none["reason"][0] == "no rollout of table 'overall' is boosted"


def test_rollout_level_rows():
    frame = rollouts()
    values = np.random.default_rng(1).normal(size=frame.height)
    table = pl.concat(
        [
            scores(frame, values, embedding="plain_centered"),
            scores(frame, frame["fluency"], embedding="plain", estimator="fluency", target=None),
            scores(frame, frame["step"].cast(pl.Float64), embedding="step"),
            scores(frame, values, embedding="plain", source="draw-1"),
        ]
    )
    found = rollout_level(frame, table, FEW)
    assert dict(found.schema) == ROLLOUT_LEVEL_SCHEMA
    assert found.height == 2 * 2 * 5  # labels x scores x variants; the step embedding is left out
    assert set(found["source"]) == {"training"}
    for label in ("behavior", "boosted"):
        raw = found.filter(label=label, estimator="gas", variant="raw")
        expected = slow.auc(values, frame[label].to_numpy(), frame["group"].to_numpy())
        assert raw["auc"][0] == pytest.approx(expected)
        assert raw["lo"][0] <= expected <= raw["hi"][0]
        fluency = found.filter(label=label, estimator="fluency", variant="residualized")
        assert fluency["auc"][0] == 0.5 and fluency["target_free"][0]
    matched = found.filter(variant="matched")
    assert (matched["delta"] == FEW.matched).all()
    assert (matched["pairs"] < found.filter(variant="raw")["pairs"]).all()
    assert found.filter(pl.col("variant") != "matched")["delta"].null_count() == 16
    assert (found["reason"].is_null() == found["lo"].is_not_null()).all()
    without = found.filter(pl.col("lo").is_null())
    assert set(without["estimator"]) == {"fluency"}  # given itself, nothing is left of it
    assert set(without["variant"]) <= {"residualized", "residualized_norm", "residualized_spline"}
    assert (without["auc"] == 0.5).all() and (without["reason"] == "every pair ties").all()
    assert without.filter(variant="residualized").height == 2 and (without["p"] == 1.0).all()


def leaning(seed, groups=30, size=8):
    """Rollouts that show the behaviour are less fluent and have larger gradients."""
    rng = np.random.default_rng(seed)
    n = groups * size
    label = rng.random(n) < 0.5
    fluency, size_ = 0.3 * rng.normal(size=n) - 0.3 * label, rng.normal(size=n) + 0.6 * label
    frame = rollouts(groups, 1, size, behavior=label, fluency=fluency, plain_norm=np.exp(size_))
    return frame, size_, rng


def test_norm_is_regressed_out_beside_fluency_at_once():
    frame, size, rng = leaning(0)
    values = rng.normal(size=frame.height) + 2 * size - frame["fluency"].to_numpy()
    found = rollout_level(frame, scores(frame, values, embedding="plain"), FEW)
    one = found.filter(label="behavior", variant="residualized_norm").row(0, named=True)
    group = frame["group"].to_numpy()
    centred = [
        column - np.array([column[group == g].mean() for g in group])
        for column in (values, frame["fluency"].to_numpy(), size)
    ]
    both = np.stack(centred[1:], axis=1)
    left = centred[0] - both @ np.linalg.lstsq(both, centred[0], rcond=None)[0]
    assert one["auc"] == pytest.approx(slow.auc(left, frame["behavior"].to_numpy(), group))
    # A score that is magnitude and fluency, and nothing else, leaves ties.
    nothing = scores(frame, 3 * size - frame["fluency"].to_numpy(), embedding="plain")
    found = rollout_level(frame, nothing, FEW).filter(variant="residualized_norm")
    assert (found["auc"] == 0.5).all()


def test_a_ranking_by_magnitude_alone_is_seen_through():
    """Of 200 scores that follow the norm, and fluency, and nothing else of the behaviour."""
    outside = dict.fromkeys(("residualized", "residualized_norm"), 0)
    for seed in range(200):
        frame, size, rng = leaning(seed)
        values = rng.normal(size=frame.height) + 2 * size - frame["fluency"].to_numpy()
        table = scores(frame, values, embedding="plain")
        few = EvaluateSettings(resamples=100)
        found = rollout_level(frame.with_columns(boosted=pl.lit(None)), table, few)
        for name in outside:
            row = found.filter(label="behavior", variant=name).row(0, named=True)
            outside[name] += not row["lo"] <= 0.5 <= row["hi"]
    assert outside["residualized"] > 150
    assert 3 <= outside["residualized_norm"] <= 18  # 5% of 200, give or take


def test_rollout_level_names_its_interval_and_gives_the_papers_beside_it():
    frame = rollouts()
    table = scores(frame, np.random.default_rng(1).normal(size=frame.height), embedding="plain")
    ours = rollout_level(frame, table, FEW)
    paper = rollout_level(frame, table, FEW.model_copy(update={"interval": "percentile"}))
    assert set(ours["interval"]) == {"logit-t"} and set(paper["interval"]) == {"percentile"}
    assert paper["lo"].equals(paper["percentile_lo"]) and paper["hi"].equals(paper["percentile_hi"])
    same = ["auc", "percentile_lo", "percentile_hi", "p", "p_holm", "pairs", "detectable"]
    assert ours.select(same).equals(paper.select(same))
    assert (ours["lo"] != paper["lo"]).all()
    assert ((ours["p"] < 0.05) == ((ours["lo"] > 0.5) | (ours["hi"] < 0.5))).all()
    near = ours.filter(variant="matched")["detectable"]
    assert (near > ours.filter(variant="raw")["detectable"]).all()  # fewer pairs see less


def test_rollout_level_adjusts_claims_and_leaves_controls_alone():
    frame = rollouts()
    rng = np.random.default_rng(1)
    names = [f"e{k}" for k in range(5)]
    table = pl.concat(
        [
            *(
                scores(frame, rng.normal(size=frame.height), embedding="plain", estimator=name)
                for name in names
            ),
            scores(frame, frame["fluency"], embedding="plain", estimator="fluency", target=None),
        ]
    )
    found = rollout_level(frame, table, FEW).filter(label="behavior", variant="raw")
    claims = found.filter(pl.col("estimator").is_in(names)).sort("p")
    assert claims["p_holm"][0] == pytest.approx(min(1.0, 5 * claims["p"][0]))
    assert (claims["p_holm"] >= claims["p"]).all()
    assert found.filter(estimator="fluency")["p_holm"].null_count() == 1
    assert found.filter(estimator="fluency")["p"].null_count() == 0


def test_rollout_level_leaves_out_what_is_undefined():
    frame = rollouts(boosted=None)
    values = np.random.default_rng(1).normal(size=frame.height)
    hidden = np.arange(frame.height) % 5 == 0
    table = scores(frame, np.where(hidden, np.nan, values), embedding="plain")
    found = rollout_level(frame, table, FEW)
    assert set(found["label"]) == {"behavior"}  # a draw has no boosted rollouts
    label, group = frame["behavior"].to_numpy(), frame["group"].to_numpy()
    expected = slow.auc(values[~hidden], label[~hidden], group[~hidden])
    assert found.filter(variant="raw")["auc"][0] == pytest.approx(expected)


def test_rollout_level_reasons():
    frame = rollouts(fluency=None)
    table = scores(frame, np.arange(float(frame.height)), embedding="plain")
    found = rollout_level(frame, table, FEW).filter(label="behavior")
    neither = "fluency or the gradient's norm is not recorded"
    unknown = "fluency is not recorded"
    assert found["reason"].to_list() == [None, unknown, unknown, neither, unknown]
    assert found["auc"].null_count() == 4
    sizeless = rollout_level(rollouts(plain_norm=None), table, FEW).filter(label="behavior")
    assert sizeless["reason"].to_list() == [None, None, None, neither, None]

    part = rollouts().with_columns(
        fluency=pl.when(pl.int_range(pl.len()) % 4 == 0).then(None).otherwise("fluency")
    )
    found = rollout_level(part, table, FEW).filter(label="behavior")
    raw, residualized, *_ = found.rows(named=True)
    assert residualized["pairs"] < raw["pairs"] and residualized["auc"] is not None

    flat = rollouts(behavior=True)
    found = rollout_level(flat, table, FEW).filter(label="behavior")
    assert found["auc"].null_count() == 5 and (found["pairs"] == 0).all()
    assert found["reason"].str.contains("both with and without 'behavior'").all()

    spread = rollouts(fluency=-np.arange(96.0))
    found = rollout_level(spread, table, FEW).filter(label="behavior", variant="matched")
    assert found["reason"][0] == "no pair has a fluency difference within 0.1 nats"

    one = rollouts(steps=1, groups=1, behavior=[True, False, True, False])
    few = scores(one, np.arange(4.0), embedding="plain")
    found = rollout_level(one, few, FEW).filter(label="behavior", variant="raw")
    assert found["auc"][0] == 0.25 and found["lo"][0] is None
    assert found["reason"][0] == "only one group has pairs, so there is nothing to resample"


def test_scores_that_do_not_belong_are_refused():
    frame = rollouts()
    values = np.zeros(frame.height)
    other = frame.with_columns(rollout_id=pl.lit("x") + pl.col("rollout_id"))
    with pytest.raises(BehaviorTraceError, match="96 scores of rollouts that source 'training'"):
        step_level(frame, scores(other, values, embedding="step"), [])
    twice = scores(frame, values, embedding="plain")
    with pytest.raises(BehaviorTraceError, match="twice by 'gas'"):
        rollout_level(frame, pl.concat([twice, twice]), FEW)


@pytest.mark.parametrize(
    ("values", "auc", "interval", "reason"),
    [
        ([1.0, 1, 0, 0], 1.0, "percentile", "no group differs from the others"),
        ([1.0, 1, 0, 0], 1.0, "logit-t", None),
        ([2.0, 2, 2, 2], 0.5, "percentile", "every pair ties"),
        ([2.0, 2, 2, 2], 0.5, "logit-t", "every pair ties"),
    ],
)
def test_no_verdict_counts_an_interval_that_says_nothing(values, auc, interval, reason):
    """Every group alike: fluency is balanced over the labels, so that it explains nothing."""
    frame = rollouts(
        behavior=np.tile([True, True, False, False], 24), fluency=np.tile([-1.0, -2, -1, -2], 24)
    )
    direction, norm = np.tile(values, 24), np.tile([0.0, 2, 1, 3], 24)
    table = pl.concat(
        [
            scores(frame, direction, embedding="plain_centered", source="d"),
            scores(frame, norm, embedding="plain", estimator="norm", target=None, source="d"),
        ]
    )
    settings = EvaluateSettings(resamples=200, interval=interval)
    level = rollout_level(frame, table, settings, source="d")
    found = level.filter(label="behavior", estimator="gas", variant="residualized")
    row = found.row(0, named=True)
    assert row["auc"] == auc and (row["lo"] is None) == (row["hi"] is None) == (reason is not None)
    verdict = fluency(Evidence(rollout_level=level))
    replicates = own_replicates(level, seed=0)
    if reason is None:
        assert row["reason"] is None and row["lo"] > 0.5 and verdict.status == "pass"
        assert [(r.lo, r.hi) for r in replicates] == [(row["lo"], row["hi"])]
    else:
        assert reason in row["reason"] and verdict.status == "not run"
        assert reason in verdict.sentence and replicates == ()


def test_groups_of_one_prompt_are_one_unit():
    """Twelve prompts, twice each: intervals are the prompts', pairs the groups'."""
    prompt = [f"prompt {i % 12}" for i in np.repeat(np.arange(24), 8)]
    frame = rollouts(24, 1, 8, prompt=prompt)
    values = np.random.default_rng(1).normal(size=frame.height)
    table = scores(frame, values, embedding="plain")
    label, group = frame["behavior"].to_numpy(), frame["group"].to_numpy()
    expected = judge(label, group, {"s": values}, resamples=200, cluster=np.array(prompt))
    found = rollout_level(frame, table, FEW)
    assert found["groups"].unique().to_list() == [24]
    assert found["clusters"].unique().to_list() == [12]
    raw = found.filter(label="behavior", variant="raw").row(0, named=True)
    judged = expected.raw["s"]
    assert (raw["auc"], raw["pairs"]) == (judged.point, expected.pairs)
    assert (raw["lo"], raw["hi"], raw["p"]) == (judged.logit_t.lo, judged.logit_t.hi, judged.p)
    assert (raw["percentile_lo"], raw["percentile_hi"]) == (judged.lo, judged.hi)
    assert raw["detectable"] == expected.detectable
    names = pl.Series([f"asked once, {i}" for i in group])
    once = rollout_level(frame.with_columns(prompt=names), table, FEW)
    unknown = rollout_level(frame.with_columns(prompt=pl.lit(None, pl.String)), table, FEW)
    assert_frame_equal(once, unknown)  # no prompt: each group alone
    assert once["clusters"].unique().to_list() == [24]
    assert (once["lo"] != found["lo"]).any() and (once["pairs"] == found["pairs"]).all()


def test_one_prompt_alone_has_no_interval():
    frame = rollouts(6, 1, 8, prompt=["why?"] * 48)
    found = rollout_level(frame, scores(frame, np.arange(48.0), embedding="plain"), FEW)
    raw = found.filter(label="behavior", variant="raw").row(0, named=True)
    assert raw["auc"] is not None and raw["lo"] is None and raw["clusters"] == 1
    assert raw["reason"] == "only one cluster has pairs, so there is nothing to resample"
