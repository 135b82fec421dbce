"""What capture costs in LoRA training, where only the adapters' gradients are taken."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from torch import nn

from behaviortrace.bench.arms import Traced, plain
from behaviortrace.bench.timing import interleaved, paired_ratio
from behaviortrace.bench.workload import Workload
from behaviortrace.capture.objective import fused_head
from behaviortrace.capture.sketch import CountSketch

RANK = 16


def bench_lora(model: nn.Module, work: Workload, dim: int, rounds: int) -> dict[str, Any] | None:
    """Forward and backward of LoRA training, traced over plain.

    Adapters of rank 16 on every linear module but the head; the base is frozen.

    Args:
        model: a Hugging Face causal LM, which gets the adapters for good.
        work: the rollouts.
        dim: of the sketch.
        rounds: timed rounds, after one untimed.

    Returns:
        ``ratio``, ``rank``, ``parameters`` that are trained, ``plain`` and ``traced`` seconds of
        every round; None where PEFT is not installed.
    """
    if importlib.util.find_spec("peft") is None:
        return None
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted: Any = get_peft_model(model, config)
    adapted.train()
    with fused_head(model, 1.0):
        own = Workload(adapted, work.ids, work.advantages, work.completion, work.micro_batch)
        arms: dict[str, Callable[[], Any]] = {
            "plain": lambda: plain(own),
            "traced": Traced(own, CountSketch(dim)),
        }
        seconds = interleaved(arms, rounds)
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    ratio = paired_ratio(seconds["traced"], seconds["plain"])
    return {"ratio": ratio, "rank": RANK, "parameters": trained, **seconds}
