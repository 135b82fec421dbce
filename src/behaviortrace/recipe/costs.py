"""What a recipe is expected to take: memory, disk and time, estimated before anything is run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from behaviortrace.recipe import Recipe

MODEL_PARAMETERS: dict[str, int] = {
    "tiny": 100_000,
    "smollm2": 134_515_008,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M-Instruct": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1_711_376_384,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-3B-Instruct": 3_085_938_688,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
}
"""Parameters of known models, tied weights counted once ("tiny" roughly)."""

_FLOAT_BYTES = 4
_PROMPT_TOKENS = 40  # chat template included
_CAPTURE_FACTOR = 1.3  # forward and backward with per-rollout capture, over without
_CPU = {"flops": 8.0e10, "bandwidth": 2.1e9, "token_seconds": 0.002}
_GPU = {"flops": 2.0e13, "bandwidth": 1.0e12, "token_seconds": 0.03}
_ACTIVATION_BYTES = 600_000  # a token of the micro-batch, checkpointed activations and logits
_NEEDS_GPU_GB = 16.0
_NEEDS_GPU_HOURS = 12.0


def expected_cost(recipe: Recipe) -> dict[str, Any]:
    """Expected size of a run, in round numbers; an estimate, not a promise.

    Memory is weights, gradients and Adam's two moments, 4 float32 numbers a parameter (also under
    bfloat16, which is autocast over float32 parameters), plus activations and logits of a
    micro-batch and one float32 sketch a rollout.
    Disk is one float32 sketch a rollout, trained or drawn, plus weights and two Adam moments a
    checkpoint (3 numbers a parameter); rollout text is small beside them.

    Time of a step is training, ``6 x parameters x tokens`` operations times 1.3 for the capture,
    plus sampling, where each token of the longest completion takes the slower of reading the
    weights once and a fixed overhead. The CPU rates (80 GFLOP/s and 2.1 GB/s) come from
    SmolLM2-135M in float32 on two slow cores, 14 to 16 s for a step of 12 rollouts of about 64
    tokens, 6 s of it sampling; other machines and hours were up to twice as fast.
    The GPU rates (20 TFLOP/s in float32 with TF32 off, 1 TB/s, 30 ms a token)
    are assumed for a data-centre card with Hugging Face generation; autocast and vLLM are faster.
    Warm-up, probes at each checkpoint, and draws (sampling, and one replay pass) are counted
    likewise.

    Args:
        recipe: any valid recipe.

    Returns:
        ``parameters`` (None where the model is not in the table; then every value below that
        depends on it is None too), ``memory_gb``, ``disk_gb``, ``sketch_gb``, ``checkpoints``,
        ``cpu_hours`` (two cores), ``gpu_hours`` (one), ``needs_gpu`` (more than 16 GB, or more
        than 12 hours on two cores), and ``reason``, one sentence.

    Example:
        >>> from behaviortrace.recipe import load
        >>> expected_cost(load("tiny"))["needs_gpu"]
        False
    """
    parameters = MODEL_PARAMETERS.get(recipe.model.source)
    train = recipe.train
    draws = len(recipe.draw.seeds) * _draw_rollouts(recipe)
    sketch_bytes = (
        _FLOAT_BYTES * recipe.sketch.dim * (train.steps * train.rollouts_per_step + draws)
    )
    known: dict[str, Any] = {
        "parameters": parameters,
        "sketch_gb": _gigabytes(sketch_bytes),
        "checkpoints": len(recipe.saved_steps()),
    }
    if parameters is None:
        unknown = ("memory_gb", "disk_gb", "cpu_hours", "gpu_hours", "needs_gpu")
        reason = f"the size of model {recipe.model.source!r} is not known"
        return {**known, **dict.fromkeys(unknown), "reason": reason}
    micro_tokens = train.micro_batch * (_PROMPT_TOKENS + train.max_completion_length)
    memory = (
        4 * _FLOAT_BYTES * parameters
        + _ACTIVATION_BYTES * micro_tokens
        + _FLOAT_BYTES * recipe.sketch.dim * train.rollouts_per_step
    )
    disk = sketch_bytes + 3 * _FLOAT_BYTES * parameters * known["checkpoints"]
    cpu, gpu = (_seconds(recipe, parameters, rates) / 3600 for rates in (_CPU, _GPU))
    needs = memory / 1e9 > _NEEDS_GPU_GB or cpu > _NEEDS_GPU_HOURS
    reason = (
        f"{parameters / 1e6:.4g} M parameters: about "
        f"{_gigabytes(memory)} GB of memory and {_gigabytes(disk)} GB of disk, {_hours(cpu)} on "
        f"two CPU cores or {_hours(gpu)} on one GPU"
    )
    return {
        **known,
        "memory_gb": _gigabytes(memory),
        "disk_gb": _gigabytes(disk),
        "cpu_hours": round(cpu, 3),
        "gpu_hours": round(gpu, 3),
        "needs_gpu": needs,
        "reason": reason,
    }


def pass_seconds(
    recipe: Recipe, parameters: int, rollouts: int, rates: Mapping[str, float] = _CPU
) -> float:
    """Expected seconds of forward and backward over so many rollouts, without capture."""
    tokens = rollouts * (_PROMPT_TOKENS + recipe.train.max_completion_length)
    return 6 * parameters * tokens / rates["flops"]


def sampling_seconds(
    recipe: Recipe, parameters: int, completions: int, rates: Mapping[str, float] = _CPU
) -> float:
    """Expected seconds of sampling so many completions, ``draw.batch`` at a time."""
    per_token = max(_FLOAT_BYTES * parameters / rates["bandwidth"], rates["token_seconds"])
    batches = -(-completions // recipe.draw.batch)
    return recipe.train.max_completion_length * per_token * batches


def _seconds(recipe: Recipe, parameters: int, rates: Mapping[str, float]) -> float:
    train = recipe.train

    def passes(rollouts: int) -> float:
        return pass_seconds(recipe, parameters, rollouts, rates)

    sampling = sampling_seconds(recipe, parameters, 1, rates)
    draws = len(recipe.draw.seeds) * _draw_rollouts(recipe)
    asked = recipe.prompts.probes + recipe.prompts.controls
    return (
        train.steps * _CAPTURE_FACTOR * passes(train.rollouts_per_step)
        + train.steps / train.iterations * sampling
        + recipe.warmup.steps * passes(recipe.warmup.batch_size)
        + len(recipe.saved_steps()) * sampling * -(-asked // recipe.draw.batch)
        + sampling * -(-draws // recipe.draw.batch)
        + _CAPTURE_FACTOR * passes(draws)
    )


def _draw_rollouts(recipe: Recipe) -> int:
    return recipe.draw.prompts * recipe.draw.repeats * recipe.draw.generations


def _gigabytes(size: float) -> float:
    return float(f"{size / 1e9:.2g}")


def _hours(hours: float) -> str:
    if hours >= 1:
        return f"{hours:.1f} hours"
    minutes = max(1, round(60 * hours))
    return f"{minutes} minute{'s' if minutes > 1 else ''}"
