"""Measure a checkpoint on held-out prompts."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from behaviortrace.plant import behaviors
from behaviortrace.plant.prompts import PromptSet
from behaviortrace.recipe import Recipe
from behaviortrace.records import PROBE_SCHEMA
from behaviortrace.train.generate import sample
from behaviortrace.train.progress import Progress, silent

_STREAM = 1  # keeps the probes' seeds apart from other uses of (seed, step)


def evaluate_probes(
    model: Any,
    tokenizer: Any,
    prompts: PromptSet,
    recipe: Recipe,
    step: int,
    progress: Progress | None = None,
) -> pl.DataFrame:
    """One response to every probe and control, sampled as in training.

    Args:
        model: the policy after ``step`` steps.
        tokenizer: its tokenizer.
        prompts: their ``probes`` and ``controls`` are used.
        recipe: temperature, length, behaviour and seed. Each step has a seed of its own.
        step: of the checkpoint.
        progress: called with the stage "probes".

    Returns:
        A frame of ``PROBE_SCHEMA``, one row a response.
    """
    report = progress or silent
    kinds = ["probe"] * len(prompts.probes) + ["control"] * len(prompts.controls)
    texts = [*prompts.probes, *prompts.controls]
    report("probes", 0, len(texts), None)
    samples = sample(
        model,
        tokenizer,
        texts,
        temperature=recipe.train.temperature,
        max_new_tokens=recipe.train.max_completion_length,
        seed=int(np.random.SeedSequence([recipe.seed, step, _STREAM]).generate_state(1)[0]),
        batch=recipe.draw.batch,
    )
    report("probes", len(texts), len(texts), 0.0)
    behavior = behaviors.build(recipe.behavior)
    rows = {
        "step": [step] * len(texts),
        "kind": kinds,
        "prompt": texts,
        "completion": [s.completion for s in samples],
        "behavior": [behavior.shows(s.completion) for s in samples],
    }
    return pl.DataFrame(rows, schema=PROBE_SCHEMA)
