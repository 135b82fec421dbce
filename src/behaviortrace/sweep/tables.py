"""The tables of a sweep's report, every number from the evidence of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from behaviortrace.checklist import rows
from behaviortrace.pitfalls.demonstration import WORDS
from behaviortrace.report.tables import Cell, Table, interval, number, word
from behaviortrace.sweep.controls import VARIANTS
from behaviortrace.sweep.merge import Member

P6 = "P6: one run, or one draw, is not enough"

_YES: Mapping[bool | None, str] = {True: "yes", False: "no"}
_MARKS = {"pass": "✓ pass", "fail": "✗ fail", "not run": "○ not run"}


def emergence(members: Sequence[Member]) -> Table:
    """s_b at the first and the last checkpoint of every seed, and where it was highest.

    Whether it was taught, and kept to the end, is as the emergence line found.
    """
    body = []
    for member in members:
        rates, peak = member.evidence.emergence(), member.evidence.peak()
        controls = member.evidence.emergence("s_b_controls")
        first, last = (min(rates), max(rates)) if rates else (None, None)
        why = "no held-out probe was answered"
        line = next((v.evidence for v in member.verdicts if v.name == "emergence"), {})
        body.append(
            [
                number(member.seed, ".0f"),
                number(None if first is None else rates[first], reason=why),
                number(None if last is None else rates[last], reason=why),
                word(peak and f"{peak[1]:.3f} at step {peak[0]}", why),
                word(_YES.get(line.get("taught")), "the emergence line was not run"),
                word(_YES.get(line.get("kept")), "the emergence line was not run"),
                number(None if last is None else controls.get(last), reason="no control prompts"),
                number(member.evidence.number("n_boosted"), ",.0f"),
                number(member.evidence.number("n_findable"), ",.0f"),
            ]
        )
    heads = [
        "Seed",
        "s_b, first",
        "s_b, last",
        "s_b, highest",
        "Taught",
        "Kept",
        "Controls, last",
        "Boosted",
        "Findable",
    ]
    return Table("Emergence and ground truth, by seed", heads, body)


def decisive(members: Sequence[Member]) -> Table:
    """Within-group AUC of the direction and of norm, by seed and draw."""
    body = []
    for member in members:
        table = member.evidence.rollout_level
        for source in rows.decisive(table):
            residualized, matched = (
                rows.direction(table, source, v) for v in ("residualized", "matched")
            )
            both = rows.direction(table, source, "residualized_norm")
            norm = rows.control(table, source, "residualized", "norm")
            body.append(
                [
                    number(member.seed, ".0f"),
                    word(source),
                    interval(residualized, "auc", "not evaluated"),
                    interval(both, "auc", "not evaluated"),
                    interval(matched, "auc", "not evaluated"),
                    number(matched and matched["pairs"], ",.0f"),
                    interval(norm, "auc", "not evaluated"),
                ]
            )
    caption = "Direction (GAS, group-centred, minimal pair): within-group AUC with 95% interval"
    heads = ["Seed", "Draw", "Fluency out", "Fluency and norm out", "Fluency-matched"]
    heads += ["Pairs", "Norm, fluency out"]
    return Table(caption, heads, body)


def replicates(summary: Mapping[str, Any]) -> Table:
    """Mean and variance components of the decisive AUC over all replicates."""
    caption = "Decisive AUC over all replicates, 95% interval"
    found = summary["components"]
    if found is None:
        return Table(caption, reason=f"{summary['components_missing']}.")
    names = {
        "mean": "mean over seeds",
        "student": "mean over seeds, Student's t on their means",
        "fresh": "a further draw of a further seed",
        "between_seeds": "standard deviation between seeds",
        "between_draws": "standard deviation between draws",
        "within_draw": "standard error within a draw",
    }
    body = [[word(said), interval(found[key], "point", "undefined")] for key, said in names.items()]
    return Table(caption, ["What", "AUC"], body)


def controls(found: pl.DataFrame) -> Table:
    """What each control leaves of a ranking: the mean over seeds.

    Args:
        found: ``CONTROL_SCHEMA``.
    """
    caption = "What each control leaves: mean over seeds of within-group AUC, 95% interval"
    gone = "nothing is left of fluency where it is taken out"
    body = []
    for name in found["ranking"].unique(maintain_order=True):
        own = found.filter(pl.col("ranking") == name)
        by_variant = {row["variant"]: row for row in own.iter_rows(named=True)}
        body.append([word(name), *(interval(by_variant.get(v), "mean", gone) for v in VARIANTS)])
    heads = ["Raw", "Fluency out", "By a spline", "Fluency and norm out"]
    return Table(caption, ["Ranking", *heads], body)


def sign_flips(summary: Mapping[str, Any]) -> Table:
    """What single draws would have said, seed by seed (the paper's P6)."""
    caption = "Sign flips: what each seed's draws alone would have said"
    if not summary["sign_flips"]:
        return Table(caption, reason="No draw has a rollout-level result.")
    body = [
        [
            number(row["seed"], ".0f"),
            number(row["draws"], ".0f"),
            number(row["above"], ".0f"),
            number(row["separating"], ".0f"),
            number(row["reversed"], ".0f"),
            word("yes" if row["flips"] else "no"),
        ]
        for row in summary["sign_flips"]
    ]
    heads = ["Seed", "Draws", "Above 0.5", "Interval above 0.5", "Interval below 0.5", "Flips"]
    return Table(caption, heads, body)


def step_level(members: Sequence[Member]) -> Table:
    """Step-level precision in the trained window: the best targeted estimator beside norm."""
    body = []
    for member in members:
        table = member.evidence.step_level
        best = rows.best_targeted(table, "trained_window")
        norm = rows.step_row(table, "trained_window", "norm")
        about = best or norm
        why = "not evaluated"
        name = f"{best['estimator']} · {best['target']}" if best else None
        body.append(
            [
                number(member.seed, ".0f"),
                word(name, "no targeted estimator has a precision"),
                number(best and best["precision"], reason=why),
                number(norm and norm["precision"], reason=why),
                number(about and about["base_rate"], reason=why),
                number(about and about["ceiling"], reason=why),
            ]
        )
    heads = ["Seed", "Best targeted", "Its precision", "Norm", "Chance", "Ceiling"]
    return Table("Step level: precision at |GT| in the trained window", heads, body)


def token_level(members: Sequence[Member], rows_of: Any) -> Table:
    """Mean cosine of the behaviour's tokens with each target, by seed and draw.

    Args:
        members: the finished runs.
        rows_of: the merged rows.
    """
    found = rows.where(rows_of, level="token_level", span="trigger")
    caption = "Token level: cosine of the behaviour's tokens with each target, 95% interval"
    if found is None:
        return Table(caption, reason="No run has a token level.")
    body = [
        [
            number(row["seed"], ".0f"),
            word(row["draw"]),
            word(row["target"]),
            interval(row, "mean", "no response shows the behaviour"),
            number(row["n"], ",.0f"),
        ]
        for row in found.iter_rows(named=True)
    ]
    return Table(caption, ["Seed", "Draw", "Target", "Mean cosine", "Responses"], body)


def pitfalls(shown: pl.DataFrame, summary: Mapping[str, Any], seeds: Sequence[int]) -> Table:
    """Which pitfall shows in which seed; P6 is about all of them.

    Args:
        shown: ``PITFALL_SCHEMA``.
        summary: of the replicates.
        seeds: the columns.
    """
    caption = "The paper's pitfalls, by seed"
    titles = shown["title"].unique().sort().to_list()
    body = []
    for title in titles:
        own = shown.filter(pl.col("title") == title)
        by_seed = dict(own.select("seed", "shows").iter_rows())
        body.append(
            [
                word(title),
                *(word(WORDS[by_seed[s]] if s in by_seed else None, "not tried") for s in seeds),
            ]
        )
    disagree = summary["disagree"]
    over_all = None if disagree is None else f"{WORDS[disagree]}, over all seeds"
    whole = word(over_all, "it takes several seeds with a result")
    body.append([word(P6), whole, *(Cell("") for _ in seeds[1:])])
    return Table(caption, ["Pitfall", *(f"Seed {s}" for s in seeds)], body)


def checklist(members: Sequence[Member]) -> Table:
    """Every line of the checklist, seed by seed."""
    titles = {v.name: v.title for m in members for v in m.verdicts}
    status = {(m.seed, v.name): v.status for m in members for v in m.verdicts}
    body = [
        [
            word(title),
            *(_mark(status.get((m.seed, name))) for m in members),
        ]
        for name, title in titles.items()
    ]
    return Table("The checklist, by seed", ["Line", *(f"Seed {m.seed}" for m in members)], body)


def _mark(status: str | None) -> Cell:
    return word(_MARKS.get(status) if status else None, "the run was not checked")
