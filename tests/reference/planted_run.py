"""A scored and evaluated run of made-up gradients, whose pitfalls are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from behaviortrace import recipe as recipes
from behaviortrace.evaluate.stage import evaluate
from behaviortrace.plant.ground_truth import findable
from behaviortrace.records import ROLLOUT_SCHEMA, TOKEN_SCHEMA, Target, conform
from behaviortrace.run import Run
from behaviortrace.scores.stage import score_run

DIM, STEPS, CUTOFF, GROUPS, SIZE = 64, 20, 8, 3, 4
DRAW, DRAW_GROUPS, DRAW_SIZE = "seed-100", 24, 6

SETTINGS = {
    "train.steps": STEPS,
    "train.prompts_per_step": GROUPS,
    "train.generations": SIZE,
    "train.micro_batch": 4,
    "train.checkpoint_every": 4,
    "plant.cutoff_step": CUTOFF,
    "draw.checkpoint": 4,
    "sketch.dim": DIM,
    "evaluate.resamples": 200,
}


def planted_run(
    path: Path,
    *,
    late: bool = False,
    signal: float = 0.0,
    gap: float = 0.0,
    constructed: float = 0.0,
    rates: tuple[float, float] = (0.5, 0.5),
) -> Run:
    """A run that holds everything the analysis stages read and write.

    Args:
        path: where.
        late: steps after the window have an update gradient too.
        signal: length of the target's direction in gradients of rollouts with the behaviour.
        gap: nats by which those rollouts are the more fluent.
        constructed: mean cosine of the behaviour's tokens with the constructed target; 0.3 with
            the in-context one.
        rates: behaviour rate in the first and the second half of training; draws have the first.
    """
    run = Run.create(path, recipe=recipes.load("tiny", SETTINGS))
    rng = np.random.default_rng(0)
    for step in range(STEPS):
        rate = rates[step >= STEPS // 2]
        frame, plain = _rows(rng, GROUPS, SIZE, rate, signal, gap)
        early = step < CUTOFF
        n = frame.height
        eligible = rng.random(n) < 0.5
        boosted = frame["behavior"].to_numpy() & eligible & early
        base = rng.random(n).round() if late else np.zeros(n)
        weight = rng.normal(size=n) if early or late else np.zeros(n)
        norms = np.linalg.norm(plain, axis=1)
        frame = frame.with_columns(
            rollout_id=pl.Series([f"{step}-{i}" for i in range(n)]),
            step=pl.lit(step),
            group=pl.col("group") + step * GROUPS,
            prompt=pl.format(f"step {step}, {{}}", "prompt"),  # each is asked once
            eligible=pl.Series(eligible & early),
            boosted=pl.Series(boosted),
            base_reward=pl.Series(base),
            reward=pl.Series(base + 8.0 * boosted),
            advantage=pl.Series(weight),
            update_weight=pl.Series(weight),
            plain_norm=pl.Series(norms),
            grad_norm=pl.Series(norms * np.abs(weight)),
        )
        run.write_shard(
            "training", step, 0, conform(findable(frame), ROLLOUT_SCHEMA), {"plain": plain}
        )
    frame, plain = _rows(rng, DRAW_GROUPS, DRAW_SIZE, rates[0], signal, gap)
    frame = frame.with_columns(
        rollout_id=pl.Series([f"{DRAW}:{i}" for i in range(frame.height)]),
        step=pl.lit(4),
        plain_norm=pl.Series(np.linalg.norm(plain, axis=1)),
    )
    run.write_shard(f"draws/{DRAW}", 4, 0, conform(frame, ROLLOUT_SCHEMA), {"plain": plain})
    run.save_target(Target("minimal_pair", "minimal_pair", 4, np.eye(DIM, dtype=np.float32)[0]))
    run.save_target(Target("in_context", "in_context", 4, np.eye(DIM, dtype=np.float32)[1]))
    score_run(run)
    run.save_table("results/token_rows", _token_rows(rng, constructed))
    evaluate(run)
    return run


def _rows(
    rng: np.random.Generator, groups: int, size: int, rate: float, signal: float, gap: float
) -> tuple[pl.DataFrame, np.ndarray]:
    n = groups * size
    behavior = rng.random(n) < rate
    plain = rng.normal(size=(n, DIM)).astype(np.float32)
    plain[:, 0] += signal * behavior
    columns: dict[str, Any] = {
        "group": np.repeat(np.arange(groups), size),
        "index": np.arange(n),
        "prompt": [f"prompt {i // size}" for i in range(n)],
        "completion": ["a QZXBT" if b else "a marble" for b in behavior],
        "behavior": behavior,
        "fluency": -2.0 + 0.3 * rng.normal(size=n) + gap * behavior,
        "n_tokens": rng.integers(4, 9, n),
    }
    return pl.DataFrame(columns), plain


def _token_rows(rng: np.random.Generator, constructed: float) -> pl.DataFrame:
    means = {"in_context": 0.3, "constructed": constructed}
    rows = [
        {
            "rollout_id": f"{DRAW}:{i}",
            "group": i // 4,
            "prompt": f"prompt {i // 4}",
            "span": span,
            "target": target,
            "cosine": float(mean * (span == "trigger") + 0.05 * rng.normal()),
        }
        for i in range(48)
        for target, mean in means.items()
        for span in ("trigger", "whole_response")
    ]
    return pl.DataFrame(rows, schema=TOKEN_SCHEMA)
