"""A copy without weights and sketches gives the same tables, verdicts and page as its run."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

import polars as pl
import pytest

from behaviortrace import cli, pipeline
from behaviortrace.checklist.stage import check
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.records import PROBE_SCHEMA, conform
from behaviortrace.report.stage import report
from behaviortrace.run import Run
from behaviortrace.scores.stage import score_run
from tests.reference.planted_run import DRAW, STEPS, planted_run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = planted_run(tmp_path_factory.mktemp("whole") / "run", signal=2.0, gap=0.5)
    for step in (0, 4):
        kinds = ["probe", "probe", "control"]
        answers = {"step": [step] * 3, "kind": kinds, "behavior": [True, step > 0, False]}
        run.write_shard("probes", step, 0, conform(pl.DataFrame(answers), PROBE_SCHEMA))
    folder = run.path / "checkpoints" / "checkpoint-4"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights" * 1000)
    run.add_checkpoint(4, folder)
    pipeline.evaluate(run)
    run.update(status="complete")
    check(run)
    report(run)
    return run


@pytest.fixture
def copy(whole: Run, tmp_path: Path) -> Run:
    return whole.export(tmp_path / "copy")


def judged(run: Run) -> dict[str, object]:
    manifest = run.manifest
    tables = {name: run.table(name).fill_nan(None).to_dicts() for name in manifest.tables}
    return tables | {name: run.json(name) for name in manifest.jsons}


def page(run: Run) -> str:
    """The report but for the run's name and what it says of the manifest."""
    text = (run.path / "report" / "index.html").read_text("utf-8")
    text = re.sub(r"<div><dt>(Left out of this copy|Manifest digest)</dt>.*?</div>\n", "", text)
    return re.sub(r"<(title|h1)>.*?</\1>", "", text)


def test_it_holds_the_rows_and_no_weights(whole: Run, copy: Run) -> None:
    assert copy.verify() == []
    assert not list(copy.path.rglob("*.safetensors"))
    assert len(list((copy.path / "rollouts").iterdir())) == 1
    assert copy.rollouts().equals(whole.rollouts())
    assert copy.rollouts(DRAW).equals(whole.rollouts(DRAW))
    assert copy.read("probes").equals(whole.read("probes"))
    kept = {k: v for k, v in whole.manifest.counts.items() if k != "checkpoints"}
    assert copy.manifest.counts == {**kept, "checkpoints": 0} and kept["steps"] == STEPS
    assert copy.manifest.preregistration == whole.manifest.preregistration


def test_what_was_left_out_is_named_with_its_hash(whole: Run, copy: Run) -> None:
    left = {entry.file: entry.sha256 for entry in copy.manifest.left_out}
    hashes = {entry.file: entry.sha256 for entry in whole.manifest.files()}
    assert left == {file: hashes[file] for file in hashes if file.endswith(".safetensors")}
    assert "checkpoints/checkpoint-4/model.safetensors" in left
    text = (report(copy)).read_text("utf-8")
    assert f"{len(left)} files of weights and sketches" in text


def test_the_copy_is_judged_as_the_run_was(whole: Run, copy: Run) -> None:
    before, shown = judged(whole), page(whole)
    assert page(copy) == shown
    copy.save_json("results/summary", {})
    copy.save_table("results/rollout_level", copy.table("results/rollout_level").head(0))
    pipeline.evaluate(copy)
    check(copy)
    report(copy)
    assert judged(copy) == before
    assert page(copy) == shown


def test_a_copy_of_a_copy_is_the_same(copy: Run, tmp_path: Path) -> None:
    again = copy.export(tmp_path / "again")
    assert again.manifest.left_out == copy.manifest.left_out
    assert judged(again) == judged(copy)


def test_what_needs_the_sketches_is_refused(copy: Run) -> None:
    def resume(run: Run) -> None:
        run.begin_resume()

    def sketches(run: Run) -> None:
        run.sketches("plain")

    for ask in (resume, sketches, score_run):
        with pytest.raises(BehaviorTraceError, match="a copy without weights and sketches"):
            ask(copy)
    assert copy.verify() == []


def test_a_run_that_is_not_evaluated_is_refused(whole: Run, tmp_path: Path) -> None:
    early = Run(shutil.copytree(whole.path, tmp_path / "early"))
    early.update(status="scored")
    with pytest.raises(BehaviorTraceError, match=r"not evaluated.*--resume"):
        early.export(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_damaged_run_leaves_nothing_half_written(whole: Run, tmp_path: Path) -> None:
    broken = Run(shutil.copytree(whole.path, tmp_path / "broken"))
    table = broken.path / "scores" / "all.parquet"
    table.write_bytes(table.read_bytes()[:-1])
    with pytest.raises(BehaviorTraceError, match=r"all\.parquet has"):
        broken.export(tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


def test_a_full_disk_leaves_nothing_half_written(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def full(source: str | Path, target: str | Path) -> None:
        if Path(target).name == "all.parquet":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(BehaviorTraceError, match="no space left"):
        whole.export(tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []


def test_the_command(whole: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for expected in (0, 2):
        with pytest.raises(SystemExit) as stop:
            cli.main(["export", str(whole.path), "--out", str(tmp_path / "copy")])
        assert stop.value.code == expected
    said = capsys.readouterr()
    assert "MB" in said.out and said.err.count("\n") == 1 and "is not empty" in said.err
