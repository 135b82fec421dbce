"""Where a call of ``trainer.train()`` begins, held against what its run holds already.

A trainer numbers its steps from 0, or from the checkpoint it resumes from. Every step is in a run
once and none is missing, so a call that would take a step again, or leave one out, is refused
before it trains.
"""

from __future__ import annotations

from typing import Any

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import Run
from behaviortrace.train.exactness import NOTE, machine

COMPARED = (
    *("trainer", "parameters", "temperature", "generations", "processes", "rollouts_per_step"),
)
"""What of the note on a capture must stay the same while a run is added to."""

SETTINGS = (
    *("optim", "learning_rate", "lr_scheduler_type", "weight_decay", "max_grad_norm", "seed"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "loss_type", "beta"),
    *("num_iterations", "steps_per_generation", "scale_rewards", "max_completion_length"),
)
"""The trainer's settings that must be the same where steps are taken again."""


def settings(trainer: Any) -> dict[str, Any]:
    """Those of :data:`SETTINGS` that the trainer has, as JSON holds them."""
    found = {n: getattr(trainer.args, n) for n in SETTINGS if hasattr(trainer.args, n)}
    return {n: str(getattr(v, "value", v)) if n in _NAMED else v for n, v in found.items()}


_NAMED = ("optim", "lr_scheduler_type", "loss_type", "scale_rewards")


def check_same_capture(run: Run, note: dict[str, Any], resume: bool) -> None:
    """Refuse to add to a run what was captured in another way.

    Args:
        run: new, or one that holds steps.
        note: on the capture that is about to begin.
        resume: whether steps may be taken again, so that the settings must be the same too.

    Raises:
        BehaviorTraceError: the first of :data:`COMPARED` or :data:`SETTINGS` that differs.
    """
    known = run.manifest.notes.get("capture") or {}
    if not run.manifest.store("training"):
        return
    pairs = [(name, known.get(name), note[name]) for name in COMPARED if name in known]
    if resume:
        before, now = known.get("settings") or {}, note["settings"]
        pairs += [(name, before[name], now.get(name)) for name in before]
    for name, was, value in pairs:
        if was != value:
            raise BehaviorTraceError(
                f"run {run.path} was captured with {name} {was!r}, this trainer has {value!r}; "
                "use the same, or attach a Tracer of another directory"
            )


def check_buffer(trainer: Any, start: int, sampled: bool) -> None:
    """Refuse to begin inside a batch of rollouts that the tracer did not see sampled.

    TRL samples for several micro-batches at once and saves none of them with a checkpoint.

    Args:
        trainer: about to train; one that samples nothing is let through.
        start: step that it begins with.
        sampled: whether the tracer saw the sampling of what the trainer still holds.

    Raises:
        BehaviorTraceError: it is inside such a batch.
    """
    args = trainer.args
    every = getattr(args, "steps_per_generation", None)
    if every is None:
        return
    every *= int(getattr(trainer, "num_iterations", 1) or 1)
    wanted = start * args.gradient_accumulation_steps % every
    at = int(trainer._step) % every
    if at != wanted or (at and not sampled):
        where = f"step {start}" if at == wanted or not at else "an earlier training"
        raise BehaviorTraceError(
            f"{where} lies inside a batch of rollouts that is not saved, and this trainer would go "
            "on in the middle of it; construct the trainer anew, and resume from a checkpoint that "
            "lies between two batches, if from any"
        )


def begin(run: Run, start: int, resume: bool) -> None:
    """Make a run ready for a training that begins with a step; in one process only.

    Args:
        run: what is added to.
        start: ``global_step`` where training begins: 0, or that of the checkpoint resumed from.
        resume: whether steps from there on may be dropped.

    Raises:
        BehaviorTraceError: steps would be taken again or left out, or the resume not be exact.
    """
    shards = run.manifest.store("training")
    if not shards:
        return
    first, end = shards[0].step, shards[-1].step + shards[-1].steps
    if start <= first:
        raise BehaviorTraceError(
            f"{run.path} holds steps {first} to {end - 1} of an earlier training, and this call of "
            f"trainer.train() begins with step {start} again; attach a Tracer of another "
            "directory, or go on with trainer.train(resume_from_checkpoint=...)"
        )
    if start > end:
        raise BehaviorTraceError(
            f"{run.path} holds steps {first} to {end - 1}, and this call of trainer.train() begins "
            f"with step {start}, so that {start - end} in between would be missing; resume from a "
            f"checkpoint at step {end} or before, or attach a Tracer of another directory"
        )
    if start < end and not resume:
        raise BehaviorTraceError(
            f"{run.path} already holds steps {start} to {end - 1}, which this call of "
            "trainer.train() would take again; drop them with Tracer(..., resume=True), or attach "
            "a Tracer of another directory"
        )
    lineage = run.manifest.lineage
    if start < end or not lineage or lineage[-1].step != start:
        if resume:
            _check_machine(run)
        run.resume_from(start)


def _check_machine(run: Run) -> None:
    """Refuse to resume where steps would be computed otherwise than where the run began."""
    recorded, now = run.manifest.notes.get(NOTE) or {}, machine()
    compared = ["device", "cpu_capability", *(["threads"] if now["device"] == "cpu" else [])]
    for name in compared:
        if name in recorded and recorded[name] != now[name]:
            remedy = "resume where the run began"
            if name == "threads":
                remedy = f"call torch.set_num_threads({recorded[name]}) first"
            raise BehaviorTraceError(
                f"an exact resume of {run.path} needs the same {name}, which was "
                f"{recorded[name]!r} and is now {now[name]!r}; {remedy}, or attach a Tracer of "
                "another directory"
            )
