"""The score stage, and ``score`` for one estimator, against sums written out."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import behaviortrace
from behaviortrace import estimators
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.records import SCORE_SCHEMA, Target
from behaviortrace.run import Run
from behaviortrace.scores.embeddings import center, step_means, step_sums
from behaviortrace.scores.stage import score, score_run
from tests.reference.analysed_run import SKETCH, analysed_run, trained_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return analysed_run(tmp_path_factory.mktemp("score") / "run")


@pytest.fixture(scope="module")
def table(run: Run) -> pl.DataFrame:
    return score_run(run)


def pick(
    table: pl.DataFrame,
    estimator: str,
    target: str | None,
    embedding: str | None,
    source: str = "training",
) -> np.ndarray:
    found = table.filter(
        pl.col("estimator") == estimator,
        pl.col("target").eq_missing(target),
        pl.col("embedding").eq_missing(embedding),
        pl.col("source") == source,
    )
    return found["score"].to_numpy()


def vector(run: Run, name: str, step: int = 2) -> np.ndarray:
    return next(t.vector for t in run.targets()[name] if t.step == step).astype(float)


def test_the_table_has_one_score_each(run: Run, table: pl.DataFrame) -> None:
    assert table.schema == SCORE_SCHEMA and run.table("scores/all").equals(table)
    keys = ["source", "embedding", "estimator", "target", "rollout_id"]
    assert table.select(keys).n_unique() == table.height
    sizes = {"training": 18, "seed-7": 40}
    for (source, *_), part in table.group_by(keys[:-1]):
        assert part.height == sizes[source]
    held = table.select(keys[:2]).unique().rows()
    assert set(held) == {
        *(("training", e) for e in (None, "step", "update", "plain", "plain_centered")),
        *(("seed-7", e) for e in (None, "plain", "plain_centered")),
    }


def test_every_estimator_meets_every_target(table: pl.DataFrame) -> None:
    training = table.filter(pl.col("source") == "training")
    targeted = {("gas", t) for t in ("constructed", "in_context", "minimal_pair")}
    targeted |= {(e, t) for e in ("dot", "trak") for _, t in targeted}
    targeted |= {
        ("tracincp", t) for t in ("constructed", "minimal_pair")
    }  # two checkpoints or more
    for name in ("step", "update", "plain", "plain_centered"):
        part = training.filter(pl.col("embedding") == name)
        found = set(
            part.filter(pl.col("target").is_not_null()).select("estimator", "target").rows()
        )
        assert found == targeted
    free = training.filter(pl.col("target").is_null())
    assert set(free["estimator"]) == {
        n for n in estimators.names() if estimators.get(n).target_free
    }


def test_step_scores_are_those_of_summed_updates(run: Run, table: pl.DataFrame) -> None:
    rows, plain = run.rollouts(), run.sketches("plain").astype(float)
    update = rows["update_weight"].to_numpy()[:, None] * plain
    step = rows["step"].to_numpy()
    sums = np.stack([update[step == s].sum(axis=0) for s in step])
    goal = vector(run, "constructed")
    np.testing.assert_allclose(pick(table, "dot", "constructed", "step"), sums @ goal, rtol=1e-4)
    np.testing.assert_allclose(
        pick(table, "norm", None, "step"), np.linalg.norm(sums, axis=1), rtol=1e-5
    )
    scores = pick(table, "gas", "constructed", "step")
    assert all(len(set(scores[step == s])) == 1 for s in set(step))  # tied exactly
    each = np.stack([update[step == s].sum(axis=0) for s in range(3)])
    ridge = 0.1 * np.trace(each @ each.T) / SKETCH.dim
    whitened = np.linalg.solve(each @ each.T + ridge * np.eye(3), each @ goal)
    np.testing.assert_allclose(
        pick(table, "trak", "constructed", "step"), whitened[step], rtol=1e-3
    )


def test_rollout_scores_and_exact_norms(run: Run, table: pl.DataFrame) -> None:
    rows, plain = run.rollouts(), run.sketches("plain").astype(float)
    goal, group = vector(run, "minimal_pair"), rows["group"].to_numpy()
    centered = plain - np.stack([plain[group == g].mean(axis=0) for g in group])
    expected = centered @ goal / np.linalg.norm(centered, axis=1) / np.linalg.norm(goal)
    np.testing.assert_allclose(
        pick(table, "gas", "minimal_pair", "plain_centered"), expected, rtol=1e-4, atol=1e-6
    )
    np.testing.assert_array_equal(pick(table, "norm", None, "plain"), rows["plain_norm"].to_numpy())
    np.testing.assert_array_equal(pick(table, "norm", None, "update"), rows["grad_norm"].to_numpy())
    series = run.targets()["minimal_pair"]
    summed = sum(t.meta["learning_rate"] * (plain @ t.vector.astype(float)) for t in series)
    np.testing.assert_allclose(
        pick(table, "tracincp", "minimal_pair", "plain"), summed, rtol=1e-6, atol=1e-12
    )


def test_controls_at_the_step_level_are_step_means(run: Run, table: pl.DataFrame) -> None:
    rows = run.rollouts()
    shown, step = rows["behavior"].cast(pl.Float64).to_numpy(), rows["step"].to_numpy()
    np.testing.assert_array_equal(pick(table, "string_match", None, None), shown)
    expected = [shown[step == s].mean() for s in step]
    np.testing.assert_allclose(pick(table, "string_match", None, "step"), expected)
    np.testing.assert_array_equal(pick(table, "local_buffer", None, "step"), step == 2)
    np.testing.assert_array_equal(
        pick(table, "advantage", None, None, "seed-7"), np.full(40, np.nan)
    )


@pytest.mark.parametrize("name", estimators.names())
def test_one_estimator_gives_what_the_stage_gave(run: Run, table: pl.DataFrame, name: str) -> None:
    unit = estimators.get(name)
    target = None if unit.target_free else "minimal_pair"
    for embedding in ("update", "plain", "plain_centered", "step"):
        own = embedding if embedding == "step" or "sketches" in unit.needs else None
        np.testing.assert_array_equal(
            score(name, run, target, embedding=embedding), pick(table, name, target, own)
        )
    own = "plain" if "sketches" in unit.needs else None
    np.testing.assert_array_equal(
        score(name, run, target, draw="seed-7"), pick(table, name, target, own, "seed-7")
    )


def test_targets_may_be_given_in_any_form(run: Run) -> None:
    series = run.targets()["minimal_pair"]
    by_name = score("gas", run, "minimal_pair")
    for form in (series[1], series, series[1].vector):
        np.testing.assert_array_equal(score("gas", run, form), by_name)
    own = Target("mine", "mine", 0, series[0].vector)
    np.testing.assert_allclose(score("tracincp", run, own), score("dot", run, own), rtol=1e-12)
    np.testing.assert_array_equal(score("tracincp", run, series), score("tracincp", run, series[0]))


def test_the_default_embedding_is_what_training_minimised(run: Run) -> None:
    np.testing.assert_array_equal(
        score("dot", run, "constructed"), score("dot", run, "constructed", embedding="update")
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            ("gas",),
            r"needs a target; give one of the run's \(constructed, in_context, minimal_pair\)",
        ),
        (("gas", "nothing"), r"no target 'nothing' \(it has: constructed"),
        (("gas", np.zeros(5)), r"target has shape \(5,\)"),
        (("nothing", "constructed"), "no estimator 'nothing'"),
        (("gas", []), "empty sequence"),
    ],
)
def test_what_is_missing_is_named(run: Run, args: tuple[object, ...], words: str) -> None:
    name, *target = args
    with pytest.raises(BehaviorTraceError, match=words):
        score(name, run, *target)
    with pytest.raises(BehaviorTraceError, match="embedding 'middle' is unknown"):
        score("gas", run, "constructed", embedding="middle")


def test_rows_without_plain_sketches_are_undefined(tmp_path: Path) -> None:
    whole = trained_run(tmp_path / "whole")
    run = Run.create(tmp_path / "part")
    for shard in whole.manifest.store("training"):
        rows = whole.rollouts().filter(pl.col("step") == shard.step)
        plain = whole.sketches("plain")[whole.rollouts()["step"].to_numpy() == shard.step]
        weights = rows["update_weight"].to_numpy()[:, None].astype(np.float32)
        tensors = {"plain": plain} if shard.step else {"update": weights * plain}
        run.write_shard("training", shard.step, 0, rows, tensors)
    rng = np.random.default_rng(0)
    run.save_target(Target("mine", "mine", 0, rng.normal(size=SKETCH.dim).astype(np.float32)))
    table, lacks = score_run(run), run.rollouts()["step"].to_numpy() == 0
    for name in ("dot", "gas", "trak"):
        for embedding in ("plain", "plain_centered"):
            scores = pick(table, name, "mine", embedding)
            assert np.isnan(scores[lacks]).all() and np.isfinite(scores[~lacks]).all()
        assert np.isfinite(pick(table, name, "mine", "update")).all()
        assert np.isfinite(pick(table, name, "mine", "step")).all()


def test_the_public_name_works_before_and_after_the_module_is_imported(run: Run) -> None:
    expected = score("gas", run, "constructed")
    for _ in range(2):
        np.testing.assert_array_equal(behaviortrace.score("gas", run, "constructed"), expected)
        importlib.import_module("behaviortrace.scores.stage")


def test_nothing_to_score_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BehaviorTraceError, match="no rollouts to score"):
        score_run(Run.create(tmp_path / "run"))


def test_sums_and_centring_of_scattered_rows() -> None:
    key, rows = np.array([5, 2, 5, 9, 2, 5]), np.arange(12, dtype=np.float32).reshape(6, 2)
    steps, sums, row = step_sums(key, rows)
    assert steps.tolist() == [2, 5, 9] and steps[row].tolist() == key.tolist()
    np.testing.assert_array_equal(sums, [[10, 12], [14, 17], [6, 7]])
    centered = rows.copy()
    center(key, centered)
    np.testing.assert_allclose(
        centered, rows - np.stack([rows[key == k].mean(axis=0) for k in key])
    )
    np.testing.assert_array_equal(centered[3], [0, 0])


def test_advantages_that_cancel_leave_no_ranking() -> None:
    step = np.array([0, 0, 0, 1, 1, 1])
    values = np.array([1.1, -0.4, -0.7 + 1e-16, 0.0, 0.0, 0.0])
    assert step_means(step, values).tolist() == [0.0] * 6
    assert step_means(step, values + 0.5)[0] == pytest.approx(0.5)
