"""A traced trainer whose every micro-batch is compared with plain autograd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import trl.trainer.utils as trl_utils
from trl.models.utils import disable_gradient_checkpointing

import behaviortrace.capture.recorder as recorder_module
import behaviortrace.capture.tracer as tracer_module
from behaviortrace.capture import CountSketch, Tracer
from behaviortrace.capture.sinks import ExactSink, SketchSink
from behaviortrace.run import Run

SKETCH = CountSketch(1024, seed=1)
ERRORS = ("sums", "change", "rows", "alone", "sketches", "norms")


class BothSink(SketchSink):
    """Sketches, and keeps whole rows beside."""

    exact: ExactSink

    def _begin(self, on: torch.device) -> None:
        super()._begin(on)
        self.exact.begin(self.rows, on)

    def _take(self, slot: Any, flat: torch.Tensor, start: int) -> None:
        super()._take(slot, flat, start)
        self.exact._take(slot, flat, start)

    def _take_positions(self, slot: Any, ids: torch.Tensor, gradients: torch.Tensor) -> None:
        super()._take_positions(slot, ids, gradients)
        self.exact._take_positions(slot, ids, gradients)


class Watched:
    """Runs a traced trainer; after each micro-batch compares its rows with plain autograd.

    A row's gradient is what the real loss sends through that row's log-probabilities and entropies,
    pulled back through the model by ``torch.autograd.grad`` with nothing captured. All errors are
    the worst of the run and relative.

    Attributes:
        sums: rows' sum against what the backward added to ``param.grad``, parameter by parameter.
        change: what the backward added against plain autograd, parameter by parameter.
        rows: a row against its own gradient by plain autograd.
        alone: a row against the gradient of the loss with every other advantage zero.
        sketches: a row's sketch against the sketch of the row.
        norms: a row's norm against the row's.
        checked: micro-batches compared.
    """

    def __init__(self, trainer: Any, monkeypatch: pytest.MonkeyPatch, *, alone: bool = False):
        self.trainer, self.monkeypatch, self.with_alone = trainer, monkeypatch, alone
        self.sums = self.change = self.rows = self.alone = self.sketches = self.norms = 0.0
        self.checked = 0

    def run(self, folder: Path, **options: Any) -> Watched:
        """Train with a tracer attached; ``options`` are the tracer's."""
        with self.monkeypatch.context() as patch:
            self._spy(patch)
            with Tracer(folder, SKETCH, **options).attach(self.trainer):
                self.trainer.train()
        self.run_dir = Run.open(folder)
        return self

    def exact(self, tolerance: float) -> None:
        """Everything within a tolerance; in mixed precision, ask of each what it can hold."""
        assert self.checked
        found = {n: getattr(self, n) for n in ERRORS if n != "alone" or self.with_alone}
        assert max(found.values()) < tolerance, found

    def _spy(self, patch: pytest.MonkeyPatch) -> None:
        loss_name = "_compute_loss" if hasattr(self.trainer, "_compute_loss") else "compute_loss"
        stock = getattr(self.trainer, loss_name)
        begin, note = recorder_module.Recorder.begin, recorder_module.Recorder.take_rows
        watched = self

        def loss(model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
            watched.stock_loss = lambda model, inputs: stock(model, inputs, *args, **named)
            return stock(model, inputs, *args, **named)

        def new_sink(sketch: CountSketch) -> BothSink:
            watched.sink = BothSink(sketch)
            return watched.sink

        def watched_begin(recorder: Any, inputs: dict[str, Any], *args: Any, **named: Any) -> None:
            watched.sink.exact = ExactSink(recorder.engine.layout)
            watched.inputs = {k: v for k, v in inputs.items() if k != "behaviortrace_row"}
            watched.before = watched.gradients()
            watched.draws = torch.get_rng_state()
            begin(recorder, inputs, *args, **named)

        def watched_note(recorder: Any, *args: Any, **named: Any) -> Any:
            watched.compare(recorder)
            return note(recorder, *args, **named)

        patch.setattr(self.trainer, loss_name, loss)
        patch.setattr(tracer_module, "sink_for", new_sink)
        patch.setattr(recorder_module.Recorder, "begin", watched_begin)
        patch.setattr(recorder_module.Recorder, "take_rows", watched_note)

    def parameters(self) -> list[torch.nn.Parameter]:
        return [p for p in self.trainer.model.parameters() if p.requires_grad]

    def flat(self, tensors: Any) -> torch.Tensor:
        pairs = zip(tensors, self.parameters(), strict=True)
        return torch.cat(
            [(torch.zeros_like(p) if t is None else t).float().reshape(-1) for t, p in pairs]
        )

    def gradients(self) -> torch.Tensor:
        return self.flat(None if p.grad is None else p.grad.clone() for p in self.parameters())

    def autograd(self, inputs: dict[str, Any], rows: int = 0) -> list[torch.Tensor]:
        """The stock loss's own gradient, then that of each row's share of it."""
        outputs: list[torch.Tensor] = []
        with torch.random.fork_rng([]), self._stock(outputs):
            torch.set_rng_state(self.draws)  # the same dropout as in the real forward
            loss = self.stock_loss(self.trainer.model, inputs) * self._scale()
            parameters = self.parameters()
            more = {"allow_unused": True, "retain_graph": True}
            found = [self.flat(torch.autograd.grad(loss, parameters, **more))]
            if not rows:
                return found
            used = [o for o in outputs if o is not None]
            upstream = torch.autograd.grad(loss, used, **more)
            pairs = [(o, g) for o, g in zip(used, upstream, strict=True) if g is not None]
            owner = self.owner(len(used[0]), rows)
            for i in range(rows):
                shares = [g * (owner == i) for _, g in pairs]
                outs = [o for o, _ in pairs]
                found.append(self.flat(torch.autograd.grad(outs, parameters, shares, **more)))
        return found

    def owner(self, positions: int, rows: int) -> torch.Tensor:
        """The row of each position of the head; on CUDA those without a label are left out."""
        if trl_utils._use_triton(torch.device("cpu")):
            lengths = self.inputs["completion_mask"].sum(1)
            return torch.arange(rows).repeat_interleave(lengths)
        return torch.arange(positions) // (positions // rows)

    def _scale(self) -> float:
        """What the stock training step itself multiplies the loss by."""
        if type(self.trainer).__name__ == "RLOOTrainer":
            return 1 / self.trainer.current_gradient_accumulation_steps
        return 1.0

    @contextmanager
    def _stock(self, outputs: list[torch.Tensor]) -> Iterator[None]:
        """TRL's own head, its outputs kept; nothing captured, checkpointed or logged."""
        trainer, engine = self.trainer, self.engine
        kept = {k: {n: list(v) for n, v in m.items()} for k, m in trainer._metrics.items()}
        mine, engine.armed = trl_utils._ChunkedLogProbFunction, False

        def apply(*args: Any) -> Any:
            out = engine._head.apply(*args)
            if torch.is_grad_enabled():
                outputs[:] = out[:2]
            return out

        trl_utils._ChunkedLogProbFunction = SimpleNamespace(apply=apply)
        arguments = getattr(trainer.args, "gradient_checkpointing_kwargs", None)
        try:
            with (
                disable_gradient_checkpointing(trainer.model, arguments),
                trainer.compute_loss_context_manager(),
            ):
                yield
        finally:
            trl_utils._ChunkedLogProbFunction, engine.armed = mine, True
            for mode, values in kept.items():
                trainer._metrics[mode].clear()
                trainer._metrics[mode].update(values)

    def compare(self, recorder: Any) -> None:
        self.engine = recorder.engine
        weight = self.sink.weight[:, None]
        captured = self.sink.exact.gradients()
        rows, added = captured * weight, self.gradients() - self.before
        whole, *wanted = self.autograd(dict(self.inputs), len(rows))
        self.worst("sums", self._by_parameter(rows.sum(0), added))
        self.worst("change", self._by_parameter(added, whole))
        largest = max(float(w.norm()) for w in wanted)
        for i, (row, own) in enumerate(zip(rows, wanted, strict=True)):
            if largest > 0:
                size = max(float(own.norm()), 1e-3 * largest)
                self.worst("rows", float((row - own).norm()) / size)
                if self.with_alone:
                    advantages = torch.zeros_like(self.inputs["advantages"])
                    advantages[i] = self.inputs["advantages"][i]
                    (other,) = self.autograd({**self.inputs, "advantages": advantages})
                    self.worst("alone", float((row - other).norm()) / size)
            self._compare_sketch(i, captured[i])
        self.checked += 1

    def _compare_sketch(self, i: int, row: torch.Tensor) -> None:
        size = float(row.norm())
        norm = float(self.sink.squares[i].clamp(min=0).sqrt())
        if size == 0:
            assert norm == 0 and not self.sink.sketches()[i].any()
            return
        shapes = [p.shape for p in self.parameters()]
        parts = [
            x.view(shape)
            for x, shape in zip(row.split([s.numel() for s in shapes]), shapes, strict=True)
        ]
        wanted = SKETCH.sketch(parts)
        seen = torch.from_numpy(self.sink.sketches()[i])
        self.worst("sketches", float((seen - wanted).norm() / wanted.norm()))
        self.worst("norms", abs(norm - size) / size)

    def _by_parameter(self, found: torch.Tensor, wanted: torch.Tensor) -> float:
        sizes = [p.numel() for p in self.parameters()]
        floor = 1e-3 * float(wanted.norm())
        off = 0.0
        for a, b in zip(found.split(sizes), wanted.split(sizes), strict=True):
            size = max(float(b.norm()), floor)
            off = max(off, float((a - b).norm()) / size if size else float(a.norm()))
        return off

    def worst(self, name: str, value: float) -> None:
        assert value == value, f"{name} is not a number"
        setattr(self, name, max(getattr(self, name), value))
