"""Other libraries in the benchmark: the same rollouts, named when missing, honest when there."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from behaviortrace import cli
from behaviortrace.bench import capture, peers
from behaviortrace.bench.timing import interleaved
from behaviortrace.bench.workload import Workload
from behaviortrace.capture.layout import Layout
from behaviortrace.capture.objective import fused_head, plain_loss, token_logprobs
from behaviortrace.cli import bench as bench_command
from tests.models import tiny
from tests.reference.autograd import row_gradient


@contextmanager
def workload(model: nn.Module) -> Iterator[Workload]:
    with fused_head(model.train(), 1.0):
        yield Workload.random(model, rollouts=4, prompt=3, completion=5, micro_batch=2)


class Norms(peers.Peer):
    """A peer that keeps the exact gradient of the last norm, one rollout after another."""

    def __init__(self, work: Workload) -> None:
        super().__init__(work)
        self.covered = {"model.norm.weight"}
        self.at = 0

    def collecting(self) -> AbstractContextManager[Any]:
        self.at = 0
        return nullcontext()

    def take(self) -> list[torch.Tensor]:
        rows = self.work.ids[self.at : self.at + 2].tolist()
        self.at += 2
        names = [name for name, _ in self.work.model.named_parameters()]
        parts = [p.numel() for p in self.work.model.parameters()]
        whole = [row_gradient(self.work.model, row[:3], row[3:]).split(parts) for row in rows]
        return [torch.stack([g[names.index("model.norm.weight")] for g in whole])]


def test_a_peers_share_and_error_are_those_of_what_it_covers() -> None:
    model = tiny("llama")
    with workload(model) as work:
        arm = Norms(work)
        arm()
    found = capture._fidelity(work, {"plain": lambda: None, "norms": arm})
    assert set(found) == {"norms"}
    ids = work.ids.tolist()
    whole = torch.stack([row_gradient(model, row[:3], row[3:]) for row in ids]).double()
    slot = next(s for s in Layout(model).slots if s.name == "model.norm.weight")
    part = whole[:, slot.index : slot.index + slot.size]
    assert found["norms"]["parameters"] == pytest.approx(slot.size / Layout(model).size)
    share = float(part.norm() ** 2 / whole.norm() ** 2)
    assert found["norms"]["energy"] == pytest.approx(share, rel=1e-4)
    upper = np.triu_indices(4, 1)
    error = _cosines(part) - _cosines(whole)
    wanted = np.sqrt(np.mean(error[upper] ** 2))
    assert found["norms"]["rms_cosine_error"] == pytest.approx(wanted, rel=1e-3)


def _cosines(rows: torch.Tensor) -> np.ndarray:
    unit = rows / rows.norm(dim=1, keepdim=True)
    return (unit @ unit.T).numpy()


def test_peers_see_the_plain_objective() -> None:
    model = tiny("qwen2")
    with workload(model) as work:
        batch, _ = work.batches()[0]
        ours = plain_loss(token_logprobs(model, batch), batch.mask).sum()
        assert float(peers._loss(model, batch)) == pytest.approx(float(ours), rel=1e-5)


def test_what_is_not_installed_is_left_out_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("dattri_llm", "bergson", "bergson.collector.gradient_collectors"):
        monkeypatch.setitem(sys.modules, name, None)
    with workload(tiny("llama")) as work:
        found, missing = peers.peers(work)
    assert not found and set(missing) == {"dattri-llm", "bergson"}
    assert all("behaviortrace[bench]" in line and "\n" not in line for line in missing.values())


def test_prepare_and_finish_are_called_around_each_run() -> None:
    calls: list[str] = []

    class Arm:
        def __call__(self) -> None:
            calls.append("run")

        def prepare(self) -> None:
            calls.append("prepare")

        def finish(self) -> None:
            calls.append("finish")

    interleaved({"arm": Arm()}, rounds=1)
    assert calls == ["prepare", "run", "finish"] * 2


def projected_energy(name: str) -> tuple[peers.Peer, np.ndarray, np.ndarray]:
    """A peer's arm after a run, its rows' squared norms, and the exact ones of what it covers."""
    model = tiny("llama-untied")
    with workload(model) as work:
        arm = peers.PEERS[name](work)
        getattr(arm, "prepare", lambda: None)()
        arm()
        getattr(arm, "finish", lambda: None)()
    ids = work.ids.tolist()
    whole = torch.stack([row_gradient(model, row[:3], row[3:]) for row in ids])
    exact = np.zeros(len(ids))
    for slot in Layout(model).slots:
        if slot.name in arm.covered:
            part = whole[:, slot.index : slot.index + slot.size].double()
            exact += (part**2).sum(1).numpy()
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(module._backward_hooks for module in model.modules())
    return arm, (arm.sketches.astype(np.float64) ** 2).sum(1), exact


@pytest.mark.parametrize(
    ("name", "package"), [("dattri-llm", "dattri_llm"), ("bergson", "bergson")]
)
def test_an_installed_peer_keeps_the_energy_of_what_it_covers(name: str, package: str) -> None:
    pytest.importorskip(package)
    arm, kept, exact = projected_energy(name)
    layers = {"dattri-llm": 2 * 7 + 5 + 2, "bergson": 2 * 7}[name]
    assert arm.sketches.shape == (4, layers * 256)
    assert ("model.norm.weight" in arm.covered) == (name == "dattri-llm")
    assert kept.sum() == pytest.approx(exact.sum(), rel=0.25)


def test_bench_prints_what_is_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "PEERS", {"norms": _unavailable})
    with pytest.raises(SystemExit) as stop:
        cli.main(
            ["bench", "capture", "--model", "tiny", "--rounds", "1", "--dim", "1024", "--json"]
        )
    assert not stop.value.code
    found = json.loads(capsys.readouterr().out)
    bench_command._print(found)
    assert "norms is left out (no such thing); pip install" in capsys.readouterr().out
    assert list(found["left_out"]) == ["norms"]
    block = found["arms"]["block"]
    assert block["parameters"] == 1.0 and block["numbers_per_rollout"] == 1024
    assert block["rms_cosine_error"] == found["rms_cosine_error"]
    assert "rms_cosine_error" not in found["arms"]["plain"]


def _unavailable(work: Workload) -> peers.Peer:
    raise ImportError("no such thing")
