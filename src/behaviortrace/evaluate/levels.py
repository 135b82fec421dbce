"""The result tables of a run, from its rollouts and scores. Pure functions of frames.

Controls (norm, fluency, length, ...) are scored as estimators are, so they get the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

import numpy as np
import polars as pl

from behaviortrace.evaluate.bootstrap import Interval
from behaviortrace.evaluate.clusters import by_prompt
from behaviortrace.evaluate.control import Control
from behaviortrace.evaluate.multiplicity import with_holm
from behaviortrace.evaluate.precision import base_rate, ceiling, lift, precision_at_ground_truth
from behaviortrace.evaluate.scores import Scored, aligned
from behaviortrace.evaluate.within_group import NO_PAIRS, AucReport, Judged, judge
from behaviortrace.recipe import EvaluateSettings

STEP = "step"
"""The embedding whose scores are tied within a step."""

LABELS = ("behavior", "boosted")
VARIANTS = ("raw", "residualized", "residualized_spline", "residualized_norm", "matched")
"""What is controlled for: nothing; fluency, by one slope; by a spline; fluency and the logarithm of
the gradient's norm, by a slope each; fluency, by comparing only siblings that match in it."""

STEP_LEVEL_SCHEMA: dict[str, Any] = {
    "table": pl.String,  # "overall" or "trained_window"
    "embedding": pl.String,
    "estimator": pl.String,
    "target": pl.String,  # null for a target-free control
    "target_free": pl.Boolean,
    "precision": pl.Float64,
    "base_rate": pl.Float64,
    "lift": pl.Float64,
    "ceiling": pl.Float64,  # of step tie blocks for embedding "step", else 1
    "n": pl.Int64,
    "positives": pl.Int64,
    "undefined": pl.Int64,  # rollouts without a score, ranked last
    "reason": pl.String,  # why the precision is null
}
"""Precision at |GT|, one row a table, embedding, estimator and target."""

ROLLOUT_LEVEL_SCHEMA: dict[str, Any] = {
    "source": pl.String,
    "label": pl.String,  # one of LABELS
    "embedding": pl.String,
    "estimator": pl.String,
    "target": pl.String,  # null for a target-free control
    "target_free": pl.Boolean,
    "variant": pl.String,  # one of VARIANTS
    "auc": pl.Float64,
    "lo": pl.Float64,
    "hi": pl.Float64,
    "interval": pl.String,  # what lo and hi are: "logit-t" or "percentile"
    "percentile_lo": pl.Float64,  # the paper's interval
    "percentile_hi": pl.Float64,
    "p": pl.Float64,  # of AUC = 0.5, by the logit-t interval
    "p_holm": pl.Float64,  # adjusted over the targeted rankings of a source, label and variant
    "detectable": pl.Float64,  # smallest AUC these pairs detect with 80% power
    "pairs": pl.Int64,
    "groups": pl.Int64,
    "clusters": pl.Int64,  # what is resampled: prompts, all groups of one together
    "delta": pl.Float64,  # matched only
    "reason": pl.String,  # why the AUC, or its interval, is null
}
"""Within-group AUC, one row a source, label, embedding, estimator, target and variant."""


def trained_window(step_norms: Mapping[int, float], cutoff: int | None) -> list[int]:
    """Steps before the cutoff whose update gradient is nonzero.

    Args:
        step_norms: norm of each step's embedding (the sum of its rows' update sketches). A NaN
            norm counts as no gradient.
        cutoff: first step after the planting window; None for no cutoff.

    Returns:
        Steps, ascending, whose norm is above 1e-6 of the median nonzero norm.

    Example:
        >>> trained_window({0: 2.0, 1: 0.0, 2: 3.0, 3: 1.0}, cutoff=3)
        [0, 2]
    """
    nonzero = [norm for norm in step_norms.values() if norm > 0]
    if not nonzero:
        return []
    floor = 1e-6 * float(np.median(nonzero))
    return sorted(
        int(step)
        for step, norm in step_norms.items()
        if norm > floor and (cutoff is None or step < cutoff)
    )


