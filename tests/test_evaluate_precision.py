import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from behaviortrace.evaluate.precision import (
    base_rate,
    ceiling,
    lift,
    precision_at_ground_truth,
)
from tests.published import ground_truth_rows
from tests.reference import statistics as slow

ROWS = st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6)


@given(ROWS)
@settings(max_examples=60, deadline=None)
def test_equals_the_average_over_all_ways_to_break_ties(rows):
    score, label = [float(s) for s, _ in rows], [positive for _, positive in rows]
    found = precision_at_ground_truth(np.array(score), np.array(label))
    if not any(label):
        assert np.isnan(found)
    else:
        assert found == pytest.approx(slow.precision_over_all_orders(score, label))


@given(ROWS)
@settings(max_examples=100, deadline=None)
def test_ceiling_is_the_best_order_of_blocks(rows):
    block, label = [b for b, _ in rows], [positive for _, positive in rows]
    found = ceiling(np.array(label), np.array(block))
    if not any(label):
        assert np.isnan(found)
    else:
        assert found == pytest.approx(slow.best_block_precision(label, block))


@given(ROWS, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_invariant_to_row_order_and_bounded_by_the_ceiling(rows, random):
    shuffled = list(rows)
    random.shuffle(shuffled)
    score, label = (np.array(c) for c in zip(*rows, strict=True))
    score2, label2 = (np.array(c) for c in zip(*shuffled, strict=True))
    found = precision_at_ground_truth(score, label)
    assert found == pytest.approx(precision_at_ground_truth(score2, label2), nan_ok=True)
    assert precision_at_ground_truth(7.0 - 0.0 * score, label) == pytest.approx(
        base_rate(label) if label.any() else np.nan, nan_ok=True
    )
    if label.any():
        assert found <= ceiling(label, score) + 1e-12


def test_edges():
    yes = np.array([True, True])
    assert precision_at_ground_truth(np.array([1.0, 2.0]), yes) == 1.0
    assert ceiling(yes) == 1.0
    assert np.isnan(ceiling(~yes))
    assert np.isnan(base_rate(np.array([], dtype=bool)))
    assert np.isnan(lift(0.0, 0.0))
    assert precision_at_ground_truth(np.array([-np.inf, 0.0]), np.array([True, False])) == 0.0
    with pytest.raises(ValueError, match="1 scores are NaN"):
        precision_at_ground_truth(np.array([np.nan, 0.0]), yes)
    with pytest.raises(ValueError, match="shape"):
        precision_at_ground_truth(np.array([0.0]), yes)


def test_published_ground_truth():
    rows = ground_truth_rows()
    label, step = rows["boosted"].to_numpy(), rows["step"].to_numpy()
    early = step < 200
    assert len(label) == 16_000
    assert label.sum() == 1383
    assert round(base_rate(label), 4) == 0.0864
    assert round(ceiling(label, step), 4) == 0.5510
    assert round(base_rate(label[early]), 4) == 0.4322
    assert round(ceiling(label[early], step[early]), 4) == 0.5510
    last_tenth = (step >= 900).astype(float)  # the published local buffer
    assert precision_at_ground_truth(last_tenth, label) == 0.0
    within = precision_at_ground_truth(last_tenth[early], label[early])
    assert round(within, 4) == 0.4322


def test_sixteen_thousand_rows_are_instant():
    generator = np.random.default_rng(0)
    label, step = generator.random(16_000) < 0.1, np.repeat(np.arange(1000), 16)
    score = generator.random(1000)[step]
    start = time.perf_counter()
    precision_at_ground_truth(score, label)
    ceiling(label, step)
    assert time.perf_counter() - start < 0.25
