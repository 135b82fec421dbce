"""Tables, documents and targets come back as they were written; a full disk harms nothing."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.records import Target
from behaviortrace.run import Run, atomic
from behaviortrace.run.jsonable import jsonable
from tests.reference.run_builder import (
    DIM,
    contents,
    plain_sketches,
    probe_frame,
    rollout_frame,
    small_recipe,
    target,
)


@pytest.fixture(autouse=True, scope="module")
def _quick_disk() -> Iterator[None]:
    """These tests stop a process, not the power, so nothing need reach the platter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=40, deadline=None)
@given(data=JSON)
def test_json_documents_come_back_with_undefined_numbers_as_null(data: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(folder)
        run.save_json("results/x", data)
        assert run.json("results/x") == undefined_as_none(data)


def undefined_as_none(data: object) -> object:
    if isinstance(data, float):
        return data if np.isfinite(data) else None
    if isinstance(data, list):
        return [undefined_as_none(item) for item in data]
    if isinstance(data, dict):
        return {key: undefined_as_none(item) for key, item in data.items()}
    return data


def test_jsonable_takes_numpy_and_dataclasses_and_refuses_the_rest() -> None:
    @dataclass
    class Pair:
        left: np.float32
        right: np.ndarray

    given_ = {np.int64(3): Pair(np.float32(0.5), np.array([1.0, np.nan])), "s": (True,)}
    assert jsonable(given_) == {"3": {"left": 0.5, "right": [1.0, None]}, "s": [True]}
    with pytest.raises(BehaviorTraceError, match=r"results\.x is a object"):
        jsonable({"x": object()}, "results")


def test_outputs_are_replaced_and_named_where_absent(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    with pytest.raises(BehaviorTraceError, match="behaviortrace score"):
        run.table("scores/all")
    with pytest.raises(BehaviorTraceError, match="behaviortrace check"):
        run.json("results/verdicts")
    for n in (1, 2):
        run.save_table("scores/all", pl.DataFrame({"n": [n] * n}))
        run.save_json("results/summary", {"n": n})
        run.save_target(Target("t", "kind", 0, np.full(DIM, n), {"n": n}))
    assert run.table("scores/all")["n"].to_list() == [2, 2]
    assert run.json("results/summary") == {"n": 2}
    assert [t.meta["n"] for t in run.targets()["t"]] == [2]
    assert run.has("scores/all") and not run.has("scores/none")
    assert run.verify() == []
    for name in ("all", "scores/../x", "/scores/x", "rollouts/x", "scores/"):
        with pytest.raises(BehaviorTraceError, match="is not 'scores/NAME'"):
            run.save_table(name, pl.DataFrame())


def test_targets_come_by_name_in_order_of_step(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    for step in (20, 3, 100):
        run.save_target(target(step))
    run.save_target(target(0, "constructed"))
    found = Run.open(run.path).targets()
    assert {name: [t.step for t in each] for name, each in found.items()} == {
        "constructed": [0],
        "minimal_pair": [3, 20, 100],
    }
    third = found["minimal_pair"][2]
    np.testing.assert_array_equal(third.vector, target(100).vector)
    assert (third.kind, third.meta) == ("minimal_pair", {"n": 3})
    with pytest.raises(BehaviorTraceError, match="letters, digits"):
        run.save_target(target(0, "a/b"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES])
@pytest.mark.parametrize("fail_at", range(1, 6))
def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fail_at: int
) -> None:
    run = Run.create(tmp_path / "run")
    run.write_shard("training", 0, 0, rollout_frame(0), {"plain": plain_sketches(0)})
    before = contents(run)
    calls = 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == fail_at:
            raise OSError(number, "refused")

    with monkeypatch.context() as patch, pytest.raises(BehaviorTraceError) as caught:
        patch.setattr(atomic.os, "fsync", full)
        run.write_shard("training", 1, 0, rollout_frame(1), {"plain": plain_sketches(1)})
    message = str(caught.value)
    assert "\n" not in message and str(run.path) in message
    assert ("no space left" in message) == (number != errno.EACCES)
    assert not list(run.path.rglob("*.tmp"))
    assert contents(run) == before
    assert Run.open(run.path).verify() == []
    run.write_shard("training", 1, 0, rollout_frame(1), {"plain": plain_sketches(1)})
    assert run.verify() == []


@pytest.mark.parametrize("fail_at", range(1, 8))
def test_a_disk_that_fills_while_an_output_is_replaced_leaves_a_sound_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int
) -> None:
    run = Run.create(tmp_path / "run")
    run.save_target(target())
    calls = 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == fail_at:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(BehaviorTraceError, match="no space left"):
        patch.setattr(atomic.os, "fsync", full)
        run.save_target(target())
    assert Run.open(run.path).verify() == []
    run.save_target(target())
    assert run.verify() == [] and len(run.targets()["minimal_pair"]) == 1


def test_the_manifest_is_not_rewritten_at_the_cost_of_older_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path / "run", recipe=small_recipe())
    run.write_shard("probes", 0, 0, probe_frame(0))
    hashed: list[Path] = []
    monkeypatch.setattr(atomic, "sha256_file", lambda path: hashed.append(path))
    run.write_shard("training", 0, 0, rollout_frame(0))
    run.update(status="training")
    assert hashed == []


def test_a_manifest_is_readable_json_with_what_the_run_is(tmp_path: Path) -> None:
    recipe = small_recipe()
    run = Run.create(tmp_path / "run", recipe=recipe, meta={"command": "x", "bad": float("nan")})
    body = json.loads((run.path / "manifest.json").read_text())
    assert body["preregistration"] == recipe.preregistration()
    assert body["seeds"]["run"] == recipe.seed
    assert body["sketch"]["dim"] == recipe.sketch.dim
    assert {"torch", "trl", "transformers", "numpy", "behaviortrace"} <= set(body["packages"])
    assert body["meta"] == {"command": "x", "bad": None}
    assert Run.open(run.path).recipe == recipe