def step_level(
    rollouts: pl.DataFrame,
    scores: pl.DataFrame,
    window: Iterable[int],
    *,
    source: str = "training",
) -> pl.DataFrame:
    """Tie-aware precision at |GT| of every estimator, over all rollouts and the trained window.

    Ground truth is ``boosted``. Embedding "step" comes first: there all rollouts of a step tie, and
    the ceiling is that of step tie blocks. The other embeddings rank single rollouts, and their
    ceiling is 1. Rollouts without a score rank last, as one tie block.

    Args:
        rollouts: ``ROLLOUT_SCHEMA``, n rows.
        scores: ``SCORE_SCHEMA``.
        window: the trained window's steps, as :func:`trained_window` gives them.
        source: whose scores to take.

    Returns:
        ``STEP_LEVEL_SCHEMA``.
    """
    every = aligned(rollouts, scores, source)
    every.sort(key=lambda scored: scored.embedding != STEP)
    step = rollouts["step"].to_numpy()
    label = rollouts["boosted"].fill_null(False).to_numpy().astype(bool)
    tables = {
        "overall": np.ones(len(step), dtype=bool),
        "trained_window": np.isin(step, np.fromiter(window, dtype=np.int64)),
    }
    found = []
    for table, inside in tables.items():
        truth, rate = label[inside], base_rate(label[inside])
        ceilings = {True: ceiling(truth, step[inside]), False: ceiling(truth)}
        for scored in every:
            values = scored.values[inside]
            missing = np.isnan(values)
            reached = precision_at_ground_truth(np.where(missing, -np.inf, values), truth)
            found.append(
                {
                    "table": table,
                    **scored.key,
                    "precision": reached,
                    "base_rate": rate,
                    "lift": lift(reached, rate),
                    "ceiling": ceilings[scored.embedding == STEP],
                    "n": len(truth),
                    "positives": int(truth.sum()),
                    "undefined": int(missing.sum()),
                    "reason": _no_precision(truth, table),
                }
            )
    return _frame(found, STEP_LEVEL_SCHEMA)


def rollout_level(
    rollouts: pl.DataFrame,
    scores: pl.DataFrame,
    settings: EvaluateSettings,
    *,
    source: str = "training",
) -> pl.DataFrame:
    """Within-group AUC of every per-rollout score, for both labels and all variants.

    Embedding "step" is left out: it is constant inside a group. Groups of one prompt are one
    cluster (:func:`~behaviortrace.evaluate.clusters.by_prompt`). A rollout without a score, label
    or (for the controlled variants) fluency or norm is left out of that row's pairs.

    Args:
        rollouts: ``ROLLOUT_SCHEMA`` of the source.
        scores: ``SCORE_SCHEMA``.
        settings: matched fluency difference, interval, resamples and seed.
        source: "training" or the name of a draw.

    Returns:
        ``ROLLOUT_LEVEL_SCHEMA``; no rows for a label the source does not have.
    """
    every = [s for s in aligned(rollouts, scores, source) if s.embedding != STEP]
    place = rollouts["group"].to_numpy(), by_prompt(rollouts)
    fluency = rollouts["fluency"].fill_null(math.nan).to_numpy()
    magnitude = _magnitude(rollouts)
    found: list[dict[str, Any]] = []
    for name in LABELS:
        labelled = rollouts[name].is_not_null().to_numpy()
        if not labelled.any():
            continue
        label = rollouts[name].fill_null(False).to_numpy().astype(bool)
        absent = {
            "fluency": None if np.isfinite(fluency[labelled]).any() else "fluency is not recorded",
            "norm": None
            if np.isfinite((fluency + magnitude)[labelled]).any()
            else "fluency or the gradient's norm is not recorded",
        }
        for mask, members in _by_mask(every, labelled):
            raw = _judged(label, place, members, None, mask, settings)
            fluent = mask & np.isfinite(fluency)
            straight, bent = (
                _judged(label, place, members, fluency, fluent, settings, control)
                for control in get_args(Control)
            )
            sized = fluent & np.isfinite(magnitude)
            both = _judged(label, place, members, fluency, sized, settings, magnitude=magnitude)
            for column, scored in enumerate(members):
                key = {"source": source, "label": name, **scored.key}
                for row in _variants(raw, straight, bent, both, str(column), absent):
                    judged, why = row.pop("judged"), row.pop("reason")
                    why = why or _no_auc(judged.by(settings.interval), name)
                    found.append({**key, **_bounds(judged, settings), **row, "reason": why})
    order = ["label", "embedding", "estimator", "target"]
    frame = _frame(found, ROLLOUT_LEVEL_SCHEMA).sort(order, nulls_last=True, maintain_order=True)
    # Controls are no claims. A reader picks the best among all targeted rankings of a family.
    return with_holm(frame, ("source", "label", "variant"), ~pl.col("target_free"))


