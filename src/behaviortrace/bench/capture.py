"""`behaviortrace bench capture`: what capture costs and how exact it is, on this machine."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import torch

from behaviortrace.bench.adapters import bench_lora
from behaviortrace.bench.arms import OneAtATime, Traced, kernel_over_read, plain
from behaviortrace.bench.peers import Peer, peers
from behaviortrace.bench.timing import interleaved, paired_ratio, peak_memory
from behaviortrace.bench.tokens import bench_tokens
from behaviortrace.bench.workload import Workload
from behaviortrace.capture.layout import BLOCK, Layout
from behaviortrace.capture.objective import fused_head
from behaviortrace.capture.sketch import CountSketch
from behaviortrace.doctor.certificate import cosine_errors
from behaviortrace.doctor.exact import exact_gradients
from behaviortrace.train.policy import load_policy

ROLLOUTS, PROMPT, COMPLETION, MICRO_BATCH = 16, 36, 48, 4
_FLOATS = 1 << 30  # exact gradient entries held at a time
LORA_ROUNDS = 5  # its ratio is the closest to 1
PUBLISHED = 2
"""Rollouts timed of the published way; its time is proportional to their number."""


def bench_capture(
    source: str = "smollm2",
    *,
    rounds: int = 3,
    dim: int = 65_536,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Time capture beside plain training and beside the published way.

    16 rollouts of 84 tokens (36 of them prompt), micro-batches of 4; arms interleaved, medians.
    Other libraries that are installed capture the same rollouts, see
    :mod:`behaviortrace.bench.peers`.

    Args:
        source: model, as in a recipe.
        rounds: timed rounds, after one untimed.
        dim: of the sketch.
        progress: called with a stage, the units done and the units in all.

    Returns:
        ``forward_backward_ratio`` (traced over plain, median of the rounds' ratios),
        ``step_ratio`` (the same with generation and the optimizer step added to both),
        ``lora_ratio`` (traced over plain with adapters alone trained, None without PEFT),
        ``token_score_passes`` (scores of every token over a forward pass),
        ``rms_cosine_error`` (over all pairs of rollouts,
        against exact gradients), ``rms_cosine_theory``, ``energy_covered`` (of the squared
        gradient norm), ``baseline_added_ratio`` (what the published way takes beyond plain
        training, over what ours does; None where ours takes nothing measurable),
        ``kernel_over_read`` (sketch kernel over reading the same bytes), ``added_memory_gb`` (peak
        resident memory of a process that trains traced, minus one that trains plainly),
        ``generation_seconds``, ``optimizer_seconds``, ``left_out`` (peer -> why it was not run),
        and ``arms``: per arm, seconds of every round and their median for so many ``rollouts``,
        the ratio to plain for as many, numbers stored a rollout; and where it kept something of
        all rollouts, ``parameters`` and ``energy`` (shares of the trainable parameters and of the
        squared gradient norm that it looks at) and ``rms_cosine_error``.
    """
    model, tokenizer = load_policy(source, "float32")
    model.train()
    sketch = CountSketch(dim)
    with fused_head(model, 1.0):
        work = _workload(model)
        block = Traced(work, sketch)
        arms: dict[str, Callable[[], Any]] = {
            "plain": lambda: plain(work),
            "block": block,
            "coordinate": Traced(work, CountSketch(dim, hash="coordinate")),
            "published": OneAtATime(work, CountSketch(dim, hash="coordinate"), PUBLISHED),
        }
        if dim >= BLOCK**2:  # the smallest that hash takes
            arms["kronecker"] = Traced(work, CountSketch(dim, hash="kronecker"))
        others, left_out = peers(work)
        arms |= others
        total = (rounds + 1) * len(arms)
        seconds = interleaved(arms, rounds, lambda done: _tell(progress, "arms", done, total))
        covered = _covered(work, block)
    fidelity = _fidelity(work, arms)
    optimizer = _optimizer_seconds(model)
    generation = _generation_seconds(model, tokenizer, work)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    whole = {**medians, "published": medians["published"] * ROLLOUTS / PUBLISHED}
    rest = optimizer + generation
    tokens = bench_tokens(model, work, rounds)
    lora = bench_lora(model, work, dim, max(rounds, LORA_ROUNDS))
    kernel = kernel_over_read(sketch, MICRO_BATCH, 1 << 24)
    added = medians["block"] - medians["plain"]
    published = whole["published"] - whole["plain"]
    memory = _peak(source, dim, True) - _peak(source, dim, False)
    return {
        "model": source,
        "threads": torch.get_num_threads(),
        "forward_backward_ratio": paired_ratio(seconds["block"], seconds["plain"]),
        "step_ratio": paired_ratio(
            [s + rest for s in seconds["block"]], [s + rest for s in seconds["plain"]]
        ),
        "lora_ratio": None if lora is None else lora["ratio"],
        "rms_cosine_error": fidelity["block"]["rms_cosine_error"],
        "rms_cosine_theory": dim**-0.5,
        "energy_covered": covered,
        "baseline_added_ratio": published / added if added > 0 else None,
        "kernel_over_read": kernel["ratio"],
        "kernel_seconds": kernel["kernel"],
        "read_seconds": kernel["read"],
        "added_memory_gb": memory / 1e9,
        "generation_seconds": generation,
        "optimizer_seconds": optimizer,
        "token_score_passes": tokens["passes"],
        "lora": lora,
        "tokens": tokens,
        "left_out": left_out,
        "arms": {
            name: {
                "seconds": found,
                "median": medians[name],
                "ratio": whole[name] / whole["plain"],
                "numbers_per_rollout": _numbers(arms[name]),
                "rollouts": PUBLISHED if name == "published" else ROLLOUTS,
                **fidelity.get(name, {}),
            }
            for name, found in seconds.items()
        },
    }


