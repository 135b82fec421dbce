"""Sweeps as a user runs them: whole, killed, grown, failing, and on Ray."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from filelock import FileLock

from behaviortrace import cli
from behaviortrace import recipe as recipes
from behaviortrace.processes.executors import LocalExecutor, Standing
from behaviortrace.processes.locks import held, run_lock, sweep_lock
from behaviortrace.processes.worker import guarded
from behaviortrace.run import Run
from behaviortrace.sweep import Job, Plan, Sweep, make_plan, sweep
from behaviortrace.sweep.manifest import Book, read_sweep
from behaviortrace.sweep.plan import cores
from behaviortrace.sweep.stage import merge_again
from behaviortrace.sweep.standing import unfinished
from behaviortrace.sweep.verify import verify
from tests.test_pipeline import files

SMALL: dict[str, Any] = {
    "train.steps": 4,
    "train.checkpoint_every": 2,
    "plant.cutoff_step": 4,
    "prompts.probes": 4,
    "prompts.controls": 2,
    "draw.checkpoint": 2,
    "draw.prompts": 6,
    "draw.repeats": 1,
    "draw.generations": 4,
    "sketch.dim": 1024,
    "targets.prompts": 4,
    "targets.pairs": 3,
    "evaluate.estimators": ["gas", "norm", "fluency"],
    "evaluate.resamples": 100,
}
OPTIONS = [part for k, v in SMALL.items() for part in ("--set", f"{k}={json.dumps(v)}")]


SHARE = max(1, cores() // 2)
"""Threads of a run in every test: a core fewer, and its numbers may end in other digits."""


def planned(root: Path, seeds: Sequence[int] = (0, 1), draws: int = 2, **more: Any) -> Plan:
    made = make_plan(root, recipes.load("tiny", SMALL), seeds, draws, workers=2, **more)
    return dataclasses.replace(made, cores=SHARE * made.slots)


class Here:
    """An executor that works in this very process, one run after the other."""

    def start(self, job: Job, slot: int) -> None:
        threads = torch.get_num_threads()
        try:
            guarded(job.module, job.dump())
        finally:
            torch.set_num_threads(threads)

    def ended(self, handle: None) -> str:
        return "ended"

    def close(self) -> None:
        pass


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("behaviortrace.sweep.stage.make_executor", lambda *_: Here())


def run_of(root: Path, seed: int) -> Run:
    manifest = Book(root).read()
    assert manifest is not None
    return Run.open(root / manifest.run(seed).folder)


def states(found: Sweep) -> dict[int, str]:
    return {run.seed: run.state for run in found.manifest.runs}


class KillOnce:
    """Kills the process of a seed with SIGKILL, as soon as so many steps are recorded."""

    def __init__(self, plan: Plan, seed: int, steps: int) -> None:
        job = next(job for job in plan.jobs if job.seed == seed)
        self.seed, self.steps, self.shards = seed, steps, job.path / "rollouts"
        self.killed = 0
        self.attempts = 0

    def __call__(self, standings: Sequence[Standing]) -> None:
        for standing in standings:
            if standing.key != self.seed:
                continue
            self.attempts = max(self.attempts, standing.attempts)
            recorded = len(list(self.shards.glob("*.parquet")))
            if not self.killed and standing.process and recorded >= self.steps:
                assert standing.stage != "evaluate"
                os.kill(standing.process, signal.SIGKILL)
                self.killed = standing.process


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    root = tmp_path_factory.mktemp("sweep") / "unbroken"
    command = [sys.executable, "-m", "behaviortrace", "sweep", "tiny", "--out", str(root)]
    command += ["--seeds", "0,1", "--draws", "2", "--workers", "2", "--json", *OPTIONS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "seed 0: train" in done.stderr and "seed 1: finished" in done.stderr
    return root, json.loads(done.stdout)


@pytest.fixture
def copied(unbroken: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(unbroken[0], tmp_path / "sweep"))


def test_the_runs_are_merged(unbroken: tuple[Path, dict[str, Any]]) -> None:
    root, printed = unbroken
    assert [run["state"] for run in printed["runs"]] == ["finished", "finished"]
    assert len(list((root / "runs").iterdir())) == 2
    rows = pl.read_parquet(root / "results" / "rows.parquet")
    assert rows.columns[:4] == ["level", "seed", "draw", "run"]
    for seed in (0, 1):
        run = run_of(root, seed)
        assert run.verify() == [] and run.draws() == ["seed-100", "seed-101"]
        mine = rows.filter(pl.col("seed") == seed)
        for level in ("step_level", "rollout_precision", "rollout_level"):
            kept = run.table(f"results/{level}")
            merged = mine.filter(pl.col("level") == level).select(kept.columns)
            assert merged.equals(kept)
        levels = mine.filter(pl.col("level") == "rollout_level")
        assert set(levels["draw"]) == {None, "seed-100", "seed-101"}
        tokens = mine.filter(pl.col("level") == "token_level")
        assert set(tokens["draw"]) <= {"seed-100", "seed-101"}
        assert run.has("results/seed-101/token_level")
    csv = pl.read_csv(root / "results" / "rows.csv", infer_schema_length=None)
    assert csv.shape == rows.shape and csv["auc"].equals(rows["auc"])
    emergence = pl.read_csv(root / "results" / "emergence.csv")
    assert emergence["step"].to_list() == [0, 2, 4] * 2


def test_the_threads_are_shared_and_recorded(unbroken: tuple[Path, dict[str, Any]]) -> None:
    root, printed = unbroken
    for entry in printed["runs"]:
        assert entry["threads"] == SHARE
        note = Run.open(root / entry["folder"]).manifest.notes["training_machine"]
        assert note["threads"] == SHARE


def test_replication_is_judged_over_all_runs(unbroken: tuple[Path, dict[str, Any]]) -> None:
    root, printed = unbroken
    expected = {
        (seed, row["source"]): row["auc"]
        for seed in (0, 1)
        for row in run_of(root, seed)
        .table("results/rollout_level")
        .filter(
            (pl.col("variant") == "residualized")
            & (pl.col("label") == "behavior")
            & (pl.col("embedding") == "plain_centered")
            & (pl.col("estimator") == "gas")
            & (pl.col("target") == "minimal_pair")
            & (pl.col("source") != "training")
            & pl.col("lo").is_not_null()
        )
        .iter_rows(named=True)
    }
    assert len(expected) >= 3
    assert {(r["seed"], r["draw"]): r["auc"] for r in printed["replicates"]} == expected
    lines = [v for vs in printed["verdicts"].values() for v in vs if v["name"] == "replication"]
    assert len(lines) == 2 and lines[0]["evidence"] == lines[1]["evidence"]
    assert lines[0]["evidence"]["seeds"] == [0, 1]
    assert "2 seeds" in lines[0]["sentence"] and "behaviortrace sweep" in lines[0]["sentence"]
    kept = {v["name"]: v for v in run_of(root, 1).json("results/verdicts")}["replication"]
    assert kept["sentence"] == lines[0]["sentence"]


def test_the_page_is_whole_and_links_to_the_runs(unbroken: tuple[Path, dict[str, Any]]) -> None:
    root, printed = unbroken
    page = (root / "report" / "index.html").read_text("utf-8")
    assert Path(printed["report"]).samefile(root / "report" / "index.html")
    for run in printed["runs"]:
        link = f"../{run['folder']}/report/index.html"
        assert f'href="{link}"' in page and (root / "report" / link).is_file()
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("<img") == 4  # two figures, light and dark
    assert printed["conclusion"] in page.replace("&#39;", "'")
    for said in (
        "Multiple seeds and generation draws agree",
        "seed-101",
        "Decisive AUC over all replicates",
        "Sign flips",
    ):
        assert said in page
    for replicate in printed["replicates"]:
        assert f"{replicate['auc']:.3f} [" in page


def tables(root: Path) -> dict[str, pl.DataFrame]:
    return {path.stem: pl.read_parquet(path) for path in (root / "results").glob("*.parquet")}


def test_a_copy_without_weights_gives_the_same_tables(
    unbroken: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, printed = unbroken
    copy = tmp_path / "copy"
    with pytest.raises(SystemExit) as stop:
        cli.main(["export", str(root), "--out", str(copy)])
    assert not stop.value.code
    assert not list(copy.rglob("*.safetensors")) and not list(copy.rglob(".lock"))
    before = tables(root)
    assert set(before) == {"rows", "replicates", "emergence", "pitfalls", "controls"}
    assert set(before["pitfalls"]["pitfall"]) >= {"cliff", "headroom", "fluency"}
    # Spoil what is derived, then make it again from the rows.
    for entry in printed["runs"]:
        run = Run.open(copy / entry["folder"])
        run.save_table("results/rollout_level", run.table("results/rollout_level").head(0))
        run.save_json("results/pitfalls", [])
        level = run.table("results/seed-101/token_level")
        run.save_table("results/seed-101/token_level", level.head(0))
    (copy / "results" / "rows.csv").unlink()
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        cli.main(["merge", str(copy), "--evaluate", "--json"])
    assert not stop.value.code
    again = json.loads(capsys.readouterr().out)
    for name, frame in tables(copy).items():
        assert frame.equals(before[name]), name
    assert (copy / "results" / "rows.csv").read_bytes() == (
        root / "results" / "rows.csv"
    ).read_bytes()
    for key in ("replicates", "summary", "verdicts", "conclusion"):
        assert again[key] == printed[key]


def test_merging_refuses_a_damaged_run_and_what_is_no_sweep(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = next(copied.glob("runs/*/rollouts/*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-1])
    for where, said in ((copied, "is damaged"), (tmp_path, "is not a sweep")):
        with pytest.raises(SystemExit) as stop:
            cli.main(["merge", str(where)])
        error = capsys.readouterr().err
        assert stop.value.code == 2 and said in error and error.count("\n") == 1


def test_a_rerun_does_nothing_that_is_done(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(*_: Any) -> None:
        raise AssertionError("a finished run was started")

    monkeypatch.setattr(LocalExecutor, "start", start)
    before = {path: path.stat().st_mtime_ns for path in copied.glob("runs/*/rollouts/*")}
    with pytest.raises(SystemExit) as stop:
        cli.main(["sweep", "tiny", "--out", str(copied), "--seeds", "0", "--draws", "1", *OPTIONS])
    assert not stop.value.code
    said = " ".join(capsys.readouterr().out.split())
    assert "2 of 2 runs finished" in said and "report" in said
    assert before == {path: path.stat().st_mtime_ns for path in copied.glob("runs/*/rollouts/*")}


def test_what_a_sweep_would_do_is_told_and_nothing_is_written(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*more: str) -> str:
        with pytest.raises(SystemExit) as stop:
            cli.main(["sweep", "tiny", "--out", str(copied), "--plan", *OPTIONS, *more])
        assert not stop.value.code
        return capsys.readouterr().out

    before = {path: path.stat().st_mtime_ns for path in copied.rglob("*")}
    assert "0 of 2 runs to do" in told("--seeds", "0,1", "--draws", "2")
    more = told("--seeds", "1,4", "--draws", "3")
    assert "3 of 3 runs to do" in more and "not started" in more
    assert more.count("draw seed-102 is missing") == 2 and "cost" in more
    found = json.loads(told("--seeds", "4", "--draws", "2", "--json"))
    assert [run["state"] for run in found["runs"]] == ["finished", "finished", "waiting"]
    assert before == {path: path.stat().st_mtime_ns for path in copied.rglob("*")}


def test_a_sweep_is_verified_whole(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def verified(code: int) -> str:
        with pytest.raises(SystemExit) as stop:
            cli.main(["verify", str(copied)])
        assert (stop.value.code or 0) == code
        return capsys.readouterr().out

    assert "is sound: 2 runs finished" in " ".join(verified(0).split())
    (copied / "results" / "rows.csv").write_text("")
    next(copied.glob("runs/seed-0-*/rollouts/*.parquet")).unlink()
    problems = verified(1).splitlines()
    assert len(problems) == 2
    assert problems[0].startswith("results/rows.csv has 0 bytes")
    assert "runs/seed-0-" in problems[1] and "is missing" in problems[1]
    shutil.rmtree(run_of(copied, 1).path)
    assert "is finished by sweep.json and has no manifest.json" in verified(1)


def rewrite(root: Path, seed: int, **changes: Any) -> str:
    """Change what ``sweep.json`` says of a run; its folder."""
    manifest = read_sweep(root)
    entry = manifest.run(seed).model_copy(update=changes)
    Book(root).write(manifest.with_run(entry))
    return entry.folder


def test_a_sweep_with_a_failed_run_is_incomplete_and_not_damaged(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = rewrite(copied, 1, state="failed", note="no such model")
    with pytest.raises(SystemExit) as stop:
        cli.main(["verify", str(copied)])
    assert stop.value.code == 1
    said = capsys.readouterr()
    assert said.out == f"{folder}: failed: no such model\n"
    assert " ".join(said.err.split()).endswith(
        "is incomplete: 1 of 2 runs finished, 1 failed; no damage to what is there"
    )
    next(copied.glob("runs/seed-0-*/rollouts/*.parquet")).unlink()
    with pytest.raises(SystemExit) as stop:
        cli.main(["verify", str(copied), "--json"])
    assert stop.value.code == 1
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert not told["sound"] and told["states"] == {"damaged": 1, "failed": 1}
    assert told["incomplete"] == [f"{folder}: failed: no such model"]
    assert len(told["damaged"]) == 1 and "is missing" in told["damaged"][0]
    assert told["problems"] == told["damaged"] + told["incomplete"]
    assert "0 of 2 runs finished" in captured.err and "1 problem of what is there" in captured.err


@pytest.mark.parametrize(
    ("changes", "state", "lack"),
    [
        ({"folder": "runs/seed-1-gone", "state": "waiting"}, "not started", "not started"),
        (
            {"folder": "runs/seed-1-gone", "state": "failed", "note": "lost"},
            "failed",
            "failed: lost",
        ),
        ({"state": "waiting"}, "unfinished", "finished, but not merged; the sweep's own command"),
    ],
)
def test_a_run_that_is_missing_or_was_not_merged_is_named(
    copied: Path, changes: dict[str, Any], state: str, lack: str
) -> None:
    folder = rewrite(copied, 1, **changes)
    found = verify(copied)
    assert found.states == {"finished": 1, state: 1} and not found.damaged
    assert len(found.incomplete) == 1 and found.incomplete[0].startswith(f"{folder}: {lack}")


def test_a_sweep_whose_tables_or_draws_are_missing_is_incomplete(copied: Path) -> None:
    manifest = read_sweep(copied)
    Book(copied).write(manifest.model_copy(update={"results": {}}))
    (line,) = verify(copied).incomplete
    assert line.startswith("results: not merged")
    Book(copied).write(manifest.model_copy(update={"draws": [100, 101, 102]}))
    found = verify(copied)
    assert found.states == {"unfinished": 2} and not found.damaged
    assert all("draw seed-102 is missing" in line for line in found.incomplete)


def test_a_run_is_at_work_as_long_as_its_process_and_not_as_a_file_says(copied: Path) -> None:
    run_of(copied, 0).update(status="training")
    stray = run_of(copied, 0).path / "rollouts" / "step-000009-rank-0000.parquet"
    stray.write_bytes(b"half a")
    folder = rewrite(copied, 0, state="running")
    with FileLock(sweep_lock(copied)):
        found = verify(copied)
        assert found.states == {"at work": 1, "finished": 1} and not found.damaged
        assert found.incomplete == [f"{folder}: at work, and not looked into"]
    found = verify(copied)
    assert found.states == {"interrupted": 1, "finished": 1} and not found.damaged
    assert found.incomplete == [f"{folder}: interrupted: status 'training'"]
    with FileLock(run_lock(copied, Path(folder).name)):  # a process the sweep left behind
        assert verify(copied).states == {"at work": 1, "finished": 1}
    next((copied / folder / "rollouts").glob("step-000000*")).write_bytes(b"spoilt")
    harm = verify(copied).damaged
    assert len(harm) == 1 and "step-000000" in harm[0]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1, error
    return error


def test_a_run_under_another_runs_name_is_not_merged(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One training under two seeds would count as two independent ones."""
    first, second = (run_of(copied, seed).path for seed in (0, 1))
    shutil.rmtree(second)
    shutil.copytree(first, second)
    assert "is the run of seed 0, not of seed 1" in refused(capsys, "merge", str(copied))
    with pytest.raises(SystemExit) as stop:
        cli.main(["verify", str(copied)])
    assert stop.value.code == 1 and "not of seed 1" in capsys.readouterr().out


