"""The token level: does the gradient of the behaviour's own tokens point where the targets do?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from behaviortrace.draws.checkpoint import Loader, need_recipe, open_policy
from behaviortrace.draws.stage import draw_name
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant import behaviors
from behaviortrace.records import TOKEN_SCHEMA, empty
from behaviortrace.targets.spans import behavior_mask

if TYPE_CHECKING:
    from behaviortrace.run import Run
    from behaviortrace.train.progress import Progress

TRIGGER, WHOLE = "trigger", "whole_response"
IN_CONTEXT = "in_context"
STORED = ("constructed", "minimal_pair")
"""Stored targets that are compared as they are; the in-context one is made anew, cross-fitted."""

LIMIT = 160
"""Responses compared unless told otherwise; the paper has as many."""


def token_rows(
    run: Run,
    draw: str | None = None,
    *,
    limit: int | None = LIMIT,
    under: str = "results",
    loader: Loader | None = None,
    progress: Progress | None = None,
) -> pl.DataFrame:
    """Compare a draw's responses with the targets, token span by token span, and store the table.

    For each response that shows the behaviour: the gradient of its behaviour tokens alone, and its
    plain gradient, each against "constructed", "minimal_pair" and "in_context". The in-context
    target is the mean gradient of the behaviour tokens over responses to *other* prompts.

    Stored as ``results/token_rows``; ``results/token_notes`` tells the draw, the numbers of
    responses and prompts, and the reason where the table is empty.

    Args:
        run: a run with a draw and targets.
        draw: name of the draw; the first the recipe lists (or else the first stored) where None.
        limit: compare at most so many responses, spread evenly over the draw; None for all.
        under: where to store both, so that further draws do not replace the first one's.
        loader: how to load a checkpoint folder; by default as any model source is loaded.
        progress: called with the stage "tokens".

    Returns:
        ``TOKEN_SCHEMA``; empty where fewer than two prompts have the behaviour.

    Raises:
        BehaviorTraceError: no draw, or no checkpoint.
    """
    from behaviortrace.train.progress import Clock

    recipe = need_recipe(run)
    name = draw or _first_draw(run)
    rollouts = run.rollouts(name)
    shown = np.flatnonzero(rollouts["behavior"].fill_null(False).to_numpy())
    chosen = shown if limit is None else _spread(shown, limit)
    rows = rollouts[chosen]
    notes = {
        "draw": name,
        "responses": len(chosen),
        "responses_with_behavior": len(shown),
        "prompts": rows["prompt"].n_unique(),
        "reason": None,
    }
    if rows["prompt"].n_unique() < 2:
        notes["reason"] = (
            f"{rows['prompt'].n_unique()} prompts of draw {name!r} have a response with the "
            "behaviour; a cross-fitted target needs two"
        )
        return _store(run, under, empty(TOKEN_SCHEMA), notes)
    clock = Clock(progress, "tokens", 1)
    policy = open_policy(run, int(rows["step"][0]), loader)
    behavior = behaviors.build(recipe.behavior)
    ids = rows["completion_ids"].to_list()
    masks = [behavior_mask(policy.tokenizer, one, behavior) for one in ids]
    pairs = list(zip(rows["prompt_ids"].to_list(), ids, strict=True))
    spans = policy.gradients(pairs, masks).plain
    whole = run.sketches("plain", draw=name)[chosen]
    vectors = _stored(run, policy.step)
    clock.at(1)
    return _store(run, under, compare(rows, spans, whole, vectors), notes)


def compare(
    rows: pl.DataFrame,
    spans: np.ndarray,
    whole: np.ndarray,
    targets: dict[str, np.ndarray],
) -> pl.DataFrame:
    """Cosines of spans and whole responses with targets, the in-context one cross-fitted by prompt.

    Args:
        rows: n responses with the columns rollout_id, group and prompt.
        spans: (n, dim), gradient of each response's behaviour tokens.
        whole: (n, dim), gradient of each whole response.
        targets: name -> (dim,) of the targets that contain none of the responses.

    Returns:
        ``TOKEN_SCHEMA``, 2 n rows a target; NaN where a cosine is undefined.
    """
    directions = {IN_CONTEXT: leave_prompt_out(rows["prompt"].to_numpy(), spans), **targets}
    frames = [
        rows.select(
            "rollout_id",
            "group",
            "prompt",
            span=pl.lit(span),
            target=pl.lit(name),
            cosine=pl.Series(cosine(sketches, direction)),
        )
        for span, sketches in ((TRIGGER, spans), (WHOLE, whole))
        for name, direction in directions.items()
    ]
    return pl.concat(frames).select(pl.col(c).cast(dtype) for c, dtype in TOKEN_SCHEMA.items())


def leave_prompt_out(prompt: np.ndarray, sketches: np.ndarray) -> np.ndarray:
    """For each row, the mean sketch of the rows of all other prompts.

    Args:
        prompt: (n,) prompt of each row.
        sketches: (n, dim).

    Returns:
        (n, dim) float64; NaN where there is no other prompt.
    """
    _, row = np.unique(prompt.astype(str), return_inverse=True)
    sums = np.zeros((row.max(initial=-1) + 1, sketches.shape[1]))
    np.add.at(sums, row, sketches)
    others = len(row) - np.bincount(row)
    rest = np.full_like(sums, np.nan)
    np.divide(sums.sum(axis=0) - sums, others[:, None], out=rest, where=others[:, None] > 0)
    return rest[row]


def cosine(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Row-wise cosine, (n,) float64; NaN where a vector is zero.

    Args:
        left: (n, dim).
        right: (n, dim), or (dim,) for all rows.
    """
    left, right = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
    size = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=-1)
    undefined = np.full(len(left), np.nan)
    return np.divide(np.vecdot(left, right), size, out=undefined, where=size > 0)


def _first_draw(run: Run) -> str:
    draws = run.draws()
    if not draws:
        raise BehaviorTraceError(
            f"{run.path} has no draw to compare tokens of; make one with "
            f"'behaviortrace draw {run.path}'"
        )
    listed = [draw_name(seed) for seed in need_recipe(run).draw.seeds]
    return next((name for name in listed if name in draws), draws[0])


def _spread(rows: np.ndarray, limit: int) -> np.ndarray:
    """At most ``limit`` of the rows, evenly spaced."""
    if len(rows) <= limit:
        return rows
    return rows[np.arange(limit) * len(rows) // limit]


def _stored(run: Run, step: int) -> dict[str, np.ndarray]:
    """The stored targets at the draw's checkpoint, by name."""
    return {
        name: target.vector
        for name, series in run.targets().items()
        for target in series
        if name in STORED and target.step == step
    }


def _store(run: Run, under: str, table: pl.DataFrame, notes: dict[str, object]) -> pl.DataFrame:
    run.save_table(f"{under}/token_rows", table)
    run.save_json(f"{under}/token_notes", notes)
    return table
