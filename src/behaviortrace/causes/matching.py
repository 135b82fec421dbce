"""Control sets: as many rollouts that are alike but for being named.

A set that an estimator names may do harm when it is removed because its gradients are large, its
texts fluent or its steps early. Its matched set has the same sizes, fluencies and steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from behaviortrace.errors import BehaviorTraceError

COVARIATES = ("log_norm", "fluency", "step")
"""What is matched on: log gradient norm of the update, fluency, and step."""

_NEAREST = 3  # one of so many nearest is taken by chance, so that sets differ
_TRAINED = 1e-6  # of the median nonzero norm; a gradient below it trained nothing
_APART = 100.0  # distance, in standard deviations, between rollouts that trained and that did not


@dataclass(frozen=True)
class Control:
    """A control set.

    Attributes:
        ids: sorted ids, as many as the set it is compared with.
        balance: covariate -> difference of the means (removed minus control) in standard deviations
            of all rollouts that trained; None where a covariate does not vary.
    """

    ids: tuple[str, ...]
    balance: dict[str, float | None]


def matched(rollouts: pl.DataFrame, removed: tuple[str, ...], seed: int) -> Control:
    """A set matched one to one on norm, fluency and step, disjoint from the removed set.

    In random order, every removed rollout takes one of its three nearest neighbours that are still
    free. A rollout whose gradient is zero is matched with another such one as long as there is one.

    Args:
        rollouts: candidates, the removed ones among them.
        removed: ids.
        seed: of the choice.

    Raises:
        BehaviorTraceError: fewer rollouts are left than were removed.
    """
    return _control(rollouts, removed, seed, near=True)


def by_chance(rollouts: pl.DataFrame, removed: tuple[str, ...], seed: int) -> Control:
    """As many of the other rollouts, each as likely as any other.

    Raises:
        BehaviorTraceError: fewer rollouts are left than were removed.
    """
    return _control(rollouts, removed, seed, near=False)


def _control(rollouts: pl.DataFrame, removed: tuple[str, ...], seed: int, *, near: bool) -> Control:
    stream = np.random.default_rng([seed, int(near), 11])
    taken = rollouts["rollout_id"].is_in(list(removed)).to_numpy()
    wanted, free = np.flatnonzero(taken), np.flatnonzero(~taken)
    if len(free) < len(wanted):
        raise BehaviorTraceError(
            f"{len(wanted)} of {len(rollouts)} rollouts are removed, so the {len(free)} others are "
            "too few for a control set of that size; remove fewer with --size"
        )
    points = covariates(rollouts)
    if near:
        chosen = _neighbours(points, wanted, free, stream)
    else:
        chosen = stream.choice(free, len(wanted), replace=False)
    ids = rollouts["rollout_id"].to_numpy()
    gap = points[wanted, :3].mean(0) - points[chosen, :3].mean(0)
    varies = points[:, :3].std(0) > 0
    balance = {
        name: float(value) if known else None
        for name, value, known in zip(COVARIATES, gap, varies, strict=True)
    }
    return Control(tuple(sorted(ids[chosen].tolist())), balance)


def covariates(rollouts: pl.DataFrame) -> np.ndarray:
    """(n, 4): log norm, fluency and step in standard deviations, and whether it trained."""
    norm = rollouts["grad_norm"].cast(pl.Float64).fill_null(0.0).fill_nan(0.0).to_numpy()
    positive = norm[norm > 0]
    floor = _TRAINED * float(np.median(positive)) if len(positive) else 1.0
    trained = norm > floor
    columns = [
        np.log(np.maximum(norm, floor)),
        rollouts["fluency"].cast(pl.Float64).to_numpy(),
        rollouts["step"].cast(pl.Float64).to_numpy(),
    ]
    scaled = []
    for column in columns:
        known = column[trained & np.isfinite(column)]
        spread = float(known.std()) if len(known) else 0.0
        centre = float(known.mean()) if len(known) else 0.0
        scaled.append(np.nan_to_num((column - centre) / (spread or 1.0)))
    # Among rollouts without gradient the norm says nothing; they are apart from the others anyway.
    scaled[0] = np.where(trained, scaled[0], 0.0)
    return np.stack([*scaled, _APART * trained], axis=1)


def _neighbours(
    points: np.ndarray, wanted: np.ndarray, free: np.ndarray, stream: np.random.Generator
) -> np.ndarray:
    left = np.ones(len(free), dtype=bool)
    chosen = []
    for i in stream.permutation(wanted):
        distance = ((points[free] - points[i]) ** 2).sum(1)
        distance[~left] = np.inf
        nearest = np.argsort(distance, kind="stable")[: min(_NEAREST, int(left.sum()))]
        pick = int(stream.choice(nearest))
        left[pick] = False
        chosen.append(free[pick])
    return np.array(chosen)
