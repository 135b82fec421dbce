"""The tracer: records every rollout of a TRL trainer with the sketch of its own gradient."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from transformers import TrainerCallback

from behaviortrace.capture import seam
from behaviortrace.capture.engine import RowGradients
from behaviortrace.capture.rollouts import generation_frame
from behaviortrace.capture.sinks import SketchSink
from behaviortrace.capture.sketch import CountSketch
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.records import ROLLOUT_SCHEMA, conform
from behaviortrace.run import Run

_AUDIT_EVERY = 10  # steps between checks that the rows account for the whole gradient


class Tracer:
    """Records every rollout and a sketch of its gradient inside the backward that trains.

    Args:
        run: a directory for a new run, or a :class:`Run` to add to.
        sketch: how gradients are sketched.
        allow_uncovered: trainable parameters that may go without capture; reported ever after.
        plain: capture plain gradients of all rollouts, zero advantage included, where the loss is
            a row weight times the mean log-probability; otherwise update gradients.

    Example::

        tracer = Tracer("runs/mine")
        with tracer.attach(trainer):
            trainer.train()
    """

    def __init__(
        self,
        run: Run | str | Path,
        sketch: CountSketch | None = None,
        *,
        allow_uncovered: Collection[str] = (),
        plain: bool = True,
    ) -> None:
        self._where = run
        self.sketch = sketch or CountSketch()
        self.allow_uncovered = tuple(allow_uncovered)
        self.plain = plain
        self.run: Run | None = run if isinstance(run, Run) else None

    @contextmanager
    def attach(self, trainer: Any) -> Iterator[Tracer]:
        """Capture while the context lasts; the trainer and its model are restored afterwards.

        Args:
            trainer: a constructed ``trl.GRPOTrainer``; nothing of it is replaced for good.

        Raises:
            BehaviorTraceError: the trainer's seam is not as expected, a trainable parameter is
                not covered, or the directory already holds a run.
        """
        seam.check_trainer(trainer)
        model = trainer.accelerator.unwrap_model(trainer.model)
        sink = SketchSink(self.sketch)
        engine = RowGradients(model, sink, self.allow_uncovered)
        run = self.run = self.run or Run.create(self._where)  # type: ignore[arg-type]
        known = run.manifest.sketch
        if known is not None and known != self.sketch.spec():
            raise BehaviorTraceError(
                f"run {run.path} was sketched with {known}, not {self.sketch.spec()}; "
                "use the same sketch"
            )
        run.update(
            sketch=self.sketch.spec(),
            notes={
                **run.manifest.notes,
                "capture": {
                    "parameters": engine.layout.size,
                    "uncovered": engine.uncovered,
                    "plain": self.plain,
                    "temperature": float(getattr(trainer, "temperature", 1.0)),
                    "generations": int(trainer.num_generations),
                },
            },
        )
        recorder = _Recorder(run, trainer, engine, sink, self.plain)
        with ExitStack() as stack:
            stack.enter_context(engine)
            for name in seam.METHODS:
                wrapped = getattr(recorder, "on_" + name.lstrip("_"))(getattr(trainer, name))
                stack.enter_context(seam.overridden(trainer, name, wrapped))
            trainer.add_callback(recorder)
            stack.callback(trainer.remove_callback, recorder)
            yield self


class _Recorder(TrainerCallback):
    """State of one attachment: the generation at hand and the rows of the current step."""

    def __init__(
        self, run: Run, trainer: Any, engine: RowGradients, sink: SketchSink, plain: bool
    ) -> None:
        self.run, self.trainer, self.engine, self.sink = run, trainer, engine, sink
        # An MoE balance loss enters below the LM head, where unit weights would not reach it.
        self.unit = plain and not getattr(trainer, "aux_loss_enabled", False)
        self.generation: pl.DataFrame | None = None
        self.used: dict[str, int] = {}
        self.sampled = (-1, 0)
        self.rewarded: dict[str, Any] = {}
        self.rows: list[pl.DataFrame] = []
        self.seen: list[np.ndarray] = []
        self.current: list[int] = []
        self.step_facts: dict[str, float | None] = {}

    # Sampling and rewards.

    def on_generate_and_score_completions(self, original: Any) -> Any:
        def generate(inputs: Any) -> Any:
            training = bool(self.trainer.model.training)
            batch = original(inputs)
            if training:
                seam.check_batch(batch)
                self._note_generation(batch)
                count = batch["prompt_ids"].shape[0]
                batch[seam.ROW_KEY] = torch.arange(count, device=batch["prompt_ids"].device)
            return batch

        return generate

    def on_calculate_rewards(self, original: Any) -> Any:
        def calculate(inputs: Any, prompts: Any, completions: Any, completion_ids: Any) -> Any:
            rewards = original(inputs, prompts, completions, completion_ids)
            n, rank = len(prompts), self.trainer.accelerator.process_index
            weights = self.trainer.reward_weights.to(rewards.device)
            local = rewards[rank * n : (rank + 1) * n]
            total = (local * weights).nansum(1)
            total[torch.isnan(local).all(1)] = torch.nan
            self.rewarded = {
                "prompts": prompts,
                "completions": completions,
                "completion_ids": completion_ids,
                "rewards": total,
                "extras": {k: list(v) for k, v in self.trainer._pending_extra_logs.items()},
            }
            return rewards

        return calculate

    def _note_generation(self, batch: dict[str, Any]) -> None:
        args, world = self.trainer.args, self.trainer.accelerator.num_processes
        step, generations = self.trainer.state.global_step, self.trainer.num_generations
        count = batch["prompt_ids"].shape[0]
        before = self.sampled[1] if self.sampled[0] == step else 0
        self.sampled = (step, before + count * world)
        per_step = args.per_device_train_batch_size * args.gradient_accumulation_steps * world
        self.used = {}
        self.generation = generation_frame(
            step=step,
            first=before + self.trainer.accelerator.process_index * count,
            generations=generations,
            groups_per_step=-(-max(per_step, count * world) // generations),
            batch=batch,
            **self.rewarded,
        )

    # The forward and backward of a micro-batch.

    def on_compute_loss(self, original: Any) -> Any:
        def compute(model: Any, inputs: dict[str, Any]) -> Any:
            if seam.ROW_KEY not in inputs or not model.training:
                return original(model, inputs)
            self.current = inputs[seam.ROW_KEY].tolist()
            mask = inputs["completion_mask"]
            if inputs.get("tool_mask") is not None:
                mask = mask * inputs["tool_mask"]
            self.engine.arm(len(self.current), mask, unit=self.unit)
            return original(model, inputs)

        return compute

    def on_training_step(self, original: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            try:
                loss = original(*args, **kwargs)
                if self.engine.armed:
                    self._note_rows()
                return loss
            finally:
                self.engine.armed = False

        return step

    def _note_rows(self) -> None:
        done = self.engine.disarm()
        assert self.generation is not None and self.engine.mask is not None
        mask, logps = self.engine.mask.double(), done.logps
        tokens = mask.sum(1)
        fluency = (
            [None] * len(self.current)
            if logps is None
            else ((logps.double() * mask).sum(1) / tokens).tolist()
        )
        frame = self.generation[self.current]
        uses = [self.used.get(i, 0) for i in frame["rollout_id"]]
        self.used.update({i: n + 1 for i, n in zip(frame["rollout_id"], uses, strict=True)})
        nothing = pl.Series([None] * frame.height, dtype=pl.Float64)
        frame = frame.with_columns(
            fluency=pl.Series(fluency, dtype=pl.Float64).fill_nan(None),
            n_tokens=pl.Series(tokens.int().tolist()),
            grad_norm=pl.Series(np.abs(done.weight) * done.norm),
            plain_norm=pl.Series(done.norm) if done.plain else nothing,
            update_weight=pl.Series(done.weight) if done.plain else nothing,
            use=pl.Series(uses, dtype=pl.Int32),
        )
        self.rows.append(frame)
        self.seen.append(self.sink.sketches())

    # The optimizer step.

    def on_get_grad_norm(self, original: Any) -> Any:
        def get(model: Any, grad_norm: Any = None) -> Any:
            norm = original(model, grad_norm=grad_norm)
            value, limit = float(norm), float(self.trainer.args.max_grad_norm or 0)
            clip = min(1.0, limit / (value + 1e-6)) if limit > 0 else 1.0
            self.step_facts = {"step_grad_norm": value, "clip_scale": clip}
            return norm

        return get

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Audit, before the step: do the rows account for the whole gradient?"""
        self.step_facts["learning_rate"] = float(self.trainer.optimizer.param_groups[0]["lr"])
        due = state.global_step < 2 or state.global_step % _AUDIT_EVERY == 0
        self.step_facts["missed_energy"] = self._missed_energy() if due and self.rows else None

    def _missed_energy(self) -> float | None:
        """Share of the step's squared gradient norm that the rows' sketches do not account for."""
        if self.trainer.accelerator.num_processes > 1:
            return None  # gradients are averaged over ranks, rows are this rank's own
        gradients = [
            torch.zeros_like(p) if p.grad is None else p.grad for p in self.engine.layout.parameters
        ]
        whole = self.sink.sketch.sketch(gradients).double().numpy()
        whole /= self.step_facts.get("clip_scale") or 1.0
        energy = float(whole @ whole)
        if energy == 0:
            return None
        rest = whole - sum(
            _weights(frame) @ seen.astype(np.float64)
            for frame, seen in zip(self.rows, self.seen, strict=True)
        )
        return float(rest @ rest) / energy

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the step's shard; it is complete before any checkpoint of the next step count."""
        if not self.rows:
            return
        step = state.global_step - 1
        frame = pl.concat(self.rows, how="vertical_relaxed").with_columns(
            step=pl.lit(step, pl.Int32),
            **{k: pl.lit(v, pl.Float64) for k, v in self.step_facts.items()},
        )
        seen = np.concatenate(self.seen)
        order = frame.with_row_index("at").sort("index", "use")["at"].to_numpy()
        frame = conform(frame[order], ROLLOUT_SCHEMA)
        tensors = _tensors(frame, seen[order])
        self.rows, self.seen = [], []
        rank = self.trainer.accelerator.process_index
        self.run.write_shard("training", step, rank, frame, tensors)


def _weights(frame: pl.DataFrame) -> np.ndarray:
    """(n,) update gradient = weight x what was sketched."""
    return frame["update_weight"].fill_null(1.0).to_numpy()


def _tensors(frame: pl.DataFrame, seen: np.ndarray) -> dict[str, np.ndarray]:
    """The step's tensors: "plain" where all rows are, else "update", and "plain" where it is."""
    plain = frame["update_weight"].is_not_null().to_numpy()
    if plain.all():
        return {"plain": seen}
    tensors = {"update": (seen * _weights(frame)[:, None]).astype(np.float32)}
    if plain.any():
        tensors["plain"] = np.where(plain[:, None], seen, np.nan).astype(np.float32)
    return tensors
