"""Verification finds every kind of damage, and nothing in a sound run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import Run
from tests.reference.run_builder import edit_manifest, rollout_frame, whole_run


@pytest.fixture(autouse=True, scope="module")
def _quick_disk() -> Iterator[None]:
    """These tests stop a process, not the power, so nothing need reach the platter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


STEP_1 = "rollouts/step-000001-rank-0000.parquet"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return whole_run(tmp_path / "run")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Damaged and mended again by each test that uses it."""
    yield whole_run(tmp_path_factory.mktemp("shared") / "run")


def only(run: Run, *words: str) -> str:
    (problem,) = run.verify()
    assert "\n" not in problem
    assert all(word in problem for word in words), problem
    return problem


def test_a_sound_run_has_no_problems_wherever_it_lies(run: Run, tmp_path: Path) -> None:
    assert run.verify() == []
    moved = tmp_path / "elsewhere" / "run"
    shutil.move(run.path, moved)
    assert Run.open(moved).verify() == []


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_flipped_bit_of_any_listed_file_is_found(shared: Run, data: st.DataObject) -> None:
    file = data.draw(st.sampled_from(sorted(e.file for e in shared.manifest.files())))
    path = shared.path / file
    content = path.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    flipped = bytearray(content)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        path.write_bytes(flipped)
        only(shared, file, "checksum")
    finally:
        path.write_bytes(content)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_of_the_manifest_is_found(shared: Run, data: st.DataObject) -> None:
    path = shared.path / "manifest.json"
    content = path.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    flipped = bytearray(content)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        path.write_bytes(flipped)
        try:
            damaged = Run.open(shared.path)
        except BehaviorTraceError as error:
            assert "\n" not in str(error)
            return
        assert damaged.verify()
    finally:
        path.write_bytes(content)


def test_a_truncated_file_is_found_and_named_on_reading(run: Run) -> None:
    path = run.path / STEP_1
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-5])
    only(run, STEP_1, f"{size - 5} bytes instead of {size}")
    with pytest.raises(BehaviorTraceError) as caught:
        run.read()
    assert all(w in str(caught.value) for w in (STEP_1, "behaviortrace verify", "--resume"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "read"),
    [
        (STEP_1, lambda run: run.rollouts()),
        ("sketches/step-000001-rank-0000.safetensors", lambda run: run.sketches()),
        ("draws/a/sketches/step-000000-rank-0000.safetensors", lambda run: run.sketches(draw="a")),
        ("scores/all.parquet", lambda run: run.table("scores/all")),
        ("results/summary.json", lambda run: run.json("results/summary")),
        ("targets/minimal_pair-step-000000.safetensors", lambda run: run.targets()),
        ("targets/minimal_pair-step-000000.json", lambda run: run.targets()),
    ],
)
def test_damage_is_one_line_on_reading_and_missing_files_are_found(
    run: Run, file: str, read: Any
) -> None:
    path = run.path / file
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(BehaviorTraceError, match="does not match its checksum"):
        read(run)
    path.unlink()
    only(run, file, "is missing")
    with pytest.raises(BehaviorTraceError, match="is missing"):
        read(run)


@pytest.mark.parametrize(
    "file",
    [
        "rollouts/step-000099-rank-0000.parquet",
        "sketches/copy.safetensors",
        "draws/b/rollouts/step-000000-rank-0000.parquet",
        "results/old.json",
        "targets/deep/er.json",
        "checkpoints/checkpoint-2/extra.bin",
    ],
)
def test_an_extra_file_is_found_and_cleaned(run: Run, file: str) -> None:
    (run.path / file).parent.mkdir(parents=True, exist_ok=True)
    (run.path / file).write_bytes(b"extra")
    only(run, file, "not in the manifest")
    assert run.clean() == [file]
    assert run.verify() == []


def test_an_unlisted_checkpoint_is_found_but_a_trainers_own_notes_are_let_be(run: Run) -> None:
    home = run.path / "checkpoints"
    (home / "runs").mkdir()
    (home / "runs" / "events").write_text("log")
    (home / "README.md").write_text("model card")
    (run.path / "notes.txt").write_text("mine")
    assert run.verify() == []
    for name in ("checkpoint-7", "tmp-checkpoint-7"):
        (home / name).mkdir()
        only(run, f"checkpoints/{name}", "not in the manifest")
        run.clean()
    assert (home / "README.md").exists() and (home / "runs" / "events").exists()


def test_cleaning_never_follows_a_link_out_of_the_run(run: Run, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (run.path / "rollouts" / "link").symlink_to(outside)
    (run.path / "checkpoints" / "checkpoint-9").symlink_to(outside)
    assert len(run.verify()) == 2
    run.begin_resume()
    assert run.verify() == []
    assert (outside / "precious").read_text() == "x"


def test_a_wrong_row_count_is_found(run: Run) -> None:
    def change(body: dict[str, Any]) -> None:
        shard = next(s for s in body["shards"] if s["store"] == "training" and s["step"] == 1)
        shard["rows"] += 1
        body["counts"]["training"] += 1

    edit_manifest(run.path, change)
    table, tensor = run.verify()
    assert STEP_1 in table and "has 3 rows, the manifest says 4" in table
    assert "sketches/step-000001" in tensor and "4 rows" in tensor
    with pytest.raises(BehaviorTraceError, match="has 3 rows instead of 4"):
        run.read()


def test_a_wrong_row_count_of_a_table_is_found(run: Run) -> None:
    edit_manifest(run.path, lambda body: body["tables"]["scores/all"].update(rows=5))
    only(run, "scores/all.parquet", "has 2 rows, the manifest says 5")


def test_a_manifest_changed_by_hand_is_found(run: Run) -> None:
    edit_manifest(run.path, lambda body: body["meta"].update(x=1), seal=False)
    only(run, "manifest.json", "digest")


def without(body: dict[str, Any], step: int) -> None:
    body["shards"] = [s for s in body["shards"] if (s["store"], s["step"]) != ("training", step)]
    body["counts"]["training"] -= 3
    body["counts"]["steps"] -= 1


@pytest.mark.parametrize("step", [0, 3, 5])
def test_a_gap_in_steps_is_found(run: Run, step: int) -> None:
    edit_manifest(run.path, lambda body: without(body, step))
    for folder, suffix in (("rollouts", "parquet"), ("sketches", "safetensors")):
        (run.path / folder / f"step-{step:06d}-rank-0000.{suffix}").unlink()
    only(run, "gap", f"1 step(s): {step}")


def test_a_finished_run_with_too_few_steps_has_a_gap(run: Run) -> None:
    def change(body: dict[str, Any]) -> None:
        body["recipe"]["train"]["steps"] = 8

    edit_manifest(run.path, change)
    only(run, "gap", "2 step(s): 6, 7")
    edit_manifest(run.path, lambda body: body.update(status="training"))
    assert run.verify() == []


def test_a_missing_rank_and_a_missing_part_of_a_draw_are_found(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    run.write_shard("training", 0, 0, rollout_frame(0, 0))
    run.write_shard("training", 0, 1, rollout_frame(0, 1))
    run.write_shard("training", 1, 0, rollout_frame(1, 0))
    only(run, "step 1", "rank(s) [1]")
    run.write_shard("training", 1, 1, rollout_frame(1, 1))
    run.write_shard("draws/a", 0, 1, rollout_frame(0, 1))
    only(run, "draws/a", "no shard number 0")


def test_repeated_rollouts_are_found_unless_they_are_further_uses(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    for step in (0, 1):
        frame = rollout_frame(0).with_columns(use=pl.lit(step))
        run.write_shard("training", step, 0, frame)
    assert run.verify() == []
    run.write_shard("training", 2, 0, rollout_frame(0).with_columns(use=pl.lit(1)))
    only(run, "training has 3 rollout_id twice")


def test_changed_thresholds_are_found(run: Run) -> None:
    recipe = run.recipe
    assert recipe is not None
    looser = recipe.thresholds.model_copy(update={"emergence": 0.01})
    run.update(recipe=recipe.model_copy(update={"thresholds": looser}))
    only(run, "preregistration", "thresholds differ")
    assert run.manifest.preregistration == recipe.preregistration()


def test_a_lineage_that_cannot_be_is_found(run: Run) -> None:
    run.begin_resume()
    edit_manifest(run.path, lambda body: body["lineage"][0].update(at="2001-01-01T00:00:00+00:00"))
    only(run, "lineage", "order of their times")
    edit_manifest(
        run.path,
        lambda body: body["lineage"][0].update(at="2901-01-01T00:00:00+00:00", checkpoint=False),
    )
    only(run, "lineage", "without a checkpoint")
