"""Which rows of the result tables a line of the checklist, or a figure, is about."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import polars as pl

TRAINING = "training"
DIRECTION = {"embedding": "plain_centered", "estimator": "gas", "target": "minimal_pair"}
"""The pre-registered rollout-level score: GAS, group-centred, with the minimal-pair target."""

Row = Mapping[str, Any]


def finite(value: Any) -> float | None:
    """The value as a float; None where it is missing, NaN, infinite or not a number."""
    if value is None or isinstance(value, bool | str):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def where(frame: pl.DataFrame | None, **conditions: Any) -> pl.DataFrame | None:
    """The rows that equal every condition; None where there is no frame or no such row."""
    if frame is None:
        return None
    found = frame.filter([pl.col(column) == value for column, value in conditions.items()])
    return found if found.height else None


def sources(rollout_level: pl.DataFrame | None) -> list[str]:
    """Sources of a rollout-level table: draws in their own order, then training."""
    if rollout_level is None:
        return []
    names = rollout_level["source"].drop_nulls().unique(maintain_order=True).to_list()
    return [n for n in names if n != TRAINING] + [n for n in names if n == TRAINING]


def decisive(rollout_level: pl.DataFrame | None) -> list[str]:
    """The sources a rollout-level verdict rests on: the fresh draws, else training.

    The pre-registered test is on draws (paper, Section 4.2): training rollouts come from a policy
    that moves under them, so they decide only where nothing was drawn.
    """
    names = sources(rollout_level)
    return [n for n in names if n != TRAINING] or names


def direction(rollout_level: pl.DataFrame | None, source: str, variant: str) -> Row | None:
    """The direction row of a source ("raw", "residualized" or "matched"), or None."""
    return _first(
        where(rollout_level, source=source, label="behavior", variant=variant, **DIRECTION)
    )


def control(
    rollout_level: pl.DataFrame | None, source: str, variant: str, estimator: str
) -> Row | None:
    """The row of a target-free control, on the plain embedding where it was run on several."""
    found = where(
        rollout_level, source=source, label="behavior", variant=variant, estimator=estimator
    )
    if found is None:
        return None
    plain = where(found, embedding="plain")
    return _first(plain if plain is not None else found)


def over_prompts(row: Row | None) -> str:
    """What a row's interval is over where prompts repeat, as " over 26 prompts"; else nothing."""
    groups, clusters = (row.get(column) if row else None for column in ("groups", "clusters"))
    if clusters is None or clusters == groups:
        return ""
    return f" over {clusters} prompt{'' if clusters == 1 else 's'}"


def family(rollout_level: pl.DataFrame | None, source: str, variant: str) -> dict[str, int] | None:
    """How many targeted rankings of a source were judged, and stand above 0.5 after Holm.

    None where no p-value was adjusted.
    """
    found = where(
        rollout_level, source=source, label="behavior", variant=variant, target_free=False
    )
    if found is None or "p_holm" not in found.columns:
        return None
    tested = found.filter(pl.col("p_holm").is_not_null())
    stand = tested.filter((pl.col("p_holm") <= 0.05) & (pl.col("auc") > 0.5))
    return {"judged": tested.height, "above": stand.height} if tested.height else None


def step_row(step_level: pl.DataFrame | None, table: str, estimator: str) -> Row | None:
    """The step-level row of an estimator in a table ("overall" or "trained_window"), or None."""
    return _first(where(step_level, table=table, estimator=estimator))


def best_targeted(step_level: pl.DataFrame | None, table: str) -> Row | None:
    """The targeted estimator with the highest defined precision in a table, or None."""
    found = where(step_level, table=table, target_free=False)
    if found is None:
        return None
    defined = found.filter(pl.col("precision").is_finite())
    return _first(defined.sort("precision", descending=True, maintain_order=True))


def token_row(token_level: pl.DataFrame | None, span: str, target: str) -> Row | None:
    """The token-level row of a span and a target, or None."""
    return _first(where(token_level, span=span, target=target))


def _first(frame: pl.DataFrame | None) -> Row | None:
    return frame.row(0, named=True) if frame is not None and frame.height else None
