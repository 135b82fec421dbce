"""Shards come back as they were written, and wrong ones are refused."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from polars.testing import assert_frame_equal

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.records import ROLLOUT_SCHEMA
from behaviortrace.run import Run
from tests.reference.run_builder import (
    DIM,
    plain_sketches,
    rollout_frame,
    whole_run,
    write_checkpoint,
)


@pytest.fixture(autouse=True, scope="module")
def _quick_disk() -> Iterator[None]:
    """These tests stop a process, not the power, so nothing need reach the platter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


KEYS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 3), st.integers(0, 4)),
    unique_by=lambda key: key[:2],
    min_size=1,
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(keys=KEYS, store=st.sampled_from(["training", "draws/a", "draws/seed-100"]))
def test_rows_come_back_in_order_of_step_and_rank(keys: list[tuple], store: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "run")
        for step, rank, rows in keys:
            plain = {"plain": plain_sketches(step, rank, rows)}
            run.write_shard(store, step, rank, rollout_frame(step, rank, rows), plain)
        reopened = Run.open(run.path)
        ordered = sorted(keys)
        if not any(rows for _, _, rows in keys):
            with pytest.raises(BehaviorTraceError, match="rows yet; "):
                reopened.read(store)
            return
        frames = [rollout_frame(*key) for key in ordered]
        assert_frame_equal(reopened.read(store), pl.concat(frames))
        expected = np.concatenate([plain_sketches(*key) for key in ordered])
        np.testing.assert_array_equal(reopened.tensor(store, "plain"), expected)
        assert reopened.manifest.counts[store] == len(expected)


@settings(max_examples=40, deadline=None)
@given(array=arrays(np.float32, array_shapes(min_dims=1, max_dims=3, max_side=4)))
def test_tensors_come_back_bit_for_bit(array: np.ndarray) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(folder)
        frame = pl.DataFrame({"row": range(len(array))})
        run.write_shard("training", 0, 0, frame, {"x": array})
        assert run.tensor("training", "x").tobytes() == array.tobytes()


