"""Each estimator against its formula, written out slowly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from behaviortrace import estimators
from behaviortrace.estimators import Inputs, algebra


def inputs_of(sketches: np.ndarray, target: np.ndarray, **more: np.ndarray) -> Inputs:
    rows = pl.DataFrame({"rollout_id": [str(i) for i in range(len(sketches))]})
    return Inputs(rows=rows, sketches=sketches, target=target, **more)


@pytest.fixture
def phi() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(11, 16)).astype(np.float32)


@pytest.fixture
def t() -> np.ndarray:
    return np.random.default_rng(1).normal(size=16).astype(np.float32)


def test_dot(phi: np.ndarray, t: np.ndarray) -> None:
    expected = [sum(float(a) * float(b) for a, b in zip(row, t, strict=True)) for row in phi]
    np.testing.assert_allclose(estimators.get("dot")(inputs_of(phi, t)), expected, rtol=1e-12)


def test_gas_is_the_cosine(phi: np.ndarray, t: np.ndarray) -> None:
    wide, goal = phi.astype(float), t.astype(float)
    expected = [row @ goal / np.sqrt((row @ row) * (goal @ goal)) for row in wide]
    np.testing.assert_allclose(estimators.get("gas")(inputs_of(phi, t)), expected, rtol=1e-12)


@pytest.mark.parametrize("n", [3, 16, 40])
def test_trak_equals_the_dense_primal_form(n: int, t: np.ndarray) -> None:
    wide = np.random.default_rng(n).normal(size=(n, 16)).astype(np.float32)
    phi = wide.astype(float)
    covariance = phi.T @ phi
    ridge = 0.1 * np.diag(covariance).mean()
    expected = phi @ np.linalg.inv(covariance + ridge * np.eye(16)) @ t.astype(float)
    np.testing.assert_allclose(estimators.get("trak")(inputs_of(wide, t)), expected, rtol=1e-7)


def test_trak_whitens(t: np.ndarray) -> None:
    """A direction that all rollouts share counts for less than one that a single rollout has."""
    phi = np.zeros((6, 16), dtype=np.float32)
    phi[:5, 0], phi[5, 1] = 1.0, 1.0
    target = np.zeros(16, dtype=np.float32)
    target[:2] = 1.0
    scores = estimators.get("trak")(inputs_of(phi, target))
    assert scores[5] > 3 * scores[0] > 0


def test_tracincp_is_the_weighted_sum(phi: np.ndarray, t: np.ndarray) -> None:
    rng = np.random.default_rng(2)
    targets, rates = rng.normal(size=(4, 16)).astype(np.float32), rng.random(4)
    inputs = inputs_of(phi, t, targets=targets, learning_rates=rates)
    wide = phi.astype(float)
    expected = sum(
        rate * (wide @ goal) for rate, goal in zip(rates, targets.astype(float), strict=True)
    )
    np.testing.assert_allclose(estimators.get("tracincp")(inputs), expected, rtol=1e-12)


def test_norm_prefers_the_gradients_own(phi: np.ndarray, t: np.ndarray) -> None:
    unit = estimators.get("norm")
    expected = np.sqrt((phi.astype(float) ** 2).sum(axis=1))
    np.testing.assert_allclose(unit(inputs_of(phi, t)), expected, rtol=1e-12)
    exact = np.arange(11.0)
    np.testing.assert_array_equal(unit(inputs_of(phi, t, exact_norms=exact)), exact)


def controls(**columns: list[object]) -> Inputs:
    n = len(next(iter(columns.values())))
    return Inputs(rows=pl.DataFrame({"rollout_id": [f"r{i}" for i in range(n)], **columns}))


@pytest.mark.parametrize(
    ("steps", "last"), [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (24, 3), (1000, 100)]
)
def test_local_buffer_is_the_last_tenth(steps: int, last: int) -> None:
    step = [s for s in range(steps) for _ in range(2)]
    scores = estimators.get("local_buffer")(controls(step=step))
    np.testing.assert_array_equal(scores, [float(s >= steps - last) for s in step])


def test_controls_read_their_columns_and_null_is_undefined() -> None:
    inputs = controls(
        behavior=[True, False, True], advantage=[1.5, 2.0, None], fluency=[-1.0, None, -3.0],
        n_tokens=[4, 5, 6],
    )  # fmt: skip
    score = {name: estimators.get(name)(inputs) for name in (
        "string_match", "advantage", "advantage_x_match", "fluency", "length"
    )}  # fmt: skip
    np.testing.assert_array_equal(score["string_match"], [1.0, 0.0, 1.0])
    np.testing.assert_array_equal(score["advantage"], [1.5, 2.0, np.nan])
    np.testing.assert_array_equal(score["advantage_x_match"], [1.5, 0.0, np.nan])
    np.testing.assert_array_equal(score["fluency"], [-1.0, np.nan, -3.0])
    np.testing.assert_array_equal(score["length"], [4.0, 5.0, 6.0])


def test_random_is_uniform_and_depends_on_seed_and_id_alone() -> None:
    rows = pl.DataFrame({"rollout_id": [f"r{i}" for i in range(4000)]})
    unit = estimators.get("random")
    zero, one = unit(Inputs(rows=rows, seed=0)), unit(Inputs(rows=rows, seed=1))
    assert zero.min() >= 0 and zero.max() < 1 and len(set(zero)) == 4000
    assert abs(zero.mean() - 0.5) < 5 * np.sqrt(1 / 12 / 4000)
    assert abs(np.corrcoef(zero, one)[0, 1]) < 5 / np.sqrt(4000)
    np.testing.assert_array_equal(unit(Inputs(rows=rows[10:20], seed=0)), zero[10:20])


def test_memory_maps_are_read_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algebra, "_TILE", 6)
    monkeypatch.setattr(algebra, "_GRAM_COLUMNS", 7)
    matrix = np.random.default_rng(0).normal(size=(13, 20)).astype(np.float32)
    np.save(tmp_path / "m.npy", matrix)
    mapped = np.load(tmp_path / "m.npy", mmap_mode="r")
    wide, vector = matrix.astype(float), np.arange(20.0)
    norms, (dots,) = algebra.products(mapped, [vector])
    np.testing.assert_allclose(norms, np.linalg.norm(wide, axis=1), rtol=1e-14)
    np.testing.assert_allclose(dots, wide @ vector, rtol=1e-12)
    np.testing.assert_allclose(algebra.gram(mapped), wide @ wide.T, rtol=1e-12, atol=1e-12)
    monkeypatch.setattr(algebra, "_GRAM_FLOAT64_ROWS", 4)
    np.testing.assert_allclose(algebra.gram(mapped), wide @ wide.T, rtol=1e-4, atol=1e-5)


def test_one_pass_serves_all_targets(phi: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    goals = [rng.normal(size=16) for _ in range(3)]
    inputs = inputs_of(phi, goals[0])
    inputs.prepare(goals)
    monkeypatch.setattr(algebra, "products", None)  # a second pass would fail
    for goal in goals:
        scores = estimators.get("dot")(inputs.with_target(goal))
        np.testing.assert_allclose(scores, phi.astype(float) @ goal, rtol=1e-12)
