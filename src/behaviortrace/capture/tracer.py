"""The tracer: records every rollout of a TRL trainer with the sketch of its own gradient."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from trl import SFTTrainer

from behaviortrace.capture import phases, seam
from behaviortrace.capture.engine import RowGradients
from behaviortrace.capture.examples import ExampleRecorder
from behaviortrace.capture.optimizer import check_optimizer
from behaviortrace.capture.ranks import Ranks
from behaviortrace.capture.recorder import Recorder
from behaviortrace.capture.rollouts import RolloutRecorder
from behaviortrace.capture.sinks import sink_for
from behaviortrace.capture.sketch import CountSketch
from behaviortrace.capture.writer import ShardWriter
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import Run
from behaviortrace.run.manifest import NAME
from behaviortrace.train.exactness import NOTE, machine


class Tracer:
    """Records every rollout and a sketch of its gradient inside the backward that trains.

    Args:
        run: a directory for a new run, or a :class:`Run` to add to.
        resume: the directory holds a run whose training goes on: from a checkpoint of the trainer's
            own, ``trainer.train(resume_from_checkpoint=...)``, with the same data, settings and
            machine. Steps that the run holds from there on are dropped, which its lineage records.
        sketch: how gradients are sketched.
        allow_uncovered: trainable parameters that may go without capture; reported ever after.
        plain: capture plain gradients of all rollouts, zero advantage included, where the loss is
            a row weight times the mean log-probability; otherwise update gradients.

    Example::

        tracer = Tracer("runs/mine")
        with tracer.attach(trainer):
            trainer.train()

    and after a crash, with a trainer constructed as before::

        tracer = Tracer("runs/mine", resume=True)
        with tracer.attach(trainer):
            trainer.train(resume_from_checkpoint=True)
    """

    def __init__(
        self,
        run: Run | str | Path,
        sketch: CountSketch | None = None,
        *,
        allow_uncovered: Collection[str] = (),
        plain: bool = True,
        resume: bool = False,
    ) -> None:
        self.path = run.path if isinstance(run, Run) else Path(run)
        self.sketch = sketch or CountSketch()
        self.allow_uncovered = tuple(allow_uncovered)
        self.plain = plain
        self.resume = resume
        self.run: Run | None = run if isinstance(run, Run) else None

    @contextmanager
    def attach(self, trainer: Any) -> Iterator[Tracer]:
        """Capture while the context lasts; the trainer and its model are restored afterwards.

        Args:
            trainer: a constructed ``trl.GRPOTrainer`` or ``trl.RLOOTrainer``, or a
                ``trl.SFTTrainer``, whose examples are then recorded as rollouts without reward;
                nothing of it is replaced for good.

        Raises:
            BehaviorTraceError: the trainer's seam is not as expected, a setting under which rows
                cannot be told apart, a trainable parameter that is not covered, or a directory
                that already holds a run. Raised by ``trainer.train()``, before it trains: the run
                holds steps that it would take again.
        """
        supervised = isinstance(trainer, SFTTrainer)
        kind: type[Recorder] = ExampleRecorder if supervised else RolloutRecorder
        seam.check_trainer(trainer, kind.METHODS)
        kind.check(trainer)
        check_optimizer(trainer)
        if any(isinstance(c, Recorder) for c in trainer.callback_handler.callbacks):
            raise BehaviorTraceError(
                "a tracer is attached to this trainer already; leave its context first"
            )
        model = trainer.accelerator.unwrap_model(trainer.model)
        sink = sink_for(self.sketch)
        engine = RowGradients(model, sink, self.allow_uncovered)
        ranks = Ranks(trainer.accelerator)
        ranks.first(lambda: self._begin(trainer, engine))
        if self.run is None:
            self.run = Run.open(self.path)
        with ExitStack() as stack:
            writer = ShardWriter(self.run, ranks)
            recorder = kind(self.run, trainer, engine, sink, ranks, self.plain, writer, self.resume)
            stack.callback(_conclude, recorder)  # once the writer has listed what it holds
            stack.enter_context(writer)
            stack.enter_context(engine)
            for name in kind.METHODS:
                wrapped = getattr(recorder, "on_" + name.lstrip("_"))(getattr(trainer, name))
                stack.enter_context(seam.overridden(trainer, name, wrapped))
            trainer.add_callback(recorder)
            stack.callback(trainer.remove_callback, recorder)
            yield self

    def _begin(self, trainer: Any, engine: RowGradients) -> None:
        """Create the run if need be, and note what is captured; in one process only."""
        run = self.run = self.run or self._open()
        known = run.manifest.sketch
        if known is not None and known != self.sketch.spec():
            raise BehaviorTraceError(
                f"run {run.path} was sketched with {known}, not {self.sketch.spec()}; "
                "use the same sketch"
            )
        note = {
            "trainer": type(trainer).__name__,
            "parameters": engine.layout.size,
            "uncovered": engine.uncovered,
            "plain": self.plain,
            "temperature": float(getattr(trainer, "temperature", 1.0)),
            "generations": int(getattr(trainer, "num_generations", 1)),
            "processes": trainer.accelerator.num_processes,
            "rollouts_per_step": trainer.args.per_device_train_batch_size
            * trainer.args.gradient_accumulation_steps
            * trainer.accelerator.num_processes,
            "settings": phases.settings(trainer),
        }
        phases.check_same_capture(run, note, self.resume)
        notes = run.manifest.notes
        run.update(
            sketch=self.sketch.spec(),
            notes={
                "capture": {**(notes.get("capture") or {}), **note},
                NOTE: notes.get(NOTE) or machine(),
            },
        )

    def _open(self) -> Run:
        """The run of the directory: a new one, or the one that is resumed."""
        held = (self.path / NAME).exists()
        if self.resume and not held:
            raise BehaviorTraceError(
                f"{self.path} holds no run to resume; leave resume=True out to begin one there"
            )
        if held and not self.resume:
            raise BehaviorTraceError(
                f"{self.path} already holds a run; give Tracer another directory, or go on with "
                "that run by Tracer(..., resume=True) and trainer.train(resume_from_checkpoint=...)"
            )
        return Run.open(self.path) if held else Run.create(self.path)


def _conclude(recorder: Recorder) -> None:
    """Note what a training that an exception ended could not; the checklist counts again."""
    with suppress(BehaviorTraceError):  # the exception that ended it is the one to be told
        recorder.note_unscored()
