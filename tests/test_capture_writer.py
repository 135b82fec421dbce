"""Shards written beside training: listed in time, never silently missing."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import polars as pl
import pytest
import torch
from transformers import TrainerCallback

from behaviortrace.capture import CountSketch, Tracer
from behaviortrace.capture.ranks import Ranks, Shard
from behaviortrace.capture.sinks import SketchSink
from behaviortrace.capture.writer import ShardWriter
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import Run
from tests.trainers import grpo
from tests.watched import SKETCH


def shard(step: int) -> Shard:
    frame = pl.DataFrame({"rollout_id": [f"{step}-0", f"{step}-1"], "step": [step, step]})
    return "training", frame, {"plain": np.full((2, 8), step, np.float32)}


def one_process() -> Ranks:
    accelerator = SimpleNamespace(num_processes=1, process_index=0, is_main_process=True)
    return Ranks(accelerator)


def listed(run: Run) -> list[int]:
    return [entry.step for entry in run.manifest.store("training")]


def test_a_step_is_written_by_a_thread_and_listed_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, threads = Run.create(tmp_path / "run"), []
    inner = run.prepare_shard

    def prepare(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return inner(*arguments)

    monkeypatch.setattr(run, "prepare_shard", prepare)
    with ShardWriter(run, one_process()) as writer:
        writer.submit(0, [shard(0)])
        assert listed(run) == []
        writer.submit(1, [shard(1)])
        assert listed(run) == [0]
        writer.settle()
        assert listed(run) == [0, 1]
        writer.submit(2, [shard(2)])
    assert listed(run) == [0, 1, 2]
    assert threading.main_thread() not in threads
    assert run.verify() == []


def test_what_cannot_be_written_stops_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path / "run")

    def full(*arguments: Any) -> Any:
        raise BehaviorTraceError("no room on the disk; free some")

    with pytest.raises(BehaviorTraceError, match="no room"), ShardWriter(run, one_process()) as w:
        w.submit(0, [shard(0)])
        w.settle()
        monkeypatch.setattr(run, "prepare_shard", full)
        w.submit(1, [shard(1)])
        w.submit(2, [shard(2)])
    assert listed(run) == [0]


def test_an_interrupted_training_keeps_its_last_step(tmp_path: Path) -> None:
    class Stop(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                raise KeyboardInterrupt

    trainer = grpo(tmp_path / "out")
    trainer.add_callback(Stop())
    with pytest.raises(KeyboardInterrupt), Tracer(tmp_path / "run", SKETCH).attach(trainer):
        trainer.train()
    run = Run.open(tmp_path / "run")
    assert run.rollouts()["step"].unique().to_list() == [0]
    assert run.verify() == []


def test_a_checkpoint_comes_after_the_shards_it_needs(tmp_path: Path) -> None:
    run, seen = Run.create(tmp_path / "run"), []

    class Look(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append((state.global_step, listed(run)))

    trainer = grpo(tmp_path / "out", save_strategy="steps", save_steps=1)
    trainer.add_callback(Look())  # before the tracer's, so it is called first
    with Tracer(run, SKETCH).attach(trainer):
        trainer.train()
    assert seen == [(1, [0]), (2, [0, 1])]


def test_kernels_use_no_more_threads_than_torch() -> None:
    kept = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        SketchSink(CountSketch(64)).begin(1, torch.device("cpu"))
        assert numba.get_num_threads() == 1
    finally:
        torch.set_num_threads(kept)
    SketchSink(CountSketch(64)).begin(1, torch.device("cpu"))
    assert numba.get_num_threads() == min(kept, numba.config.NUMBA_NUM_THREADS)
