"""The two figures of a sweep: emergence by seed, and the decisive AUC by seed and draw."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from behaviortrace.checklist import rows
from behaviortrace.report import style
from behaviortrace.report.figures import emergence_axes, mark_interval, points_of, spread
from behaviortrace.report.style import CONTROL, DIRECTION, MAGNITUDE
from behaviortrace.sweep.merge import Member

_SCORES = (("direction", "residualized", DIRECTION), ("norm", "residualized", MAGNITUDE))
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))


def emergence(members: Sequence[Member], cutoff: int) -> style.Picture:
    """s_b over training steps, one line a seed, the contamination window shaded.

    Args:
        members: the finished runs.
        cutoff: first step after the contamination window; 0 where nothing was planted.
    """
    title = "How the behaviour emerged, by seed"
    lines = [(m.seed, points_of(m.evidence.emergence())) for m in members]
    lines = [(seed, points) for seed, points in lines if points]
    if not lines:
        return style.Picture(title, reason="no held-out probe was answered.")
    controls = [points_of(m.evidence.emergence("s_b_controls")) for m in members]
    last = max(step for _, points in lines for step, _ in points)
    bar = members[0].evidence.thresholds.emergence
    *ends, bar_label = spread([*(points[-1][1] for _, points in lines), bar])
    with style.canvas(3.1) as figure:
        axes = figure.add_subplot()
        emergence_axes(axes, last, bar, bar_label, cutoff)
        for points in controls:
            if points:
                axes.plot(*zip(*points, strict=True), color=CONTROL, linewidth=1.2)
        dashes = itertools.cycle(_DASHES)
        for (seed, points), height, dash in zip(lines, ends, dashes, strict=False):
            x, y = zip(*points, strict=True)
            axes.plot(x, y, color=DIRECTION, linestyle=dash, linewidth=1.8, marker="o", ms=4)
            said = f"seed {seed}, {y[-1]:.2f}"
            axes.text(1.025 * last, height, said, color=DIRECTION, va="center", fontsize=9.5)
        alt = "; ".join(
            f"seed {seed}: " + ", ".join(f"{y:.2f} at step {x}" for x, y in points)
            for seed, points in lines
        )
        caption = (
            "Share of held-out probes whose response shows the behaviour (s_b), one blue line a "
            "seed; grey, the same on control prompts."
        )
        return style.picture(figure, title=title, caption=caption, alt=alt)


def decisive(members: Sequence[Member]) -> style.Picture:
    """Forest plot of the fluency-residualised AUC of direction and norm, by seed and draw."""
    title = "The decisive result, by seed and draw"
    lines = [(m, source) for m in members for source in rows.decisive(m.evidence.rollout_level)]
    if not lines:
        return style.Picture(title, reason="no run has a rollout-level result.")
    with style.canvas(0.9 + 0.42 * len(lines)) as figure:
        axes = figure.add_subplot()
        said = []
        for place, (member, source) in enumerate(lines):
            table = member.evidence.rollout_level
            for (score, variant, color), shift in zip(_SCORES, (0.16, -0.16), strict=True):
                row = (
                    rows.direction(table, source, variant)
                    if score == "direction"
                    else rows.control(table, source, variant, score)
                )
                hollow = score != "direction"
                drawn = mark_interval(axes, row, "auc", shift - place, color, hollow=hollow)
                if drawn:
                    said.append(f"seed {member.seed}, {source}: {score} {drawn}")
        axes.set_yticks(
            [-i for i in range(len(lines))], [f"seed {m.seed} · {source}" for m, source in lines]
        )
        axes.set_ylim(-len(lines) + 0.4, 0.6)
        style.bare(axes)
        style.rule(axes, 0.5, "no better than chance", dashed=True)
        axes.set_xlabel("fluency-residualised within-group AUC, 95% interval")
        caption = (
            "Blue: the direction score. Orange, hollow: gradient magnitude, which knows no "
            "direction. The verdict of a draw is whether its blue interval lies above 0.5; it "
            "should not depend on the seed or the draw."
        )
        return style.picture(figure, title=title, caption=caption, alt="; ".join(said))
