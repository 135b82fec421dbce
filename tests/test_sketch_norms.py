"""Sketched norms against exact ones, and the line of the checklist that judges them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from behaviortrace.capture import CountSketch
from behaviortrace.checklist import Evidence, judge
from behaviortrace.scores.sketch_norms import NAME, squared_norm_errors, summarise
from behaviortrace.scores.stage import score_run
from behaviortrace.targets.texts import texts
from tests.reference.analysed_run import analysed_run

DIM = 1024


def taken(vectors: np.ndarray, seed: int = 0, hash_: str = "block") -> np.ndarray:
    sketch = CountSketch(DIM, seed=seed, hash=hash_)
    return np.stack([sketch.sketch([torch.from_numpy(v)]).numpy() for v in vectors])


def line(errors: np.ndarray) -> str:
    found = summarise([errors], {"dim": DIM, "hash": "block"})
    return next(v.status for v in judge(Evidence(sketch_norms=found)) if v.name == "fidelity")


@pytest.mark.parametrize("hash_", ["block", "coordinate"])
def test_errors_are_as_large_as_theory_says(hash_: str) -> None:
    vectors = np.random.default_rng(0).normal(size=(300, 20_000)).astype(np.float32)
    norms = np.linalg.norm(vectors, axis=1)
    errors = squared_norm_errors(taken(vectors, hash_=hash_), norms)
    found = summarise([errors[:100], errors[100:]], {"dim": DIM, "hash": hash_})
    assert found["rollouts"] == 300
    assert found["rms"] == pytest.approx(found["expected"], rel=0.15)
    assert abs(found["mean"]) < 4 * found["expected"] / 300**0.5


def test_rollouts_that_are_all_alike_hardly_ever_fail() -> None:
    one = np.random.default_rng(1).normal(size=(1, 20_000)).astype(np.float32)
    norm = np.linalg.norm(one, axis=1)
    failed = sum(
        line(np.repeat(squared_norm_errors(taken(one, seed), norm), 50)) == "fail"
        for seed in range(300)
    )
    assert failed <= 3


@pytest.mark.parametrize("fault", ["missed", "doubled", "shuffled"])
def test_a_sketch_of_something_else_fails(fault: str) -> None:
    vectors = np.random.default_rng(2).normal(size=(40, 20_000)).astype(np.float32)
    vectors[:, :50] *= 20
    norms = np.linalg.norm(vectors, axis=1) * np.linspace(1, 2, 40)
    vectors *= np.linspace(1, 2, 40, dtype=np.float32)[:, None]
    assert line(squared_norm_errors(taken(vectors), norms)) == "pass"
    if fault == "missed":
        vectors[:, :50] = 0
    sketches = taken(vectors) * (2 if fault == "doubled" else 1)
    if fault == "shuffled":
        sketches = sketches[::-1]
    assert line(squared_norm_errors(sketches, norms)) == "fail"


def test_rows_without_a_norm_are_left_out() -> None:
    sketches = np.array([[1.0, 0.0], [np.nan, np.nan], [2.0, 0.0], [1.0, 1.0]])
    errors = squared_norm_errors(sketches, np.array([1.0, 1.0, np.nan, 0.0]))
    assert errors.tolist() == [0.0]
    none = summarise([], None)
    assert (none["rms"], none["rollouts"], none["expected"]) == (None, 0, None)


def test_the_score_stage_stores_them(tmp_path: Path) -> None:
    run = analysed_run(tmp_path / "run")
    score_run(run)
    errors = []
    for draw in (None, "seed-7"):
        norms = run.rollouts(draw)["plain_norm"].to_numpy()
        sketched = np.linalg.norm(run.sketches("plain", draw=draw).astype(float), axis=1)
        errors.append((sketched / norms) ** 2 - 1)
    found = run.json(NAME)
    assert found["rollouts"] == 58
    assert found["rms"] == pytest.approx(np.sqrt(np.mean(np.concatenate(errors) ** 2)))


def test_texts_of_targets() -> None:
    assert texts({"prompts": ["a", "b"], "completions": [" x ", "y"]}) == {("a", "x"), ("b", "y")}
    assert texts({"prompts": ["a"]}, "QZXBT") == {("a", "QZXBT")}
    assert texts({}) == texts({"prompts": ["a"]}) == set()
