"""A resume goes back to what is complete and sound, and says what it passed over."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import Run
from tests.reference.run_builder import (
    contents,
    edit_manifest,
    finish,
    plain_sketches,
    probe_frame,
    rollout_frame,
    save_checkpoint,
    small_recipe,
    train,
    whole_run,
    write_checkpoint,
)


@pytest.fixture(autouse=True, scope="module")
def _quick_disk() -> Iterator[None]:
    """These tests stop a process, not the power, so nothing need reach the platter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def test_half_written_files_of_a_killed_write_are_named_and_removed(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "run")
    halves = [
        run.path / "rollouts" / ".step-000009-rank-0000.parquet.0123abcd.tmp",
        run.path / ".manifest.json.0123abcd.tmp",
        run.path / "report" / ".index.html.0123abcd.tmp",
    ]
    for half in halves:
        half.parent.mkdir(exist_ok=True)
        half.write_bytes(b"PAR1 half")
    problems = run.verify()
    assert len(problems) == 3 and all("unfinished write" in problem for problem in problems)
    run.begin_resume()
    assert run.verify() == [] and not any(half.exists() for half in halves)


def test_a_resume_drops_what_comes_after_and_records_it(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", recipe=small_recipe(6, 2))
    train(run, 4, 2)
    run.write_shard("training", 4, 0, rollout_frame(4), {"plain": plain_sketches(4)})
    run.write_shard("probes", 5, 0, probe_frame(5))
    finish(run)
    (run.path / "report").mkdir()
    (run.path / "report" / "index.html").write_text("old")
    folder = write_checkpoint(run, 6)  # never listed: the trainer was killed while saving it

    assert run.begin_resume() == 4
    assert run.read()["step"].unique().to_list() == [0, 1, 2, 3]
    assert run.read("probes")["step"].unique().to_list() == [0, 2, 4]
    assert list(run.checkpoints()) == [0, 2, 4]
    assert run.draws() == [] and run.targets() == {} and not run.has("scores/all")
    assert not folder.exists() and not (run.path / "report").exists()
    assert not (run.path / "rollouts" / "step-000004-rank-0000.parquet").exists()
    (entry,) = run.manifest.lineage
    assert (entry.step, entry.reached, entry.checkpoint) == (4, 5, True)
    assert entry.dropped == {"shards": 3, "targets": 1, "tables": 1, "jsons": 1}
    assert run.manifest.status == "training"
    assert run.verify() == []


def test_without_a_checkpoint_a_resume_starts_again(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", recipe=small_recipe())
    run.write_shard("probes", 0, 0, probe_frame(0))
    write_checkpoint(run, 0)
    assert run.begin_resume() == 0
    assert run.manifest.shards == [] and run.checkpoints() == {}
    assert run.manifest.lineage[0].checkpoint is False
    assert not list(run.path.rglob("*.parquet"))
    train(run, 6, 2)
    assert run.verify() == []


def test_a_run_that_starts_late_resumes_too(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")  # without a recipe: attached to a trainer of one's own
    for step in range(10, 14):
        run.write_shard("training", step, 0, rollout_frame(step))
    run.add_checkpoint(12, write_checkpoint(run, 12))
    assert run.verify() == []
    assert run.begin_resume() == 12
    assert run.read()["step"].unique().to_list() == [10, 11]


def damage_flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


DAMAGE = [damage_flip, damage_cut, Path.unlink]


@pytest.mark.parametrize("spoil", DAMAGE)
@pytest.mark.parametrize(
    ("file", "back_to"),
    [
        ("checkpoints/checkpoint-6/model.safetensors", 4),
        ("checkpoints/checkpoint-6/trainer_state.json", 4),
        ("rollouts/step-000005-rank-0000.parquet", 4),
        ("sketches/step-000004-rank-0000.safetensors", 4),
        ("rollouts/step-000003-rank-0000.parquet", 2),
        ("rollouts/step-000000-rank-0000.parquet", 0),
        ("probes/step-000004-rank-0000.parquet", 2),
    ],
)
def test_damage_is_gone_after_a_resume(
    tmp_path: Path, spoil: Callable[[Path], None], file: str, back_to: int
) -> None:
    run = whole_run(tmp_path / "run", 6, 2)
    expected = contents(run)
    spoil(run.path / file)
    assert run.resume_point().step == back_to
    assert run.begin_resume() == back_to
    (entry,) = run.manifest.lineage
    assert len(entry.skipped) == len([step for step in (2, 4, 6) if step > back_to])
    assert all(line.startswith("checkpoint ") and file in line for line in entry.skipped)
    assert run.verify() == []
    train(run, 6, 2)
    finish(run)
    assert contents(run) == expected and run.verify() == []


def test_damaged_first_probes_or_checkpoint_mean_the_very_start(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "run", 2, 2)
    damage_flip(run.path / "probes" / "step-000000-rank-0000.parquet")
    assert run.begin_resume() == 0
    assert run.checkpoints() == {} and run.manifest.shards == []


def test_damage_to_what_is_dropped_anyway_does_not_matter(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "run", 6, 2)
    damage_flip(run.path / "draws" / "a" / "rollouts" / "step-000000-rank-0000.parquet")
    damage_flip(run.path / "scores" / "all.parquet")
    assert run.begin_resume() == 6
    assert run.manifest.lineage[0].skipped == [] and run.verify() == []


def test_a_step_whose_second_rank_is_missing_is_not_complete(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", recipe=small_recipe(4, 1))
    save_checkpoint(run, 0)
    for step in range(3):
        ranks = (0, 1) if step < 2 else (1,)
        run.commit([run.prepare_shard("training", step, r, rollout_frame(step, r)) for r in ranks])
        save_checkpoint(run, step + 1)
    assert run.begin_resume() == 2
    assert "step 2 lacks rank(s) [0]" in run.manifest.lineage[0].skipped[0]


def test_an_inexact_resume_is_refused_with_the_reason_and_changes_nothing(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "run")
    edit_manifest(run.path, lambda body: body["packages"].update(torch="1.0"))
    before = contents(run)
    with pytest.raises(BehaviorTraceError, match=r"trained with torch 1\.0"):
        run.begin_resume()
    assert contents(run) == before and run.verify() == []
    assert run.begin_resume(exact=False) == 6
    assert run.manifest.lineage[0].changed["torch"][0] == "1.0"
    assert run.begin_resume() == 6


def test_a_trainer_may_keep_the_checkpoint_it_goes_on_from(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    for step in range(5):
        run.write_shard("training", step, 0, rollout_frame(step), {"plain": plain_sketches(step)})
    run.add_checkpoint(4, write_checkpoint(run, 4))
    elsewhere = write_checkpoint(run, 3)  # the trainer's own: not listed, and being read
    finish(run)
    half = run.path / "rollouts" / ".step-000009-rank-0000.parquet.0123abcd.tmp"
    half.write_bytes(b"PAR1 half")
    before = run.read().filter(pl.col("step") < 3)
    run.resume_from(3)
    assert run.read().equals(before) and run.checkpoints() == {}
    assert run.draws() == [] and run.targets() == {} and not run.has("scores/all")
    assert elsewhere.is_dir() and not half.exists()
    assert not (run.path / "sketches" / "step-000003-rank-0000.safetensors").exists()
    (entry,) = run.manifest.lineage
    assert (entry.step, entry.reached, entry.checkpoint) == (3, 5, True)
    assert run.manifest.status == "training"


def test_steps_that_are_damaged_or_missing_are_not_built_upon(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    for step in range(4):
        run.write_shard("training", step, 0, rollout_frame(step))
    damage_flip(run.path / "rollouts" / "step-000002-rank-0000.parquet")
    before = run.manifest
    with pytest.raises(BehaviorTraceError, match=r"step 3: rollouts/step-000002.*checksum"):
        run.resume_from(3)
    with pytest.raises(BehaviorTraceError, match=r"step 5: rollouts/step-000002.*step 2 or before"):
        run.resume_from(5)
    assert run.manifest == before
    run.resume_from(2)
    assert run.verify() == [] and run.read()["step"].unique().to_list() == [0, 1]
    with pytest.raises(BehaviorTraceError, match="step 3: step 2 is not recorded"):
        run.resume_from(3)


def test_damage_to_a_run_without_a_recipe_names_the_way_of_python(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    run.write_shard("training", 0, 0, rollout_frame(0))
    damage_flip(run.path / "rollouts" / "step-000000-rank-0000.parquet")
    with pytest.raises(BehaviorTraceError, match=r"repair with Tracer\(\.\.\., resume=True\)"):
        run.read()