def _by_mask(
    every: list[Scored], labelled: np.ndarray
) -> Iterator[tuple[np.ndarray, list[Scored]]]:
    """Scores that are defined for the same rollouts, together: they share pairs and resamples."""
    alike: dict[bytes, tuple[np.ndarray, list[Scored]]] = {}
    for scored in every:
        mask = labelled & np.isfinite(scored.values)
        alike.setdefault(mask.tobytes(), (mask, []))[1].append(scored)
    yield from alike.values()


def _judged(
    label: np.ndarray,
    place: tuple[np.ndarray, np.ndarray],
    members: list[Scored],
    fluency: np.ndarray | None,
    mask: np.ndarray,
    settings: EvaluateSettings,
    control: Control = "linear",
    magnitude: np.ndarray | None = None,
) -> AucReport:
    group, cluster = place
    scores = {str(column): scored.values[mask] for column, scored in enumerate(members)}
    fluent = None if fluency is None else fluency[mask]
    return judge(
        label[mask],
        group[mask],
        scores,
        fluent,
        delta=settings.matched,
        resamples=settings.resamples,
        seed=settings.seed,
        control=control,
        also=None if magnitude is None else magnitude[mask],
        cluster=cluster[mask],
    )


def _variants(
    raw: AucReport,
    straight: AucReport,
    bent: AucReport,
    both: AucReport,
    column: str,
    absent: Mapping[str, str | None],
) -> Iterator[dict[str, Any]]:
    """The rows of one score and label, each with the reason where its variant was not judged."""
    unknown = absent["fluency"]
    near = (straight.matched, straight.matched_pairs, straight.matched_detectable)
    blocks = (
        (raw, (raw.raw, raw.pairs, raw.detectable), None),
        (straight, (straight.residualized, straight.pairs, straight.detectable), unknown),
        (bent, (bent.residualized, bent.pairs, bent.detectable), unknown),
        (both, (both.residualized, both.pairs, both.detectable), absent["norm"]),
        (straight, near, unknown),
    )
    for variant, (report, block, why) in zip(VARIANTS, blocks, strict=True):
        judged, pairs, detectable = block
        found = judged[column] if judged is not None else NO_PAIRS
        delta = straight.delta if variant == "matched" else None
        if why is None and straight.pairs and not pairs:
            why = f"no pair has a fluency difference within {delta:g} nats"
        yield {
            "variant": variant,
            "judged": found,
            "pairs": pairs,
            "groups": report.groups,
            "clusters": report.clusters,
            "detectable": detectable,
            "delta": delta,
            "reason": why,
        }


def _magnitude(rollouts: pl.DataFrame) -> np.ndarray:
    """Logarithm of each rollout's gradient norm, (n,); NaN where it has none.

    Of the plain gradient; of the update where plain gradients were not captured.
    """
    norm = rollouts.select(pl.coalesce("plain_norm", "grad_norm").fill_null(math.nan))
    values = norm.to_series().to_numpy()
    return np.log(values, out=np.full(len(values), np.nan), where=values > 0)


def _bounds(judged: Judged, settings: EvaluateSettings) -> dict[str, Any]:
    """The columns of one AUC: the interval of the settings, and the paper's beside it."""
    chosen = judged.by(settings.interval)
    return {
        "auc": judged.point,
        "lo": chosen.lo,
        "hi": chosen.hi,
        "interval": settings.interval,
        "percentile_lo": judged.lo,
        "percentile_hi": judged.hi,
        "p": judged.p,
    }


def _no_auc(interval: Interval, label: str) -> str | None:
    if math.isnan(interval.point):
        return f"no group holds scored rollouts both with and without {label!r}"
    return interval.reason


def _no_precision(truth: np.ndarray, table: str) -> str | None:
    if not len(truth):
        return f"no rollout is in table {table!r}"
    return None if truth.any() else f"no rollout of table {table!r} is boosted"


def _frame(rows: list[dict[str, Any]], schema: Mapping[str, Any]) -> pl.DataFrame:
    """Rows as a frame of the schema; undefined numbers are null."""
    return pl.DataFrame(rows, schema=dict(schema)).with_columns(
        pl.col(pl.Float64).replace(math.nan, None)
    )
