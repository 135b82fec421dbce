"""The examination: coverage, exactness of the capture, fidelity of the sketch, token sums."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from behaviortrace.capture import replay
from behaviortrace.capture.coverage import cover
from behaviortrace.capture.directional import token_scores
from behaviortrace.capture.layout import Layout
from behaviortrace.capture.line import Direction
from behaviortrace.doctor.certificate import certificate
from behaviortrace.doctor.exact import exact_gradients
from behaviortrace.doctor.modules import coverage
from behaviortrace.doctor.subject import FP32, Subject, largest_difference
from behaviortrace.doctor.verdicts import verdicts
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.train.progress import Clock, Progress

TOKENS = 0.02
"""Largest difference of token sums from exact products that passes, in share of the largest."""

DEVIATIONS = 4.5
"""Furthest that a sketched product may lie from a token sum, in its own standard deviations."""


def examine(subject: Subject, progress: Progress | None = None) -> dict[str, Any]:
    """Examine capture on a subject.

    The exact gradient of every rollout is taken by plain autograd, with nothing of the capture.
    Against it stand: the parameters that capture rules cover; the sketches that the capture takes
    of the same rollouts, first against sketches of the exact gradients (so that the hash drops
    out), then as inner products and cosines against the exact ones; and the mean of each rollout's
    token scores, which forward passes alone give, against the exact inner product with the target.
    That target is the difference of two halves of the rollouts.

    Args:
        subject: see :mod:`behaviortrace.doctor.subject`.
        progress: called with the stages "exact", "capture" and "tokens".

    Returns:
        ``checkpoint``, ``sketch``, ``rollouts``, ``tokens``, ``trainable`` (coordinates); the
        sections ``coverage`` (:func:`~behaviortrace.doctor.modules.coverage`, and ``recorded``:
        the uncovered parameters named in the run's manifest), ``capture``, ``certificate``
        (:func:`~behaviortrace.doctor.certificate.certificate` over covered parameters, and
        ``rms_cosine_error_whole`` against whole gradients), ``token_sums`` and ``stored``;
        ``verdicts``, and ``passed``: none failed.

    Raises:
        BehaviorTraceError: an empty rollout, or one whose gradient is zero.
    """
    rows, sketch = subject.rows, subject.sketch
    weights = [1.0 if i % 2 else -1.0 for i in range(len(rows))]
    layout = Layout(subject.model)
    everything = [slot.name for slot in layout.slots]
    uncovered = cover(subject.model, layout, subject.recorded or ()).uncovered
    exact = exact_gradients(
        subject.model,
        rows,
        sketch,
        weights=weights,
        pad_token_id=subject.pad_token_id,
        uncovered=uncovered,
        temperature=subject.temperature,
        progress=progress,
    )
    covered = np.array([name not in uncovered for name in everything])
    if not covered.any():
        raise BehaviorTraceError(f"no capture rule covers any parameter, such as {uncovered[0]!r}")
    whole, seen = exact.grams.sum(0), exact.grams[covered].sum(0)
    _need_gradients(subject, seen)
    clock = Clock(progress, "capture", len(rows))
    captured = replay(
        subject.model,
        rows,
        sketch,
        pad_token_id=subject.pad_token_id,
        temperature=subject.temperature,
        micro_batch=subject.micro_batch,
        allow_uncovered=uncovered,
        progress=clock.at,
    )
    fidelity = certificate(seen, captured.plain)
    found: dict[str, Any] = {
        "checkpoint": subject.step,
        "sketch": sketch.spec(),
        "rollouts": len(rows),
        "names": list(subject.names),
        "tokens": sum(len(completion) for _, completion in rows),
        "trainable": layout.size,
        "coverage": {
            **coverage(subject.model, exact.grams, uncovered),
            "bar": subject.coverage,
            "recorded": None if subject.recorded is None else list(subject.recorded),
        },
        "capture": {
            "relative_difference": largest_difference(captured.plain, exact.sketches),
            # Where gradients are never formed, their norms are not known but by the sketch.
            "norm_difference": None
            if sketch.hash == "kronecker"
            else float(np.abs(captured.norms / np.sqrt(np.diag(seen)) - 1).max()),
            "bar": FP32,
        },
        "certificate": {
            **fidelity,
            "rms_cosine_error_whole": certificate(whole, captured.plain)["rms_cosine_error"],
        },
        "token_sums": _token_sums(
            subject, seen, exact.direction, np.array(weights), captured.plain, progress
        ),
        "stored": subject.stored,
    }
    judged = verdicts(found)
    found["verdicts"] = [dataclasses.asdict(verdict) for verdict in judged]
    found["passed"] = all(verdict.status != "fail" for verdict in judged)
    return found


def _need_gradients(subject: Subject, gram: np.ndarray) -> None:
    still = [name for name, size in zip(subject.names, np.diag(gram), strict=True) if not size > 0]
    if still:
        raise BehaviorTraceError(
            f"rollout {still[0]} has no gradient at all in the covered parameters, so it has no "
            "cosine; give other rollouts or a model that trains"
        )


def _token_sums(
    subject: Subject,
    gram: np.ndarray,
    direction: Direction,
    weights: np.ndarray,
    sketches: np.ndarray,
    progress: Progress | None,
) -> dict[str, Any]:
    """Means of token scores against exact and sketched inner products with the same target."""
    clock = Clock(progress, "tokens", 1)
    try:
        scores = token_scores(
            subject.model,
            subject.rows,
            direction,
            temperature=subject.temperature,
            pad_token_id=subject.pad_token_id,
            micro_batch=subject.micro_batch,
        )
    except BehaviorTraceError as error:
        return {"reason": str(error)}
    finally:
        clock.at(1)
    means = np.array([one.mean() for one in scores])
    exact = gram @ weights
    rows = sketches.astype(np.float64)
    sketched = rows @ (weights @ rows)
    # Variance of a sketched product of a and b: (|a|^2 |b|^2 + <a, b>^2) / dim.
    deviation = np.sqrt((np.diag(gram) * (weights @ exact) + exact**2) / subject.sketch.dim)
    return {
        "relative_difference": float(np.abs(means - exact).max() / np.abs(exact).max()),
        "bar": TOKENS,
        "deviations": float((np.abs(sketched - means) / deviation).max()),
        "deviations_bar": DEVIATIONS,
        "rank_correlation": float(spearmanr(means, sketched).statistic),
    }
