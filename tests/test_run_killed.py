"""A run may be killed at any moment; a resume gives what an unbroken run gives."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from behaviortrace.run import Run, atomic
from tests.reference.run_builder import (
    contents,
    finish,
    rollout_frame,
    target,
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


STEPS, EVERY = 3, 2


class Killed(BaseException):
    """Not an Exception: nothing may clean up after a killed process."""


class Countdown:
    """Kills at the n-th disk operation; later ones must not happen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n: int | None) -> None:
        self.seen = 0
        self._n = n
        monkeypatch.setattr(atomic.os, "fsync", self._wrap(os.fsync))
        monkeypatch.setattr(atomic.os, "replace", self._wrap(os.replace))
        monkeypatch.setattr(atomic.shutil, "rmtree", self._wrap(shutil.rmtree))
        monkeypatch.setattr(Path, "unlink", self._wrap(Path.unlink))

    def _wrap(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.seen += 1
            if self._n is not None and self.seen >= self._n:
                raise Killed
            return real(*args, **kwargs)

        return counted


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return contents(whole_run(tmp_path_factory.mktemp("unbroken") / "run", STEPS, EVERY))


def operations(tmp_path: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        countdown = Countdown(patch, None)
        whole_run(tmp_path / "counted", STEPS, EVERY)
        return countdown.seen


def killed_run(path: Path, at: int) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        Countdown(patch, at)
        whole_run(path, STEPS, EVERY)


def test_killed_at_any_write_a_resume_equals_an_unbroken_run(
    tmp_path: Path, unbroken: dict[str, str]
) -> None:
    total = operations(tmp_path)
    assert total > 50
    for at in range(1, total + 1):
        path = tmp_path / f"run-{at}"
        killed_run(path, at)
        if not (path / "manifest.json").exists():
            whole_run(path, STEPS, EVERY)
            assert contents(Run.open(path)) == unbroken
            continue
        run = Run.open(path)
        listed = run.manifest
        complete = max((c.step for c in listed.checkpoints), default=0)
        assert run.begin_resume() == complete, at
        assert all(shard.step < complete for shard in run.manifest.store("training"))
        assert {s.step for s in run.manifest.store("training")} == set(range(complete))
        assert run.verify() == [], at
        train(run, STEPS, EVERY)
        finish(run)
        assert run.verify() == [], at
        assert contents(run) == unbroken, at
        shutil.rmtree(path)


def test_killed_while_resuming_the_next_resume_still_works(
    tmp_path: Path, unbroken: dict[str, str]
) -> None:
    for at in range(1, 100):
        path = tmp_path / f"run-{at}"
        run = whole_run(path, STEPS, EVERY)
        run.write_shard("training", STEPS, 0, rollout_frame(STEPS))
        write_checkpoint(run, STEPS + 1)
        with pytest.MonkeyPatch.context() as patch:
            Countdown(patch, at)
            try:
                run.begin_resume()
                finished = True
            except Killed:
                finished = False
        run = Run.open(path)
        assert run.begin_resume() == STEPS
        assert run.verify() == []
        finish(run)
        assert contents(run) == unbroken
        if finished:
            return
    pytest.fail("a resume never took fewer than 100 disk operations")


def test_rewriting_an_output_never_lists_a_wrong_checksum(tmp_path: Path) -> None:
    for at in range(1, 40):
        run = whole_run(tmp_path / f"run-{at}", 2, 2)
        with pytest.MonkeyPatch.context() as patch:
            Countdown(patch, at)
            try:
                run.save_json("results/summary", {"n": 2})
                run.save_target(target(0))
                finished = True
            except Killed:
                finished = False
        run = Run.open(run.path)
        run.clean()
        assert run.verify() == [], at
        if run.has("results/summary"):
            assert run.json("results/summary") in ({"n": 1}, {"n": 2})
        if finished:
            return
    pytest.fail("two outputs never took fewer than 40 disk operations")


WRITER = """
import sys
from pathlib import Path
from tests.reference.run_builder import small_recipe, train
from behaviortrace.run import Run
run = Run.create(Path(sys.argv[1]), recipe=small_recipe(100000, 3))
print("ready", flush=True)
train(run, 100000, 3)
"""


@pytest.mark.parametrize("delay", [0.05, 0.13, 0.31])
def test_a_process_killed_with_sigkill_can_be_resumed(tmp_path: Path, delay: float) -> None:
    path = tmp_path / "run"
    root = Path(__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], cwd=root, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    run = Run.open(path)
    assert all("not in the manifest" in p or "unfinished" in p for p in run.verify())
    step = run.begin_resume()
    assert step % 3 == 0 and len(run.manifest.store("training")) == step
    assert run.verify() == []
    train(run, step + 4, 3)
    run.update(status="training")
    assert run.verify() == []
