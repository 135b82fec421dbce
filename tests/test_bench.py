from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

from behaviortrace import cli
from behaviortrace.bench.arms import OneAtATime, Traced
from behaviortrace.bench.timing import interleaved, peak_memory
from behaviortrace.bench.workload import Workload
from behaviortrace.capture import CountSketch
from behaviortrace.capture.objective import fused_head
from tests.models import tiny


def test_the_arms_sketch_the_same_gradients() -> None:
    model = tiny("llama").train()
    sketch = CountSketch(512, hash="coordinate")
    with fused_head(model, 1.0):
        work = Workload.random(model, rollouts=4, prompt=3, completion=5, micro_batch=2)
        ours, published = Traced(work, sketch), OneAtATime(work, sketch, 4)
        ours()
        published()
    np.testing.assert_allclose(
        ours.sketches, published.sketches, atol=1e-5 * np.abs(ours.sketches).max()
    )


def test_arms_take_turns() -> None:
    ran: list[str] = []
    seconds = interleaved({"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, rounds=2)
    assert ran == ["a", "b"] * 3
    assert [len(s) for s in seconds.values()] == [2, 2]


def test_peak_memory_sees_an_allocation() -> None:
    peak = peak_memory()
    held = np.ones(int(peak // 8) + 30_000_000)
    assert peak_memory() - peak > 1e8
    assert held.sum() == held.size


def test_peak_memory_is_not_that_of_the_parent() -> None:
    held = np.ones(60_000_000)
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh) as pool:
        child = pool.submit(peak_memory).result()
    assert held.nbytes < peak_memory() and child < peak_memory() - held.nbytes / 2


def test_bench_capture_on_the_tiny_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(
            ["bench", "capture", "--model", "tiny", "--rounds", "1", "--dim", "4096", "--json"]
        )
    assert not stop.value.code
    found = json.loads(capsys.readouterr().out)
    assert found["energy_covered"] == pytest.approx(1.0, abs=1e-6)
    assert 0 < found["rms_cosine_error"] < 3 * found["rms_cosine_theory"]
    assert {"plain", "block", "coordinate", "kronecker", "published"} <= set(found["arms"])
    ratios = ("forward_backward_ratio", "step_ratio", "lora_ratio", "token_score_passes")
    for key in (*ratios, "kernel_over_read"):
        assert found[key] > 0
    added = found["arms"]["block"]["median"] - found["arms"]["plain"]["median"]
    published = found["arms"]["published"]
    assert published["ratio"] == pytest.approx(
        published["median"] * 16 / published["rollouts"] / found["arms"]["plain"]["median"]
    )
    if added > 0:
        whole = (published["ratio"] - 1) * found["arms"]["plain"]["median"]
        assert found["baseline_added_ratio"] == pytest.approx(whole / added)
    else:
        assert found["baseline_added_ratio"] is None
