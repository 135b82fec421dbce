"""The training rollouts a ranking puts first, with their text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from markupsafe import Markup

from behaviortrace.checklist import rows
from behaviortrace.report.text import marked

Spans = Callable[[str], Sequence[tuple[int, int]]]


@dataclass(frozen=True)
class Ranked:
    """One rollout of a ranking, ready for the page.

    Attributes:
        score: the estimator's.
        step: optimizer step that used it.
        boosted: ground truth; None where the run does not know.
        behavior: whether it shows the behaviour.
        reward: what the trainer optimised.
        advantage: of the rollout in its group.
        prompt: escaped HTML.
        completion: escaped HTML, the behaviour's spans in ``<mark>``.
    """

    score: float
    step: int
    boosted: bool | None
    behavior: bool | None
    reward: float | None
    advantage: float | None
    prompt: Markup
    completion: Markup


@dataclass(frozen=True)
class Ranking:
    """The head of a ranking, or the reason why there is none."""

    title: str
    about: str
    rollouts: Sequence[Ranked] = ()
    share_boosted: float | None = None
    reason: str = ""

    @property
    def boosted(self) -> int:
        """How many of the rollouts shown are ground truth."""
        return sum(bool(r.boosted) for r in self.rollouts)

    @property
    def behaving(self) -> int:
        """How many of the rollouts shown show the behaviour."""
        return sum(bool(r.behavior) for r in self.rollouts)


RANKINGS: tuple[tuple[str, str, dict[str, str]], ...] = (
    (
        "Direction",
        "GAS, group-centred, with the minimal-pair target",
        rows.DIRECTION,
    ),
    (
        "Magnitude",
        "norm, a control that knows nothing of the behaviour",
        {"embedding": "plain", "estimator": "norm"},
    ),
)


def top(
    scores: pl.DataFrame | None,
    rollouts: pl.DataFrame | None,
    spans: Spans,
    *,
    count: int = 6,
    why: str = "training rollouts were not scored",
) -> list[Ranking]:
    """The first rollouts of each of :data:`RANKINGS`, over the training rollouts.

    Args:
        scores: table ``scores/all``.
        rollouts: the training rollouts.
        spans: character spans of the behaviour in a completion.
        count: rollouts a ranking.
        why: the reason where there is no table.
    """
    return [_ranking(scores, rollouts, spans, count, why, *of) for of in RANKINGS]


def _ranking(
    scores: pl.DataFrame | None,
    rollouts: pl.DataFrame | None,
    spans: Spans,
    count: int,
    why: str,
    title: str,
    about: str,
    conditions: dict[str, str],
) -> Ranking:
    if scores is None or rollouts is None:
        return Ranking(title, about, reason=why)
    scored = _scored(scores, conditions)
    if scored is None:
        return Ranking(title, about, reason="this score was not computed on training rollouts")
    table = rollouts.join(scored, on="rollout_id", how="inner").sort(
        ["score", "rollout_id"], descending=[True, False]
    )
    known = table["boosted"].drop_nulls()
    return Ranking(
        title,
        about,
        [_ranked(row, spans) for row in table.head(count).iter_rows(named=True)],
        share_boosted=rows.finite(known.mean()) if len(known) else None,
        reason="" if table.height else "no scored rollout is among the training rollouts",
    )


def _scored(scores: pl.DataFrame, conditions: dict[str, str]) -> pl.DataFrame | None:
    """(rollout_id, score) with finite scores; a control falls back on whatever embedding it has."""
    found = rows.where(scores, source=rows.TRAINING, **conditions)
    if found is None and "target" not in conditions:
        other = rows.where(scores, source=rows.TRAINING, estimator=conditions["estimator"])
        embedding = other["embedding"][0] if other is not None else None
        found = (
            other.filter(pl.col("embedding").eq_missing(embedding)) if other is not None else None
        )
    if found is None:
        return None
    finite = found.filter(pl.col("score").is_finite()).select("rollout_id", "score")
    return finite if finite.height else None


def _ranked(row: dict[str, Any], spans: Spans) -> Ranked:
    completion = row["completion"] or ""
    return Ranked(
        score=row["score"],
        step=row["step"],
        boosted=row["boosted"],
        behavior=row["behavior"],
        reward=rows.finite(row["reward"]),
        advantage=rows.finite(row["advantage"]),
        prompt=marked(row["prompt"] or "", limit=400),
        completion=marked(completion, spans(completion)),
    )
