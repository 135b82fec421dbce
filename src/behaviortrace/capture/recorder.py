"""One attachment to a trainer: rows of the current step, its audit, and its shard.

What is specific to a kind of trainer, which rows a micro-batch has and what is known of them, is in
:mod:`behaviortrace.capture.rollouts` and :mod:`behaviortrace.capture.examples`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import polars as pl
import torch
from transformers import TrainerCallback

from behaviortrace.capture import optimizer, phases
from behaviortrace.capture.engine import RowGradients
from behaviortrace.capture.ranks import Ranks
from behaviortrace.capture.sinks import SketchSink
from behaviortrace.capture.writer import ShardWriter
from behaviortrace.plant.unscored import unscored
from behaviortrace.records import ROLLOUT_SCHEMA, conform
from behaviortrace.run import Run

_AUDIT_EVERY = 10  # steps between checks that the rows account for the whole gradient


class Recorder(TrainerCallback, ABC):
    """State of one attachment.

    Args:
        run: where shards go.
        trainer: the trainer attached to.
        engine: splits its gradients into rows.
        sink: the engine's.
        ranks: the processes that train together.
        plain: whether plain gradients are wanted where the loss allows them.
        writer: of the run's shards.
        resume: whether a training may go back to a step that the run holds.

    Attributes:
        METHODS: methods of the trainer that are wrapped while attached; ``on_NAME`` makes the
            wrapper of each from the original.
    """

    METHODS: ClassVar[tuple[str, ...]] = ("training_step", "_get_grad_norm")

    def __init__(
        self,
        run: Run,
        trainer: Any,
        engine: RowGradients,
        sink: SketchSink,
        ranks: Ranks,
        plain: bool,
        writer: ShardWriter,
        resume: bool = False,
    ) -> None:
        self.run, self.trainer, self.engine, self.sink = run, trainer, engine, sink
        self.ranks, self.writer, self.resume = ranks, writer, resume
        self.refusal = ""  # why plain gradients are out of the question
        if not plain:
            self.refusal = "the tracer was made with plain=False"
        elif engine.uncovered:
            self.refusal = f"no rule covers {engine.uncovered[0]}, where row weights would be lost"
        elif getattr(trainer, "aux_loss_enabled", False):
            self.refusal = "the MoE balance loss enters below the LM head, past unit weights"
        self.reused = int(getattr(trainer, "num_iterations", 1) or 1) > 1
        self.totals: dict[str, np.ndarray] = {}
        self.uses: dict[str, int] = {}
        self.rows: list[pl.DataFrame] = []
        self.seen: list[np.ndarray] = []
        self.step_facts: dict[str, float | None] = {}
        self.remarks: dict[str, str] = {}  # on columns that are not stored as they were logged
        self.unscored = False  # whether some reward was no finite number
        self.noted: set[str] = set()  # entries of the capture's note that stand for this training

    def forget(self) -> None:
        """Drop what is kept of a step, such as one that an exception has ended."""
        self.rows, self.seen, self.step_facts = [], [], {}

    @staticmethod
    def check(trainer: Any) -> None:
        """Refuse what this kind of trainer alone could be set to.

        Raises:
            BehaviorTraceError: the setting, by name.
        """

    # A call of train().

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Hold where training begins against what the run holds, before any step.

        Raises:
            BehaviorTraceError: steps would be recorded twice or be missing.
        """
        self.writer.settle()
        start = state.global_step
        phases.check_buffer(self.trainer, start, self.sampled_here)
        self.ranks.first(lambda: phases.begin(self.run, start, self.resume))
        self.forget()
        before = self.known.get("update_only")
        kept = before is not None and before["first_step"] < start
        if not kept:
            self._note(update_only=None)
        self.noted = {"update_only"} if kept else set()

    @property
    def sampled_here(self) -> bool:
        """Whether rollouts that the trainer still holds were sampled under this attachment."""
        return False

    @property
    def known(self) -> dict[str, Any]:
        """The manifest's note on the capture."""
        return self.run.manifest.notes.get("capture") or {}

    def _note(self, **entries: Any) -> None:
        """Put entries into that note, or take them out where None; the main process does."""
        self.noted |= set(entries)
        if not self.ranks.main:
            return
        known = self.known
        merged = {k: v for k, v in {**known, **entries}.items() if v is not None}
        if merged != known:
            self.run.update(notes={"capture": merged})

    # The forward and backward of a micro-batch.

    def begin(
        self, inputs: dict[str, Any], mask: torch.Tensor, scored: torch.Tensor | None = None
    ) -> None:
        """Arm the engine for a micro-batch.

        Args:
            inputs: what the trainer's loss is computed from.
            mask: (rows, positions) where its loss looks.
            scored: (rows, positions) where there is a label, if that is elsewhere too.
        """
        self.engine.arm(mask.shape[0], mask, scored=scored, unit=not self.refusal)

    def on_training_step(self, original: Any) -> Any:
        """Wrap one forward and backward."""

        def step(*args: Any, **kwargs: Any) -> Any:
            try:
                loss = original(*args, **kwargs)
                if self.engine.armed:
                    self.take_rows()
                return loss
            finally:
                self.engine.armed = False

        return step

    @abstractmethod
    def describe(self) -> pl.DataFrame:
        """What is known of the rows of the micro-batch, in their order; with ``rollout_id``."""

    def take_rows(self) -> None:
        """Keep the micro-batch's rows until the end of the step."""
        done = self.engine.disarm()
        assert done.tokens is not None
        if not done.plain and "update_only" not in self.noted:
            where = {"first_step": self.trainer.state.global_step}
            self._note(update_only={**where, "reason": self.refusal or done.reason})
        weight = done.weight / self.ranks.count  # gradients are averaged over processes
        sketches = self.sink.sketches()
        norm = done.norms(sketches)
        frame = self.describe()
        uses = [self.uses.get(i, 0) for i in frame["rollout_id"]]
        self.uses.update({i: n + 1 for i, n in zip(frame["rollout_id"], uses, strict=True)})
        nothing = pl.Series([None] * frame.height, dtype=pl.Float64)
        defined = np.where(done.tokens > 0, norm, np.nan)
        frame = frame.with_columns(
            fluency=pl.Series(done.fluency, dtype=pl.Float64).fill_nan(None),
            n_tokens=pl.Series(done.tokens, dtype=pl.Int32),
            grad_norm=pl.Series(np.abs(weight) * norm),
            plain_norm=pl.Series(defined).fill_nan(None) if done.plain else nothing,
            update_weight=pl.Series(weight) if done.plain else nothing,
            use=pl.Series(uses, dtype=pl.Int32),
        )
        if self.reused:
            totals = self._total_norms(frame["rollout_id"], uses, weight, sketches)
            frame = frame.with_columns(total_norm=pl.Series(totals, dtype=pl.Float64))
        self.rows.append(frame)
        self.seen.append(sketches if done.plain else sketches * np.float32(1 / self.ranks.count))

    def _total_norms(
        self, ids: pl.Series, uses: list[int], weight: np.ndarray, sketches: np.ndarray
    ) -> list[float | None]:
        """Norm of the sum of each rollout's updates so far; None at its first use."""
        norms: list[float | None] = []
        for name, use, w, sketch in zip(ids, uses, weight, sketches, strict=True):
            update = (w * sketch).astype(np.float32)
            self.totals[name] = update if use == 0 else self.totals[name] + update
            norms.append(None if use == 0 else float(np.linalg.norm(self.totals[name])))
        return norms

    # The optimizer step.

    def on_get_grad_norm(self, original: Any) -> Any:
        """Wrap the place where the norm before clipping is known."""

        def get(model: Any, grad_norm: Any = None) -> Any:
            norm = original(model, grad_norm=grad_norm)
            value, limit = float(norm), float(self.trainer.args.max_grad_norm or 0)
            clip = min(1.0, limit / (value + 1e-6)) if limit > 0 else 1.0
            self.step_facts = {"step_grad_norm": value, "clip_scale": clip}
            return norm

        return get

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Audit, before the step: do the rows account for the whole gradient?"""
        # Null where the optimizer sets its own, as Adafactor with relative steps.
        rate = self.trainer.optimizer.param_groups[0].get("lr")
        self.step_facts["learning_rate"] = optimizer.number(rate)
        due = state.global_step < 2 or state.global_step % _AUDIT_EVERY == 0
        self.step_facts["missed_energy"] = self._missed_energy() if due and self.rows else None

    def _missed_energy(self) -> float | None:
        """Share of the step's squared gradient norm that the rows' sketches do not account for."""
        gradients = [
            torch.zeros_like(p) if p.grad is None else p.grad for p in self.engine.layout.parameters
        ]
        rows = np.zeros(self.sink.sketch.dim)
        for frame, seen in zip(self.rows, self.seen, strict=True):
            rows += _weights(frame) @ seen.astype(np.float64)
        rows = self.ranks.sum(rows)
        whole = self.sink.sketch.sketch(gradients).double().numpy()
        whole /= self.step_facts.get("clip_scale") or 1.0
        energy = float(whole @ whole)
        return float((whole - rows) @ (whole - rows)) / energy if energy > 0 else None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Have the step's shard written; it is listed before any checkpoint that follows it."""
        if not self.rows:
            return
        step = state.global_step - 1
        frame = pl.concat(self.rows, how="diagonal_relaxed").with_columns(
            step=pl.lit(step, pl.Int32),
            **{k: pl.lit(v, pl.Float64) for k, v in self.step_facts.items()},
        )
        seen = np.concatenate(self.seen)
        order = frame.with_row_index("at").sort("index", "use")["at"].to_numpy()
        frame = conform(frame[order], ROLLOUT_SCHEMA)
        shards = [("training", frame, _tensors(frame, seen[order]))]
        self.rows, self.seen = [], []
        if self.ranks.main:
            moments = optimizer.second_moments(self.trainer.optimizer, self.engine.layout, step)
            shards += [("optimizer", moments.frame, {})] if len(moments.frame) else []
            if "optimizer" not in self.noted:
                self._note(optimizer=moments.note)
            if self.remarks:
                self._note(columns={**self.known.get("columns", {}), **self.remarks})
                self.remarks = {}
        self.writer.submit(step, shards)
        if control.should_save:
            self.writer.settle()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """List what is written, should a save have been asked for after the step's end."""
        self.writer.settle()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """List what is written, and note what was no number in it."""
        self.writer.settle()
        self.note_unscored()

    def note_unscored(self) -> None:
        """Count in the manifest the rewards that are not finite, if there are any."""
        known = "unscored" in self.known
        if self.ranks.main and (self.unscored or known) and self.run.manifest.store("training"):
            found = unscored(self.run.rollouts())
            self._note(unscored=found.note() if found.any else None)


def _weights(frame: pl.DataFrame) -> np.ndarray:
    """(n,) update gradient = weight x what was sketched."""
    return frame["update_weight"].fill_null(1.0).to_numpy()


def _tensors(frame: pl.DataFrame, seen: np.ndarray) -> dict[str, np.ndarray]:
    """The step's tensors: "plain" where all rows are, else "update", and "plain" where it is.

    A row without any token under the mask has no plain gradient: NaN. Its update is zero.
    """
    plain = frame["update_weight"].is_not_null().to_numpy()
    defined = plain & frame["plain_norm"].is_not_null().to_numpy()
    tensors = {}
    if not plain.all():
        tensors["update"] = (seen * _weights(frame)[:, None]).astype(np.float32)
    if plain.any():
        tensors["plain"] = np.where(defined[:, None], seen, np.nan).astype(np.float32)
    return tensors