def test_shards_lacking_a_tensor_give_nan_rows(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    run.write_shard("training", 0, 0, rollout_frame(0))
    run.write_shard("training", 1, 0, rollout_frame(1), {"plain": plain_sketches(1)})
    plain = run.tensor("training", "plain")
    assert np.isnan(plain[:3]).all()
    np.testing.assert_array_equal(plain[3:], plain_sketches(1))
    with pytest.raises(BehaviorTraceError, match="no 'other' tensor"):
        run.tensor("training", "other")


def test_integer_tensors_are_not_filled_with_a_made_up_number(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    run.write_shard("training", 0, 0, rollout_frame(0))
    run.write_shard("training", 1, 0, rollout_frame(1), {"hash": np.arange(3)})
    with pytest.raises(BehaviorTraceError, match="int64 has no NaN"):
        run.tensor("training", "hash")


def test_sketches_of_another_size_are_refused(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    run.write_shard("training", 0, 0, rollout_frame(0), {"plain": plain_sketches(0)})
    run.write_shard("training", 1, 0, rollout_frame(1), {"plain": np.zeros((3, 2), np.float32)})
    with pytest.raises(BehaviorTraceError, match="training step 1: rows of float32"):
        run.sketches("plain")


def test_update_sketches_are_stored_or_weighted_plain_ones(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    update = plain_sketches(99)
    weightless = rollout_frame(2).with_columns(pl.lit(None, pl.Float64).alias("update_weight"))
    run.write_shard("training", 0, 0, rollout_frame(0), {"plain": plain_sketches(0)})
    run.write_shard("training", 1, 0, rollout_frame(1), {"update": update})
    run.write_shard("training", 2, 0, weightless, {"plain": plain_sketches(2)})

    found = run.sketches()
    weights = np.array([0.0, 1.0, 2.0], np.float32)
    np.testing.assert_array_equal(found[:3], weights[:, None] * plain_sketches(0))
    np.testing.assert_array_equal(found[3:6], update)
    assert np.isnan(found[6:]).all()
    plain = run.sketches("plain")
    assert np.isnan(plain[3:6]).all() and not np.isnan(plain[6:]).any()
    assert found.dtype == plain.dtype == np.float32 and found.shape == (9, DIM)

    run.write_shard("draws/a", 0, 0, weightless, {"plain": plain_sketches(2)})
    with pytest.raises(BehaviorTraceError, match="neither 'update' sketches"):
        run.sketches("update", draw="a")
    with pytest.raises(BehaviorTraceError, match="sketch kind 'both'"):
        run.sketches("both")  # type: ignore[arg-type]  # the point of the test


def test_rollouts_have_every_column_and_keep_others(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    frame = rollout_frame(0).with_columns(extra=pl.lit("kept"))
    run.write_shard("training", 0, 0, frame)
    found = run.rollouts()
    assert found.columns == [*ROLLOUT_SCHEMA, "extra"]
    assert found["advantage"].null_count() == 3
    run.write_shard("draws/b", 4, 0, rollout_frame(4))
    run.write_shard("draws/a", 4, 0, rollout_frame(4))
    assert run.draws() == ["a", "b"]
    assert run.rollouts("b")["step"].to_list() == [4, 4, 4]


def test_other_ranks_prepare_and_rank_zero_commits(tmp_path: Path) -> None:
    zero = Run.create(tmp_path / "run")
    one = Run.open(tmp_path / "run")
    entries = [
        rank.prepare_shard("training", 0, n, rollout_frame(0, n), {"plain": plain_sketches(0, n)})
        for n, rank in enumerate([zero, one])
    ]
    with pytest.raises(BehaviorTraceError, match="no training rows"):
        one.read()
    sent = [type(entry).model_validate_json(entry.model_dump_json()) for entry in entries]
    zero.commit(sent)
    assert one.read()["rollout_id"].to_list() == [f"0-{r}-{i}" for r in (0, 1) for i in range(3)]
    assert one.verify() == []


def test_two_handles_do_not_lose_each_others_entries(tmp_path: Path) -> None:
    first = Run.create(tmp_path / "run")
    second = Run.open(tmp_path / "run")
    for step in range(4):
        (first, second)[step % 2].write_shard("training", step, 0, rollout_frame(step))
    assert first.read()["step"].unique().to_list() == [0, 1, 2, 3]


def test_wrong_shards_are_refused(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    run.write_shard("training", 0, 0, rollout_frame(0))
    with pytest.raises(BehaviorTraceError, match="already has a shard for step 0, rank 0"):
        run.write_shard("training", 0, 0, rollout_frame(0))
    with pytest.raises(BehaviorTraceError, match="does not have the 3 rows"):
        run.write_shard("training", 1, 0, rollout_frame(1), {"plain": np.zeros((2, DIM))})
    for store in ("trainings", "draws/../x", "draws/", "draws/a/b"):
        with pytest.raises(BehaviorTraceError, match="store"):
            run.write_shard(store, 1, 0, rollout_frame(1))
    with pytest.raises(BehaviorTraceError, match="negative"):
        run.write_shard("training", -1, 0, rollout_frame(1))
    assert run.verify() == []


def test_a_dropped_draw_can_be_drawn_again(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "run")
    run.drop_draw("a")
    assert run.draws() == [] and run.verify() == []
    assert not list((run.path / "draws").rglob("*.parquet"))
    run.write_shard("draws/a", 0, 0, rollout_frame(0))
    assert run.draws() == ["a"]


def test_checkpoints_are_complete_ones_inside_the_run(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    folder = write_checkpoint(run, 0)
    assert run.checkpoints() == {}
    run.add_checkpoint(0, folder)
    assert run.checkpoints() == {0: run.path / "checkpoints" / "checkpoint-0"}
    with pytest.raises(BehaviorTraceError, match="listed already"):
        run.add_checkpoint(0, folder)
    with pytest.raises(BehaviorTraceError, match="is not a folder of"):
        run.add_checkpoint(1, tmp_path)
    empty = run.path / "checkpoints" / "checkpoint-1"
    empty.mkdir()
    with pytest.raises(BehaviorTraceError, match="is empty"):
        run.add_checkpoint(1, empty)
    (folder / "model.safetensors").unlink()
    assert run.checkpoints() == {}
