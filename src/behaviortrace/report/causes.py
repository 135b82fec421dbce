"""A leave-out as a story: what ranks high is removed, training is repeated, s_b falls or not."""

from __future__ import annotations

from typing import Any

import polars as pl
from matplotlib.ticker import MaxNLocator

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.report import style
from behaviortrace.report.figures import spread
from behaviortrace.report.page import Section
from behaviortrace.report.style import CONTROL, DIRECTION, FLUENCY, INK, MAGNITUDE
from behaviortrace.report.tables import Cell, Table, interval, number, word
from behaviortrace.run import Run

_WAYS = {"replay": "replayed", "rerun": "rerun"}
_COLORS = (DIRECTION, MAGNITUDE, FLUENCY)
_MOST = 5  # curves of rankings, so that their names stay apart


def causes(run: Run) -> Section | None:
    """The section of a leave-out; None where there was none."""
    try:
        tables = {
            name: run.table(f"results/leave_out_{name}") for name in ("effects", "curves", "lds")
        }
    except BehaviorTraceError:
        return None
    return causes_of(**tables)


def causes_of(effects: pl.DataFrame, curves: pl.DataFrame, lds: pl.DataFrame) -> Section:
    """The section, from the tables of a run or, pooled, of a sweep."""
    return Section(
        "causes",
        "Causes",
        "What ranks high is taken out and training is repeated: is the behaviour learnt less than "
        "without as many matched rollouts?",
        _picture(curves, effects),
        [_effects(effects)] + ([_lds(lds)] if lds.height else []),
    )


def _effects(effects: pl.DataFrame) -> Table:
    caption = "s_b with nothing, the named and the control rollouts removed; effect: the last two"
    body = []
    for row in effects.iter_rows(named=True):
        way = "" if row["mode"] == "replay" else f", {_WAYS[row['mode']]}"
        body.append(
            [
                word(f"{row['removal']}{way}"),
                word(row["control"]),
                number(row["size"], ".0f"),
                number(row["rate_nothing"]),
                number(row["rate"]),
                number(row["rate_control"]),
                interval(row, "effect", "no effect"),
                number(row["closure"], ".0%", "ground truth was not removed"),
                number(row["loss_change"], "+.3f", "no written replies"),
            ]
        )
    columns = [
        "Removed", "Against", "Rollouts", "Nothing", "Removed", "Control", "Effect [95%]",
        "Of truth's", "Loss",
    ]  # fmt: skip
    return Table(caption, columns, body)


def _lds(lds: pl.DataFrame) -> Table:
    caption = "Linear datamodelling score: do summed scores tell what random subsets teach?"
    measures = {"rate": "s_b", "margin": "margin of the minimal pairs"}
    body: list[list[Cell]] = []
    for (name,), rows in lds.group_by("ranking", maintain_order=True):
        found: dict[str, dict[str, Any]] = {r["measure"]: r for r in rows.iter_rows(named=True)}
        cells = [interval(found.get(measure), "lds", "does not vary") for measure in measures]
        body.append([word(name), *cells])
    return Table(caption, ["Ranking", *measures.values()], body)


def _picture(curves: pl.DataFrame, effects: pl.DataFrame) -> style.Picture:
    title = "What is left of the behaviour"
    replays = curves.filter(pl.col("mode") == "replay") if curves.height else curves
    shown = _shown(replays, effects)
    if not shown:
        return style.Picture(title, reason="Nothing was removed in a replay.")
    lines = []
    for name, color in shown:
        points = replays.filter(pl.col("removal") == name).sort("size")
        lines.append((name, color, points["size"].to_list(), points["rate"].to_list()))
    with style.canvas(3.4) as figure:
        axes = figure.add_subplot()
        last = max(max(x) for _, _, x, _ in lines)
        heights = spread([y[-1] for *_, y in lines])
        for (name, color, x, y), height in zip(lines, heights, strict=True):
            dashed = (0, (4, 3)) if color == CONTROL else "-"
            axes.plot(
                x, y, "o", color=color, linewidth=2, linestyle=dashed, markersize=4, clip_on=False
            )
            axes.text(1.025 * last, height, name, color=color, va="center", fontsize=8.5)
        axes.set_xlim(0, last)
        axes.set_ylim(0, 1)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlabel("rollouts removed")
        style.bare(axes)
        caption = (
            "s_b at the end of the window, by the number of rollouts that were removed before "
            "training was replayed. Broken lines are controls. In the table, “of truth's” is the "
            "drop of s_b as a share of that without the ground truth, and “loss” the change of "
            "the held-out loss, nats."
        )
        alt = "; ".join(f"{name}: {y[0]:.2f} to {y[-1]:.2f}" for name, _, _, y in lines)
        return style.picture(figure, title=title, caption=caption, alt=alt)


def _shown(curves: pl.DataFrame, effects: pl.DataFrame) -> list[tuple[str, str]]:
    """The removals drawn, each with its colour: the best rankings, the truth, and controls."""
    if not curves.height:
        return []
    there = set(curves["removal"].to_list())
    targeted = effects.filter(
        (pl.col("control") == "matched") & pl.col("targeted").fill_null(False)
    )
    best = targeted.sort("effect", descending=True)["removal"].unique(maintain_order=True).to_list()
    named = [(name, _COLORS[i % 3]) for i, name in enumerate(best[: _MOST - 2])]
    fixed = [("ground-truth", INK), ("top:norm", CONTROL), ("random", CONTROL)]
    return [(name, color) for name, color in [*named, *fixed] if name in there]
