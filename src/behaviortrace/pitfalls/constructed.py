"""P4: a target built out of context does not point where the behaviour's own tokens do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from behaviortrace.checklist import rows
from behaviortrace.evaluate.clusters import by_prompt
from behaviortrace.evaluate.token import mean_cosine
from behaviortrace.pitfalls.demonstration import Demonstration, defined
from behaviortrace.recipe import EvaluateSettings, Thresholds
from behaviortrace.scores.tokens import IN_CONTEXT, TRIGGER
from behaviortrace.targets.stage import target_cosines

if TYPE_CHECKING:
    from behaviortrace.run import Run

TITLE = "P4: a constructed target against an in-context one"
CONSTRUCTED = "constructed"
RULE = (
    "the cosine at the behaviour's tokens with the in-context target exceeds that with the "
    "constructed one, its paired 95% interval above 0"
)


def constructed(run: Run) -> Demonstration:
    """Cosine of the behaviour's tokens, and of whole responses, with each target.

    Args:
        run: an evaluated run with a draw and targets.

    Returns:
        One row a target: mean cosine with its 95% interval at the behaviour's tokens and over the
        whole response, and the rollout-level AUC of the group-centred direction against it in the
        first draw. Facts: the mean difference in-context minus constructed of the *same* responses
        with its interval, the cosines of the stored targets with each other, and whether the
        pre-registered bar is met.

    Raises:
        BehaviorTraceError: the run has no token level; the message says which stage makes it.
    """
    level, tokens = run.table("results/token_level"), run.table("results/token_rows")
    thresholds = run.recipe.thresholds if run.recipe else Thresholds()
    settings = run.recipe.evaluate if run.recipe else EvaluateSettings()
    source, aucs = _aucs(run)
    names = level["target"].unique(maintain_order=True).to_list()
    found = [_row(level, aucs, name) for name in names]
    facts = {
        "draw": source,
        **_difference(tokens, settings),
        **(target_cosines(run) if run.recipe else {}),
        **_bar(level, thresholds),
    }
    lo = facts["difference_lo"]
    shows = None if lo is None else lo > 0
    return Demonstration(
        "constructed", TITLE, RULE, shows, _sentence(found, facts), _frame(found), facts
    )


def _aucs(run: Run) -> tuple[str | None, pl.DataFrame | None]:
    if not run.has("results/rollout_level"):
        return None, None
    level = run.table("results/rollout_level")
    source = next(iter(rows.decisive(level)), None)
    return source, rows.where(
        level,
        source=source,
        label="behavior",
        embedding=rows.DIRECTION["embedding"],
        estimator=rows.DIRECTION["estimator"],
        variant="residualized",
    )


def _row(level: pl.DataFrame, aucs: pl.DataFrame | None, target: str) -> dict[str, Any]:
    found: dict[str, Any] = {"target": target}
    for span, name in ((TRIGGER, "tokens"), ("whole_response", "response")):
        row = rows.token_row(level, span, target) or {}
        found |= {f"{name}_{c}": rows.finite(row.get(c)) for c in ("mean", "lo", "hi")}
    auc = rows.where(aucs, target=target)
    row = auc.row(0, named=True) if auc is not None else {}
    return found | {f"auc_{c}": rows.finite(row.get(c)) for c in ("auc", "lo", "hi")}


def _difference(tokens: pl.DataFrame, settings: EvaluateSettings) -> dict[str, Any]:
    """In-context minus constructed cosine at the behaviour's tokens, paired by response."""
    spans = tokens.filter(pl.col("span") == TRIGGER)
    columns = ("rollout_id", "group", "prompt", "cosine")
    sides = [
        spans.filter(pl.col("target") == name).select(*columns)
        for name in (IN_CONTEXT, CONSTRUCTED)
    ]
    both = sides[0].join(sides[1], on="rollout_id", suffix="_constructed")
    both = both.filter(pl.col("cosine").is_finite() & pl.col("cosine_constructed").is_finite())
    gap = (both["cosine"] - both["cosine_constructed"]).to_numpy()
    interval, _ = mean_cosine(gap, by_prompt(both), settings)
    return {
        "responses": both.height,
        "difference": defined(interval.point),
        "difference_lo": defined(interval.lo),
        "difference_hi": defined(interval.hi),
    }


def _bar(level: pl.DataFrame, thresholds: Thresholds) -> dict[str, Any]:
    """The pre-registered bar: in-context above, constructed below, so that they cannot overlap."""
    ends = {
        name: rows.finite((rows.token_row(level, TRIGGER, name) or {}).get(column))
        for name, column in ((IN_CONTEXT, "lo"), (CONSTRUCTED, "hi"))
    }
    lower, upper = ends[IN_CONTEXT], ends[CONSTRUCTED]
    met = (
        None
        if lower is None or upper is None
        else lower > thresholds.token_in_context and upper < thresholds.token_constructed
    )
    return {"in_context_lo": lower, "constructed_hi": upper, "bar_met": met}


def _sentence(found: list[dict[str, Any]], facts: dict[str, Any]) -> str:
    means = {row["target"]: row["tokens_mean"] for row in found}
    inside, outside = means.get(IN_CONTEXT), means.get(CONSTRUCTED)
    if inside is None or outside is None:
        return "The in-context and the constructed target were not both compared at the tokens."
    told = (
        f"At the behaviour's tokens the in-context target has a mean cosine of {inside:+.3f} and "
        f"the constructed one {outside:+.3f}"
    )
    lo, hi = facts["difference_lo"], facts["difference_hi"]
    if lo is not None:
        told += f"; on the same responses they differ by {facts['difference']:+.3f} "
        told += f"[{lo:+.3f}, {hi:+.3f}]"
    verdict = {True: "is met", False: "is not met", None: "is undefined"}[facts["bar_met"]]
    return f"{told}. The pre-registered bar {verdict}."


def _frame(found: list[dict[str, Any]]) -> pl.DataFrame:
    numbers = [f"{n}_{c}" for n in ("tokens", "response") for c in ("mean", "lo", "hi")]
    numbers += [f"auc_{c}" for c in ("auc", "lo", "hi")]
    return pl.DataFrame(
        found, schema={"target": pl.String, **dict.fromkeys(numbers, pl.Float64)}
    ).with_columns(pl.col(pl.Float64).replace(np.nan, None))
