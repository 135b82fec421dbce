"""The whole pipeline as a user runs it, and what a killed process leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from behaviortrace import cli
from behaviortrace.run import Run

SMALL = [
    "train.steps=6",
    "train.checkpoint_every=2",
    "plant.cutoff_step=4",
    "prompts.probes=6",
    "prompts.controls=4",
    "draw.checkpoint=4",
    "draw.prompts=6",
    "draw.generations=4",
    "draw.batch=12",
    "sketch.dim=1024",
    "evaluate.resamples=200",
]


def start(out: Path, *more: str) -> subprocess.Popen[str]:
    settings = [part for setting in SMALL for part in ("--set", setting)]
    command = [sys.executable, "-m", "behaviortrace", "run", "tiny", "--out", str(out)]
    return subprocess.Popen(
        [*command, *settings, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def files(out: Path) -> dict[str, str]:
    """Checksum of everything that must not depend on where a process was killed.

    Trainer states hold wall-clock times; the report names the resumes.
    """
    listed = {entry.file: entry.sha256 for entry in Run.open(out).manifest.files()}
    times = ("trainer_state.json", "training_args.bin", "README.md")
    return {
        name: checksum
        for name, checksum in listed.items()
        if not name.endswith(times) and "verdicts" not in name
    }


def kill_when(
    process: subprocess.Popen[str],
    condition: Callable[[], bool],
    limit: float = 120.0,
    number: signal.Signals = signal.SIGKILL,
) -> str:
    """Send a signal as soon as the condition holds; what the process then said on stderr."""
    began = time.monotonic()
    while not condition():
        if process.poll() is not None:
            raise AssertionError(f"ended before the kill: {process.communicate()[1][-2000:]}")
        assert time.monotonic() - began < limit
        time.sleep(0.02)
    process.send_signal(number)
    return process.communicate(timeout=60)[1]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("pipeline") / "unbroken"
    process = start(out, "--json")
    printed, error = process.communicate(timeout=280)
    assert process.returncode == 0, error[-2000:]
    return out, json.loads(printed)


def test_the_whole_pipeline(unbroken: tuple[Path, dict[str, Any]]) -> None:
    out, result = unbroken
    run = Run.open(out)
    assert run.verify() == []
    assert run.manifest.status == "complete"
    frame, sketches = run.rollouts(), run.sketches()
    assert frame.height == 96 and sketches.shape == (96, 1024)
    assert sorted(run.checkpoints()) == [0, 2, 4, 6]
    assert frame["missed_energy"].drop_nulls().max() < 1e-8
    assert frame["boosted"].sum() > 0
    assert (frame["boosted"] <= (frame["eligible"] & frame["behavior"])).all()
    reward = frame["base_reward"] + 8.0 * frame["boosted"].cast(float)
    np.testing.assert_allclose(frame["reward"], reward, atol=1e-6)
    names = {v["name"] for v in result["verdicts"]}
    assert len(names) == 14
    page = (out / "report" / "index.html").read_text("utf-8")
    assert str(result["conclusion"]).split(";")[0] in page.replace("&#39;", "'")


def test_killed_anywhere_and_resumed_gives_the_same_run(
    unbroken: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "killed"

    def shards(n: int) -> bool:
        return len(list((out / "rollouts").glob("*.parquet"))) >= n

    kill_when(start(out), lambda: (out / "checkpoints").exists())
    stopped = start(out, "--resume")
    said = kill_when(stopped, lambda: shards(1), number=signal.SIGTERM)
    assert stopped.returncode == 143
    last_line = " ".join(said.split("behaviortrace: ")[-1].split())
    assert last_line.startswith("stopped by SIGTERM; the same command with --resume goes on")
    assert "Traceback" not in said
    kill_when(start(out, "--resume"), lambda: shards(3))
    kill_when(start(out, "--resume"), lambda: shards(6))
    kill_when(start(out, "--resume"), lambda: any((out / "draws").glob("*/rollouts/*.parquet")))
    last = start(out, "--resume")
    error = last.communicate(timeout=280)[1]
    assert last.returncode == 0, error[-2000:]
    assert Run.open(out).verify() == []
    assert files(out) == files(unbroken[0])
    assert Run.open(out).manifest.lineage


@pytest.fixture
def copied(unbroken: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(unbroken[0], tmp_path / "run"))


def stage(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    assert not stop.value.code
    return capsys.readouterr().out


def test_each_stage_can_be_rerun_alone(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = copied
    before = files(out)
    for name in ("draw", "target", "score"):
        stage(capsys, name, str(out))
    assert files(out) == before
    evaluated = json.loads(stage(capsys, "evaluate", str(out), "--json"))
    assert evaluated["summary"]["n_rollouts"] == 96
    assert {"step_level", "rollout_level"} <= set(evaluated)
    assert "n_rollouts" in stage(capsys, "evaluate", str(out))
    checked = json.loads(stage(capsys, "check", str(out), "--json"))
    assert len(checked["verdicts"]) == 14
    assert "verdict" in stage(capsys, "check", str(out))
    assert stage(capsys, "report", str(out)).strip().endswith("index.html")
    assert json.loads(stage(capsys, "verify", str(out), "--json"))["sound"]
    assert "is sound" in stage(capsys, "verify", str(out))
    assert files(out) == before


def test_damage_is_found_and_exits_1(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = copied
    shard = sorted((out / "rollouts").glob("*.parquet"))[2]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(bytes(content))
    with pytest.raises(SystemExit) as stop:
        cli.main(["verify", str(out)])
    assert stop.value.code == 1 and shard.name in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        cli.main(["score", str(out)])
    assert stop.value.code == 2 and shard.name in capsys.readouterr().err