def test_a_run_is_no_place_for_a_sweep(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(copied, 0).path
    before = files(run)
    for more in ([], ["--plan"]):
        said = refused(capsys, "sweep", "tiny", "--out", str(run), *OPTIONS, *more)
        assert "is a run, not a sweep" in said
    assert files(run) == before


def test_a_copy_asked_for_more_stays_what_it_is(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    with pytest.raises(SystemExit):
        cli.main(["export", str(copied), "--out", str(copy)])
    capsys.readouterr()
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    asked = ["sweep", "tiny", "--out", str(copy), "--seeds", "0,1", "--draws", "3", *OPTIONS]
    for more in ([], ["--plan"]):
        assert "is a copy without weights" in refused(capsys, *asked, *more)
    assert all(path.read_bytes() == content for path, content in before.items())
    run = str(run_of(copy, 0).path)
    assert "is a copy without weights" in refused(capsys, "pitfall", "slice", run)


def test_new_draws_do_not_retrain_and_damage_is_mended(copied: Path, here: None) -> None:
    first = run_of(copied, 0)
    spoilt = sorted((first.path / "draws" / "seed-101" / "rollouts").iterdir())[0]
    spoilt.write_bytes(spoilt.read_bytes()[:-1])
    assert "bytes instead of" in str(unfinished(planned(copied).jobs[0]))
    before = files(first.path)
    found = sweep(planned(copied, (0,), draws=3))
    assert states(found) == {0: "finished", 1: "finished"}
    assert found.manifest.draws == [100, 101, 102]
    for seed in (0, 1):
        run = run_of(copied, seed)
        assert run.draws() == ["seed-100", "seed-101", "seed-102"] and run.verify() == []
        assert not run.manifest.lineage  # a training gone on with would be listed
        assert run.has("results/seed-102/token_level")
        assert {v["name"]: v["status"] for v in run.json("results/verdicts")}["integrity"] == "pass"
    after = files(first.path)
    trained = [name for name in before if name.startswith(("rollouts", "sketches", "checkpoints"))]
    drawn = [name for name in before if name.startswith(("draws", "targets"))]
    assert trained and drawn and all(after[name] == before[name] for name in (*trained, *drawn))
    page = (copied / "report" / "index.html").read_text("utf-8")
    assert "seed 0: seed-102" in page  # not registered before training, and said so


def test_killed_sweep_and_killed_worker_give_the_same_run(
    unbroken: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    plan = planned(tmp_path / "killed", (0,))
    kill_sweep(plan)
    assert run_states(plan.root) == {0: "running"}  # nobody was left to say otherwise
    found = verify(plan.root)
    assert found.states == {"interrupted": 1} and not found.damaged
    (lack,) = found.incomplete
    assert lack.startswith(f"runs/{plan.jobs[0].name}: interrupted: status 'train")
    assert not merge_again(plan.root).verdicts
    assert run_states(plan.root) == {0: "waiting"}
    kill = KillOnce(plan, seed=0, steps=3)
    found = sweep(plan, watch=kill)
    assert kill.killed and kill.attempts == 2
    assert states(found) == {0: "finished"}
    run = run_of(plan.root, 0)
    assert run.verify() == [] and run.manifest.lineage
    assert files(run.path) == files(run_of(unbroken[0], 0).path)
    for name in ("rows", "replicates", "emergence"):
        kept = pl.read_parquet(unbroken[0] / "results" / f"{name}.parquet")
        mine = pl.read_parquet(plan.root / "results" / f"{name}.parquet")
        assert mine.height and mine.equals(kept.filter(pl.col("seed") == 0))
    assert not [p for p in (plan.root / "progress").iterdir() if p.suffix != ".lock"]


@pytest.mark.parametrize("executor", ["local", "ray"])
def test_a_sweep_stopped_by_sigterm_says_so_and_ends_its_workers(
    tmp_path: Path, executor: str
) -> None:
    if executor == "ray":
        pytest.importorskip("ray")
    plan = planned(tmp_path / "stopped", (0, 1), executor=executor)

    def at_work() -> None:
        found = verify(plan.root)
        assert found.states == {"at work": 1, "not started": 1} and not found.damaged

    code, said = kill_sweep(plan, signal.SIGTERM, at_work)
    assert code == 143
    line = " ".join(said.split("behaviortrace: ")[-1].split())
    assert line == "stopped by SIGTERM; the same command goes on where it stopped"
    assert "Traceback" not in said
    assert run_states(plan.root) == {0: "waiting", 1: "waiting"}
    assert run_of(plan.root, 0).manifest.status != "complete"
    manifest = Book(plan.root).read()
    assert manifest is not None and manifest.run(0).note == "interrupted"
    assert verify(plan.root).states == {"interrupted": 1, "not started": 1}


def run_states(root: Path) -> dict[int, str]:
    """What ``sweep.json`` says of every run."""
    manifest = Book(root).read()
    assert manifest is not None
    return {run.seed: run.state for run in manifest.runs}


def kill_sweep(
    plan: Plan,
    number: signal.Signals = signal.SIGKILL,
    before: Callable[[], None] = lambda: None,
) -> tuple[int, str]:
    """Start the sweep as a process, stop it in training, and wait for its worker to end.

    Returns:
        Its exit code, and what it said on stderr.
    """
    command = [sys.executable, "-m", "behaviortrace", "sweep", "tiny", "--out", str(plan.root)]
    command += ["--seeds", ",".join(map(str, plan.seeds)), *OPTIONS]
    command += ["--executor", plan.executor]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    os.sched_setaffinity(process.pid, sorted(os.sched_getaffinity(0))[: plan.cores])
    began, job = time.monotonic(), plan.jobs[0]
    while not list((job.path / "rollouts").glob("*.parquet")):
        assert process.poll() is None and time.monotonic() - began < 120
        time.sleep(0.02)
    worker = json.loads(job.aside("progress").read_text())["pid"]
    before()
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    began = time.monotonic()
    while not _ended(worker) or held(run_lock(plan.root, job.name)):
        assert time.monotonic() - began < 20, "a worker outlived its sweep"
        time.sleep(0.05)
    return process.returncode, said


def _ended(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def test_on_ray_with_a_worker_killed_the_run_is_the_same(
    unbroken: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    plan = planned(tmp_path / "ray", (1,), executor="ray")
    kill = KillOnce(plan, seed=1, steps=2)
    found = sweep(plan, watch=kill)
    assert kill.killed and kill.attempts == 2
    assert states(found) == {1: "finished"} and found.manifest.executor == "ray"
    run = run_of(plan.root, 1)
    assert run.verify() == [] and run.manifest.lineage
    assert files(run.path) == files(run_of(unbroken[0], 1).path)
    assert run.manifest.notes["training_machine"]["threads"] == SHARE


def test_a_run_that_fails_is_one_line_and_the_others_go_on(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = run_of(copied, 1).path / "manifest.json"
    broken.write_bytes(b"{}")
    with pytest.raises(SystemExit) as stop:
        cli.main(["sweep", "tiny", "--out", str(copied), "--seeds", "0", "--json", *OPTIONS])
    assert stop.value.code == 1
    captured = capsys.readouterr()
    printed = json.loads(captured.out)
    assert [run["state"] for run in printed["runs"]] == ["finished", "failed"]
    assert {r["seed"] for r in printed["replicates"]} == {0}
    error = " ".join(captured.err.split())
    assert error.count("seed 1 failed") == 1 and "manifest.json" in error
    assert "failed" in (copied / "report" / "index.html").read_text("utf-8")


def test_an_interrupted_sweep_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(Here):
        def start(self, job: Job, slot: int) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr("behaviortrace.sweep.stage.make_executor", lambda *_: Interrupted())
    out = tmp_path / "sweep"
    with pytest.raises(SystemExit) as stop:
        cli.main(["sweep", "tiny", "--out", str(out), "--seeds", "0,1", *OPTIONS])
    assert stop.value.code == 130
    assert "the same command goes on" in " ".join(capsys.readouterr().err.split())
    manifest = Book(out).read()
    assert manifest is not None
    assert (manifest.runs[0].state, manifest.runs[0].note) == ("waiting", "interrupted")


def test_what_the_user_must_mend_is_not_tried_again(
    tmp_path: Path, here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sweep"
    with pytest.raises(SystemExit) as stop:
        options = [*OPTIONS, "--set", "model.source=/no/such/model"]
        cli.main(["sweep", "tiny", "--out", str(out), "--seeds", "0", *options])
    assert stop.value.code == 1
    captured = capsys.readouterr()
    assert "Nothing can be concluded" in " ".join(captured.out.split())
    assert "/no/such/model" in " ".join(captured.err.split())
    manifest = Book(out).read()
    assert manifest is not None and manifest.run(0).attempts == 1
    assert not (out / "report").exists()


def test_another_recipe_and_another_sweep_at_work_are_refused(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*more: str) -> str:
        with pytest.raises(SystemExit) as stop:
            cli.main(["sweep", "tiny", "--out", str(copied), *OPTIONS, *more])
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    assert "train.learning_rate" in refused("--set", "train.learning_rate=0.5")
    with FileLock(copied / ".lock"):
        assert "another sweep" in refused()
