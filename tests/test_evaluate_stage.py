import numpy as np
import polars as pl
import pytest

from behaviortrace import recipe as recipes
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate.stage import evaluate, step_norms
from behaviortrace.records import PROBE_SCHEMA, SCORE_SCHEMA, TOKEN_SCHEMA, conform
from behaviortrace.run import Run

STEPS, GROUPS, SIZE, DIM = 6, 3, 4, 8
CUTOFF = 4
FLAT = 2  # a step before the cutoff whose update gradient is zero


def make_rows(step, seed, prefix, boosted):
    generator = np.random.default_rng(seed)
    n = GROUPS * SIZE
    return pl.DataFrame(
        {
            "rollout_id": [f"{prefix}-{step}-{i}" for i in range(n)],
            "step": [step] * n,
            "group": step * GROUPS + np.repeat(np.arange(GROUPS), SIZE),
            "index": range(n),
            "behavior": generator.random(n) < 0.5,
            "fluency": -generator.random(n),
            "boosted": np.arange(n) % 3 == 0 if boosted and step < CUTOFF else [False] * n,
            "findable": np.arange(n) % 6 == 0 if boosted and step < CUTOFF else [False] * n,
        }
    )


def score(frame, embedding, estimator, target, source, values):
    long = frame.select("rollout_id").with_columns(
        score=pl.Series(values),
        source=pl.lit(source),
        embedding=pl.lit(embedding),
        estimator=pl.lit(estimator),
        target=pl.lit(target),
    )
    return conform(long, SCORE_SCHEMA)


@pytest.fixture
def run(tmp_path):
    recipe = recipes.load(
        "tiny",
        {"plant.cutoff_step": CUTOFF, "evaluate.resamples": 200},
    )
    run = Run.create(tmp_path / "run", recipe=recipe)
    for step in range(STEPS):
        frame = make_rows(step, step, "t", boosted=True)
        sketch = np.random.default_rng(step).normal(size=(frame.height, DIM)).astype(np.float32)
        update = sketch * (0 if step == FLAT else 1)
        run.write_shard("training", step, 0, frame, {"update": update.astype(np.float32)})
    probes = [("probe", True), ("probe", False), ("control", False)]
    for step in (0, 6):
        frame = pl.DataFrame(
            [{"step": step, "kind": k, "behavior": b and step == 6} for k, b in probes]
        )
        run.write_shard("probes", step, 0, conform(frame, PROBE_SCHEMA))
    draw = make_rows(6, 77, "d", boosted=False).with_columns(
        boosted=pl.lit(None, dtype=pl.Boolean), findable=pl.lit(None, dtype=pl.Boolean)
    )
    run.write_shard("draws/seed-100", 6, 0, draw)
    return run


def add_scores(run, with_norm=True):
    training, draw = run.rollouts(), run.rollouts("seed-100")
    step = training["step"].to_numpy()
    norms = np.array([0.0 if s == FLAT else 1.0 + s for s in range(STEPS)])[step]
    noise = np.random.default_rng(0).normal(size=training.height)
    tables = [
        score(training, "update", "gas", "minimal_pair", "training", noise),
        score(training, "step", "dot", "minimal_pair", "training", -step.astype(float)),
        score(draw, "plain", "gas", "minimal_pair", "seed-100", noise[: draw.height]),
    ]
    if with_norm:
        tables.append(score(training, "step", "norm", None, "training", norms))
    run.save_table("scores/all", pl.concat(tables))


def test_results_are_stored(run):
    add_scores(run)
    summary = evaluate(run)
    assert run.json("results/summary") == summary
    assert summary["n_rollouts"] == 72 and summary["steps"] == 6
    assert summary["n_boosted"] == 16 and summary["n_findable"] == 8
    assert summary["findable_share"] == 0.5
    assert summary["trained_window_steps"] == 3  # 4 before the cutoff, one of them flat
    assert summary["s_b"] == {"0": 0.0, "6": 0.5}
    assert summary["s_b_controls"] == {"0": 0.0, "6": 0.0}
    assert summary["s_b_responses"] == {"0": 2, "6": 2}
    assert summary["s_b_rise"]["rise"] == 0.5 and summary["s_b_rise"]["looks"] == 1
    assert summary["chance"] == pytest.approx(16 / 72)
    assert summary["ceiling"] == pytest.approx(1 / 3)
    assert summary["ceiling_findable"] == pytest.approx(1 / 6)
    assert summary["chance_trained_window"] == pytest.approx(1 / 3)
    assert set(summary["behavior_rate"]) == {"training", "seed-100"}

    step = run.table("results/step_level")
    assert set(step["embedding"]) == {"step"}
    assert step["estimator"].to_list() == ["dot", "norm"] * 2
    assert step.filter(table="trained_window")["n"].to_list() == [36, 36]
    single = run.table("results/rollout_precision")
    assert set(single["embedding"]) == {"update"} and (single["ceiling"] == 1).all()
    rollout = run.table("results/rollout_level")
    keys = set(rollout.select("source", "label").unique().rows())
    assert keys == {("training", "behavior"), ("training", "boosted"), ("seed-100", "behavior")}
    assert not run.has("results/token_level")


def test_token_rows_are_summarised(run):
    add_scores(run)
    rows = pl.DataFrame({"group": [0, 1, 2], "cosine": [0.1, 0.2, 0.3]}).with_columns(
        span=pl.lit("trigger"), target=pl.lit("in_context")
    )
    run.save_table("results/token_rows", conform(rows, TOKEN_SCHEMA))
    evaluate(run)
    assert run.table("results/token_level")["mean"][0] == pytest.approx(0.2)


def test_the_window_is_the_same_with_and_without_the_norm_control(run):
    add_scores(run, with_norm=False)
    norms = step_norms(run, run.rollouts(), run.table("scores/all"))
    expected = np.linalg.norm(
        [run.sketches()[run.rollouts()["step"].to_numpy() == s].sum(axis=0) for s in range(STEPS)],
        axis=1,
    )
    assert list(norms) == list(range(STEPS))
    assert list(norms.values()) == pytest.approx(expected.tolist(), rel=1e-5)
    assert evaluate(run)["trained_window_steps"] == 3


def test_unscored_or_foreign_scores_are_refused(run):
    with pytest.raises(BehaviorTraceError, match="behaviortrace score"):
        evaluate(run)
    frame = run.rollouts()
    values = np.zeros(frame.height)
    run.save_table("scores/all", score(frame, "plain", "gas", "t", "gone", values))
    with pytest.raises(BehaviorTraceError, match="source 'gone'"):
        evaluate(run)


def test_a_run_without_recipe_or_probes(tmp_path):
    run = Run.create(tmp_path / "imported")
    frame = make_rows(0, 0, "t", boosted=False).drop("boosted", "findable")
    run.write_shard("training", 0, 0, frame, {"update": np.ones((frame.height, 4), np.float32)})
    values = np.arange(float(frame.height))
    run.save_table("scores/all", score(run.rollouts(), "update", "gas", "t", "training", values))
    summary = evaluate(run)
    assert summary["s_b"] == {} and summary["n_boosted"] is None and summary["ceiling"] is None
    assert run.table("results/step_level").is_empty()