def _tell(progress: Callable[[str, int, int], None] | None, *what: Any) -> None:
    if progress is not None:
        progress(*what)


def _workload(model: torch.nn.Module) -> Workload:
    return Workload.random(
        model, rollouts=ROLLOUTS, prompt=PROMPT, completion=COMPLETION, micro_batch=MICRO_BATCH
    )


def _peak(source: str, dim: int, traced: bool) -> float:
    """Peak resident memory, bytes, of a process of its own that trains on the rollouts."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh) as pool:
        return pool.submit(_peak_here, source, dim, traced).result()


def _peak_here(source: str, dim: int, traced: bool) -> float:
    model, _ = load_policy(source, "float32")
    model.train()
    with fused_head(model, 1.0):
        work = _workload(model)
        arm = Traced(work, CountSketch(dim)) if traced else lambda: plain(work)
        for _ in range(2):
            arm()
    return peak_memory()


def _covered(work: Workload, traced: Traced) -> float:
    """Share of the energy of the summed gradient that the rows' sketches account for."""
    traced()
    gradients = [p.grad for p in traced.engine.layout.parameters if p.grad is not None]
    whole = traced.sink.sketch.sketch(gradients).double().numpy()
    weights = work.advantages.double().cpu().numpy() / len(work.ids)
    rest = whole - weights @ traced.sketches.astype(np.float64)
    return 1 - float(rest @ rest) / float(whole @ whole)


def _numbers(arm: Any) -> int:
    """Numbers that an arm keeps of a rollout."""
    return int(arm.sketches.shape[1]) if hasattr(arm, "sketches") else 0


def _fidelity(work: Workload, arms: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What the arms that kept something of every rollout look at, and how exact their cosines are.

    Call it without the fused head.
    """
    prompt = work.ids.shape[1] - work.completion
    rows = [(ids[:prompt], ids[prompt:]) for ids in work.ids.tolist()]
    exact = exact_gradients(
        work.model, rows, CountSketch(64), weights=[0.0] * len(rows), pad_token_id=0, floats=_FLOATS
    )
    slots = Layout(work.model).slots
    sizes = np.array([slot.size for slot in slots])
    energies = np.einsum("pii->p", exact.grams)
    found = {}
    for name, arm in arms.items():
        if not hasattr(arm, "sketches") or len(arm.sketches) < len(rows):
            continue
        covered = arm.covered if isinstance(arm, Peer) else {slot.name for slot in slots}
        seen = np.array([slot.name in covered for slot in slots])
        errors = cosine_errors(exact.grams.sum(0), arm.sketches)
        found[name] = {
            "parameters": float(sizes[seen].sum() / sizes.sum()),
            "energy": float(energies[seen].sum() / energies.sum()),
            "rms_cosine_error": float(np.sqrt(np.mean(errors**2))),
        }
    return found


def _optimizer_seconds(model: torch.nn.Module) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    found = []
    for _ in range(3):
        began = time.perf_counter()
        optimizer.step()
        found.append(time.perf_counter() - began)
    return statistics.median(found[1:])


def _generation_seconds(model: Any, tokenizer: Any, work: Workload) -> float:
    ids = work.ids[:, : -work.completion]
    found = []
    for _ in range(2):
        began = time.perf_counter()
        with torch.no_grad():
            model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                max_new_tokens=work.completion,
                min_new_tokens=work.completion,
                pad_token_id=tokenizer.pad_token_id,
            )
        found.append(time.perf_counter() - began)
    return statistics.median(found)
