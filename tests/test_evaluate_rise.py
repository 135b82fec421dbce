"""The rise of s_b over the warm-up, and what luck makes of it."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest

from behaviortrace.evaluate.rise import rise
from behaviortrace.records import PROBE_SCHEMA

SCHEMA = {name: PROBE_SCHEMA[name] for name in ("step", "kind", "prompt", "behavior")}


def probes(shows: np.ndarray, kind: str = "probe") -> pl.DataFrame:
    """Rows of responses, (prompts, checkpoints) of bool; checkpoints are 20 steps apart."""
    rows = [
        (20 * checkpoint, kind, f"prompt {prompt}", bool(shows[prompt, checkpoint]))
        for prompt, checkpoint in np.ndindex(*shows.shape)
    ]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def exact(shows: np.ndarray) -> float:
    """The share of all orders of every prompt's responses with a rise at least as high."""

    def of(table: np.ndarray) -> float:
        shares = table.mean(axis=0)
        return float(shares[1:].max() - shares[0])

    orders = [list(itertools.permutations(row)) for row in shows]
    rises = [of(np.array(each)) for each in itertools.product(*orders)]
    return float(np.mean([found >= of(shows) - 1e-12 for found in rises]))


@pytest.mark.parametrize(
    "shows",
    [
        [[0, 1, 0], [0, 1, 1], [0, 1, 0], [0, 0, 0], [1, 1, 0]],
        [[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]],
        [[0, 1, 1], [0, 1, 1], [0, 1, 1], [0, 1, 1]],
    ],
)
def test_the_share_is_that_of_all_orders(shows: list[list[int]]) -> None:
    table = np.array(shows, dtype=float)
    found = rise(probes(table), permutations=40_000)
    assert found is not None
    expected = exact(table)
    assert found.p == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 40_000) ** 0.5)
    assert found.rise == pytest.approx(table.mean(axis=0)[1:].max() - table.mean(axis=0)[0])
    assert (found.looks, found.probes, found.permutations) == (2, len(table), 40_000)


def test_luck_alone_is_called_a_rise_no_more_often_than_it_says() -> None:
    """The naive look at the best of ten checkpoints would be taken in most of the time."""
    rng = np.random.default_rng(0)
    p = []
    for _ in range(200):
        found = rise(probes(rng.random((20, 11)) < 0.3), permutations=199)
        assert found is not None
        p.append(found.p)
    assert np.mean(np.array(p) <= 0.05) < 0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5
    assert 0.4 < np.mean(p) < 0.65


def test_control_prompts_and_prompts_with_a_hole_are_left_out() -> None:
    table = np.array([[0, 1, 0], [0, 1, 1], [1, 1, 0]], dtype=float)
    clean = probes(table)
    hole = pl.DataFrame(
        [(0, "probe", "hole", True), (20, "probe", "hole", None), (40, "probe", "hole", False)],
        schema=SCHEMA,
        orient="row",
    )
    controls = probes(1 - table, "control")
    mixed = pl.concat([controls, hole, clean]).sample(fraction=1.0, shuffle=True, seed=1)
    assert rise(mixed, permutations=500) == rise(clean, permutations=500)


def test_without_a_start_or_anything_later_there_is_no_rise() -> None:
    table = np.array([[0, 1], [1, 1]], dtype=float)
    both = probes(table)
    assert rise(both) is not None
    assert rise(both.filter(pl.col("step") == 0)) is None
    assert rise(both.filter(pl.col("step") > 0)) is None
    assert rise(both.clear()) is None
    unjudged = both.with_columns(pl.lit(None, dtype=pl.Boolean).alias("behavior"))
    assert rise(unjudged) is None


def test_many_probes_are_shuffled_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    table = probes(np.random.default_rng(1).random((6, 4)) < 0.5)
    whole = rise(table, permutations=300)
    monkeypatch.setattr("behaviortrace.evaluate.rise._AT_A_TIME", 100)
    assert rise(table, permutations=300) == whole
