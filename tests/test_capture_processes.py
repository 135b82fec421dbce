"""Two processes that train together: each writes its own shards, as one process would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from behaviortrace.run import Run
from tests.process_worker import train

LAUNCH = [
    *(sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"),  # of any device: gloo
    *("--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"),
    *("--dynamo_backend", "no", "--main_process_port", "0", "--module", "tests.process_worker"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """What one process with 2 x 4 rows a step left, and two with 2 x 2 rows each."""
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    root = Path(__file__).resolve().parent.parent
    here = {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    done = subprocess.run(
        [*LAUNCH, str(two), "2", "2"],
        cwd=root,
        env={**os.environ, **here, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    train(one, 4, 2)
    return one, two


def ordered(folder: Path) -> tuple[Run, pl.DataFrame, np.ndarray]:
    run = Run.open(folder / "run")
    frame = run.rollouts()
    order = frame.with_row_index("at").sort("step", "index")["at"].to_numpy()
    return run, frame[order], order


def test_their_rows_together_are_those_of_one_process(folders: tuple[Path, Path]) -> None:
    one, wanted, first = ordered(folders[0])
    two, found, second = ordered(folders[1])
    same = ["rollout_id", "step", "group", "index", "completion_ids", "n_tokens", "reward"]
    assert found.select(same).equals(wanted.select(same)) and found.height == 16
    for column in ("advantage", "update_weight", "grad_norm", "plain_norm", "fluency"):
        np.testing.assert_allclose(found[column], wanted[column], rtol=1e-5, atol=1e-7)
    for kind in ("plain", "update"):
        a, b = one.sketches(kind)[first], two.sketches(kind)[second]
        assert np.abs(a - b).max() < 1e-5 * np.abs(a).max()
    assert two.verify() == []
    assert {(s.step, s.rank) for s in two.manifest.store("training")} == {
        (step, rank) for step in range(2) for rank in range(2)
    }
    assert {s.rank for s in two.manifest.store("optimizer")} == {0}
    assert two.manifest.notes["capture"]["processes"] == 2


def test_they_train_and_audit_as_one_process(folders: tuple[Path, Path]) -> None:
    one, two = (torch.load(f / "parameters.pt", weights_only=True) for f in folders)
    assert max(float((a - b).abs().max()) for a, b in zip(one, two, strict=True)) < 1e-6
    frame = Run.open(folders[1] / "run").rollouts()
    assert frame["missed_energy"].null_count() == 0 and frame["missed_energy"].max() < 1e-10
    assert frame.group_by("step").agg(pl.col("step_grad_norm").n_unique())[
        "step_grad_norm"
    ].to_list() == [1, 1]


def test_a_problem_of_one_process_is_told_by_all(folders: tuple[Path, Path]) -> None:
    for rank in range(2):
        said = (folders[1] / f"said-{rank}.txt").read_text().splitlines()
        assert len(said) == 2, said
        assert "already holds a run" in said[0] and "disk of rank 1 is full" in said[1]
