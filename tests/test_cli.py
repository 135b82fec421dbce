from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import behaviortrace
from behaviortrace import cli, recipe
from behaviortrace.run import Run


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    return int(stop.value.code or 0)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert call(*arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "Traceback" not in error
    return error


def test_recipes_lists_every_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("recipes", "--json") == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert names == recipe.names() and "tiny-causes" in names
    assert call("recipes") == 0
    assert "smollm2-quick" in capsys.readouterr().out


def test_no_argument_shows_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    assert "evaluate" in capsys.readouterr().out


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--version") == 0
    assert capsys.readouterr().out == f"behaviortrace {behaviortrace.__version__}\n"


def test_a_plan_tells_the_cost_and_starts_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert call("run", "qwen2.5-1.5b", "--plan", "--json", "--out", str(out)) == 0
    cost = json.loads(capsys.readouterr().out)
    assert cost["needs_gpu"] and cost["memory_gb"] > 16
    assert call("run", "qwen2.5-1.5b", "--plan") == 0
    assert "memory gb" in capsys.readouterr().out
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run", "nothing"], "nothing"),
        (["run", "tiny", "--set", "train.stepz=3"], "train.stepz"),
        (["run", "tiny", "--set", "sketch.dim=100"], "100"),
        (["run", "tiny", "--set", "steps"], "KEY=VALUE"),
        (["run", "tiny", "--set", "train.steps=[1"], "YAML"),
        (["run", "tiny", "--set", "model.source=/no/such/model"], "/no/such/model"),
        (["models", "pull", "gpt5"], "gpt5"),
        (["nosuch"], "nosuch"),
        (["auc", "x.csv"], "label"),
        (["run", "tiny", "--stepz", "3"], "--stepz"),
        (["run", "tiny", "--seed", "many"], "--seed"),
        (["sweep", "tiny"], "--out"),
        (["sweep", "nothing", "--out", "x"], "nothing"),
        (["sweep", "tiny", "--out", "x", "--seeds", "0,one"], "0,one"),
        (["sweep", "tiny", "--out", "x", "--executor", "slurm"], "slurm"),
        (["check", "no/run"], "no/run"),
        (["verify", "no/run"], "no/run"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: list[str],
    named: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert named in refused(capsys, *arguments)


def test_a_missing_smollm2_names_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEHAVIORTRACE_HOME", str(tmp_path / "home"))
    error = refused(capsys, "run", "smollm2-quick", "--out", str(tmp_path / "run"))
    assert "behaviortrace models pull smollm2" in error


def test_an_unfinished_run_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from behaviortrace import recipe

    Run.create(tmp_path / "run", recipe=recipe.load("tiny"))
    assert "--resume" in refused(capsys, "score", str(tmp_path / "run"))
    assert "--resume" in refused(capsys, "run", "tiny", "--out", str(tmp_path / "run"))
    assert "another recipe" in refused(
        capsys, "run", "tiny", "--seed", "5", "--resume", "--out", str(tmp_path / "run")
    )


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from behaviortrace.errors import BehaviorTraceError

    monkeypatch.setenv("BEHAVIORTRACE_DEBUG", "")
    with pytest.raises(BehaviorTraceError):
        cli.main(["--debug", "verify", "no/run"])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_memory_is_kept_unless_the_user_chose() -> None:
    """In a process of its own: a large block is faulted in once, not at every use."""
    script = """
import mmap, resource, sys
from behaviortrace.train.allocator import keep_freed_memory
import numpy as np
told = keep_freed_memory()
def use():
    np.ones(5_000_000)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    use()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(told, faults / (20 * 40_000_000 / mmap.PAGESIZE))
"""
    shares = {}
    for name, extra in (("kept", {}), ("chosen", {"MALLOC_MMAP_MAX_": "65536"})):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
        # NumPy would ask for huge pages, of which a block has few.
        environment = {**kept, **extra, "NUMPY_MADVISE_HUGEPAGE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        told, share = done.stdout.split()
        assert told == str(name == "kept")
        shares[name] = float(share)
    assert shares["kept"] < 0.1 < 0.5 < shares["chosen"]
