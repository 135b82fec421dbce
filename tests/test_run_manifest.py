"""The manifest is the work of anyone: what it says is checked before it is believed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import FileEntry, Run
from behaviortrace.run.manifest import digest_holds, parse, seal
from tests.reference.run_builder import edit_manifest, rollout_frame, small_recipe, whole_run


@pytest.fixture(autouse=True, scope="module")
def _quick_disk() -> Iterator[None]:
    """These tests stop a process, not the power, so nothing need reach the platter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


BAD_PATHS = [
    "/etc/passwd",
    "../outside",
    "rollouts/../../outside",
    "a//b",
    "./a",
    "",
    ".",
    "C:/x",
    "a\\b",
    "a\0b",
]


@pytest.mark.parametrize("path", BAD_PATHS)
def test_paths_that_could_leave_the_run_are_refused(path: str) -> None:
    with pytest.raises(ValidationError):
        FileEntry(file=path, bytes=0, sha256="0" * 64)


@given(path=st.text(alphabet="./\\:ab\0", max_size=12))
def test_an_accepted_path_stays_inside(path: str) -> None:
    try:
        entry = FileEntry(file=path, bytes=0, sha256="0" * 64)
    except ValidationError:
        return
    root = Path("/root/of/run")
    inside = Path(*[p for p in (root / entry.file).parts if p != "."])
    assert ".." not in inside.parts and inside.is_relative_to(root) and inside != root


def set_path(body: dict[str, Any], path: str) -> None:
    body["shards"][0]["table"]["file"] = path


@pytest.mark.parametrize("path", ["/etc/passwd", "../../x"])
def test_a_manifest_with_such_a_path_does_not_open(tmp_path: Path, path: str) -> None:
    run = whole_run(tmp_path / "run", 2, 2)
    edit_manifest(run.path, lambda body: set_path(body, path))
    with pytest.raises(BehaviorTraceError, match=r"shards\.0\.table\.file.*not a plain path"):
        Run.open(run.path)


def test_a_checkpoint_folder_outside_checkpoints_is_refused(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "run", 2, 2)
    edit_manifest(run.path, lambda body: body["checkpoints"][0].update(folder="rollouts/x"))
    with pytest.raises(BehaviorTraceError, match="not a folder of checkpoints/"):
        Run.open(run.path)


def test_a_link_out_of_the_run_is_not_read(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    run.write_shard("training", 0, 0, rollout_frame(0))
    inside = run.path / run.manifest.shards[0].table.file
    outside = tmp_path / "outside.parquet"
    inside.rename(outside)
    inside.symlink_to(outside)
    with pytest.raises(BehaviorTraceError, match="symbolic link"):
        run.read()
    assert any("symbolic link" in problem for problem in run.verify())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "not a manifest"),
        (b"{}", "damaged at 'created'"),
        (b'{"schema_version": 99}', "schema version 99, newer than the 1"),
        (b'{"created": "x", "surprise": 1}', "damaged at 'surprise'"),
        (b'{"created": "x", "status": "odd"}', "damaged at 'status'"),
        (b'{"created": "x", "counts": {"a": -1}}', r"damaged at 'counts\.a'"),
    ],
)
def test_what_is_not_a_manifest_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(BehaviorTraceError, match=message) as caught:
        Run.open(tmp_path)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_what_is_not_a_run_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "file"):
        with pytest.raises(BehaviorTraceError, match="is not a run"):
            Run.open(path)


def test_a_new_run_refuses_an_old_one(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", meta={"which": "first"})
    with pytest.raises(BehaviorTraceError, match="--resume, or choose another --out"):
        Run.create(tmp_path / "run")
    assert run.manifest.meta == {"which": "first"}


def test_a_new_run_refuses_parts_of_another_and_lets_other_files_be(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "train.log").write_text("x")
    Run.create(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "old.parquet").write_text("x")
    with pytest.raises(BehaviorTraceError, match="rollouts holds files"):
        Run.create(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(BehaviorTraceError, match="cannot write"):
        Run.create(tmp_path / "file")


def test_updates_merge_or_replace_and_refuse_the_rest(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", recipe=small_recipe(), meta={"a": 1})
    run.update(status="trained", meta={"b": 2}, notes={"x": {"y": float("nan")}})
    run.update(notes={"z": 1}, sketch={"dim": 64})
    manifest = Run.open(run.path).manifest
    assert manifest.meta == {"a": 1, "b": 2}
    assert manifest.notes == {"x": {"y": None}, "z": 1}
    assert manifest.sketch == {"dim": 64} and manifest.status == "trained"
    with pytest.raises(BehaviorTraceError, match="field 'shards' cannot be set"):
        run.update(shards=[])
    with pytest.raises(BehaviorTraceError, match="field 'status'"):
        run.update(status="odd")
    assert run.manifest == manifest


def test_a_recipe_that_no_longer_validates_is_one_line(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", recipe=small_recipe())
    edit_manifest(run.path, lambda body: body["recipe"].update(odd=1))
    with pytest.raises(BehaviorTraceError, match="unknown key 'odd'"):
        _ = Run.open(run.path).recipe
    assert any("unknown key 'odd'" in problem for problem in run.verify())


def test_sealing_and_parsing_give_the_same_manifest(tmp_path: Path) -> None:
    manifest = whole_run(tmp_path / "run").manifest
    sealed, content = seal(manifest)
    assert parse(content, tmp_path) == manifest == sealed
    assert digest_holds(content)
    assert not digest_holds(content.replace(b"complete", b"scored", 1))
