"""What every registered estimator must keep to, built in or announced by another package."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from behaviortrace import estimators
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.estimators import DEGREES, Inputs

N, DIM, CHECKPOINTS = 23, 64, 3
EVERY = pytest.mark.parametrize("name", estimators.names())


def make(n: int = N, seed: int = 0) -> Inputs:
    rng = np.random.default_rng(seed)
    rows = pl.DataFrame(
        {
            "rollout_id": [f"r{i}" for i in range(n)],
            "step": np.arange(n, dtype=np.int32) // 2,
            "group": np.arange(n, dtype=np.int32) // 4,
            "behavior": rng.random(n) < 0.5,
            "advantage": rng.normal(size=n),
            "fluency": -rng.random(n),
            "n_tokens": rng.integers(1, 50, n).astype(np.int32),
            "reward": rng.random(n),
        }
    )
    return Inputs(
        rows=rows,
        sketches=rng.normal(size=(n, DIM)).astype(np.float32),
        target=rng.normal(size=DIM).astype(np.float32),
        targets=rng.normal(size=(CHECKPOINTS, DIM)).astype(np.float32),
        learning_rates=np.array([1e-3, 2e-3, 5e-4]),
        seed=3,
    )


def rescaled(inputs: Inputs, sketch: float, target: float) -> Inputs:
    return Inputs(
        rows=inputs.rows,
        sketches=inputs.sketches * np.float32(sketch),
        target=inputs.target * np.float32(target),
        targets=inputs.targets * np.float32(target),
        learning_rates=inputs.learning_rates,
        seed=inputs.seed,
    )


def taken(inputs: Inputs, index: np.ndarray) -> Inputs:
    return Inputs(
        rows=inputs.rows[index],
        sketches=inputs.sketches[index],
        target=inputs.target,
        targets=inputs.targets,
        learning_rates=inputs.learning_rates,
        seed=inputs.seed,
    )


@EVERY
@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(N)))
def test_row_order_does_not_matter(name: str, order: list[int]) -> None:
    unit, inputs, index = estimators.get(name), make(), np.array(order)
    np.testing.assert_allclose(
        unit(taken(inputs, index)), unit(inputs)[index], rtol=1e-9, atol=1e-12
    )


@EVERY
def test_equal_rows_are_tied_exactly(name: str) -> None:
    unit = estimators.get(name)
    if name == "trak":
        pytest.skip("ties of a linear solve hold to rounding; tested below")
    inputs = taken(make(40, seed=1), np.array([0, 5, 7, 5, 9, 11, 5]))
    scores = unit(inputs)
    assert scores[1] == scores[3] == scores[6]


def test_trak_ties_equal_rows_to_rounding() -> None:
    scores = estimators.get("trak")(taken(make(40, seed=1), np.array([0, 5, 7, 5, 9, 5])))
    np.testing.assert_allclose(scores[[3, 5]], scores[1], rtol=1e-9)


@EVERY
def test_no_rows_give_no_scores(name: str) -> None:
    scores = estimators.get(name)(taken(make(), np.array([], dtype=int)))
    assert scores.shape == (0,) and scores.dtype == np.float64


@EVERY
def test_one_row_is_enough(name: str) -> None:
    assert estimators.get(name)(taken(make(), np.array([4]))).shape == (1,)


@EVERY
@pytest.mark.filterwarnings("error")
def test_zero_gradients_do_not_crash(name: str) -> None:
    unit, inputs = estimators.get(name), make()
    zeroed = inputs.sketches.copy()
    zeroed[[2, 5]] = 0.0
    some = Inputs(
        rows=inputs.rows,
        sketches=zeroed,
        target=inputs.target,
        targets=inputs.targets,
        learning_rates=inputs.learning_rates,
    )
    scores = unit(some)
    assert np.isfinite(np.delete(scores, [2, 5])).all()
    if DEGREES[unit.scale] == (0, 0) and "sketches" in unit.needs:
        assert np.isnan(scores[[2, 5]]).all()  # a zero vector has no direction
    if DEGREES[unit.scale][0] > 0:
        assert (scores[[2, 5]] == 0.0).all()
    everything = unit(rescaled(inputs, 0.0, 1.0))
    if "sketches" in unit.needs and DEGREES[unit.scale][0] <= 0:
        assert np.isnan(everything).all()
    no_target = unit(rescaled(inputs, 1.0, 0.0))
    if name == "gas":
        assert np.isnan(no_target).all()


@EVERY
@settings(max_examples=15, deadline=None)
@given(a=st.floats(0.01, 100.0), b=st.floats(0.01, 100.0))
def test_scores_scale_as_declared(name: str, a: float, b: float) -> None:
    unit, inputs = estimators.get(name), make()
    by_sketch, by_target = DEGREES[unit.scale]
    expected = unit(inputs) * a**by_sketch * b**by_target
    np.testing.assert_allclose(unit(rescaled(inputs, a, b)), expected, rtol=1e-4, atol=1e-9)


@EVERY
def test_inputs_are_left_as_they_were(name: str) -> None:
    inputs, fresh = make(), make()
    first = estimators.get(name)(inputs).copy()
    np.testing.assert_array_equal(estimators.get(name)(inputs), first)
    for field in ("sketches", "target", "targets", "learning_rates"):
        np.testing.assert_array_equal(getattr(inputs, field), getattr(fresh, field))
    assert inputs.rows.equals(fresh.rows)


@EVERY
def test_read_only_inputs_suffice(name: str) -> None:
    inputs = make()
    for field in ("sketches", "target", "targets", "learning_rates"):
        getattr(inputs, field).flags.writeable = False
    assert estimators.get(name)(inputs).shape == (N,)


@EVERY
def test_rows_without_a_sketch_are_undefined_and_harmless(name: str) -> None:
    unit, inputs = estimators.get(name), make()
    if "sketches" not in unit.needs:
        pytest.skip("reads no sketches")
    holes = inputs.sketches.copy()
    holes[[1, 8]] = np.nan
    holed = Inputs(
        rows=inputs.rows,
        sketches=holes,
        target=inputs.target,
        targets=inputs.targets,
        learning_rates=inputs.learning_rates,
    )
    keep = np.delete(np.arange(N), [1, 8])
    scores = unit(holed)
    assert np.isnan(scores[[1, 8]]).all()
    np.testing.assert_allclose(scores[keep], unit(taken(inputs, keep)), rtol=1e-9)


@EVERY
def test_what_is_declared_is_what_is_needed(name: str) -> None:
    unit, inputs = estimators.get(name), make()
    bare = Inputs(
        rows=inputs.rows.select(sorted(unit.columns) or ["group"]),
        sketches=inputs.sketches if "sketches" in unit.needs else None,
        target=inputs.target if "target" in unit.needs else None,
        targets=inputs.targets if "targets" in unit.needs else None,
        learning_rates=inputs.learning_rates if "targets" in unit.needs else None,
    )
    assert unit(bare).shape == (N,)
    assert unit.target_free == (not unit.needs & {"target", "targets"})
    assert unit.reference and unit.function.__doc__
    with pytest.raises(BehaviorTraceError, match=f"{name!r} needs"):
        unit(Inputs(rows=inputs.rows.select("group")))
