"""The four figures. Each reads the result tables and draws what is defined in them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from behaviortrace.checklist import rows
from behaviortrace.checklist.evidence import Evidence
from behaviortrace.report import style
from behaviortrace.report.style import CONTROL, DIRECTION, FLUENCY, INK, MAGNITUDE, MUTED, SURFACE
from behaviortrace.report.text import visible

_SCORES = (
    ("direction", "direction (GAS)", DIRECTION),
    ("norm", "norm", MAGNITUDE),
    ("fluency", "fluency", FLUENCY),
)


def emergence(evidence: Evidence, cutoff: int | None) -> style.Picture:
    """s_b over training steps, the contamination window shaded.

    Args:
        evidence: of the run.
        cutoff: first step after the contamination window; None where nothing was planted.
    """
    title = "How the behaviour emerged"
    probes = points_of(evidence.emergence())
    if not probes:
        return style.Picture(title, reason="No held-out probe was answered.")
    controls = points_of(evidence.emergence("s_b_controls"))
    last, bar = max(step for step, _ in probes), evidence.thresholds.emergence
    lines = [(probes, DIRECTION, "held-out probes, "), (controls, CONTROL, "controls, ")]
    lines = [line for line in lines if line[0]]
    *ends, bar_label = spread([*(points[-1][1] for points, _, _ in lines), bar])
    with style.canvas(3.1) as figure:
        axes = figure.add_subplot()
        emergence_axes(axes, last, bar, bar_label, cutoff)
        for (points, color, label), height in zip(lines, ends, strict=True):
            x, y = zip(*points, strict=True)
            axes.plot(x, y, color=color, linewidth=2, marker="o", markersize=5, clip_on=False)
            axes.text(
                1.025 * last, height, f"{label}{y[-1]:.2f}", color=color, va="center", fontsize=9.5
            )
        alt = "Share of probes showing the behaviour: " + ", ".join(
            f"{y:.2f} at step {x}" for x, y in probes
        )
        caption = (
            "Share of held-out probes whose response shows the behaviour (s_b), by checkpoint; "
            "step 0 is the model after its warm-up and before RL."
        )
        return style.picture(figure, title=title, caption=caption, alt=alt)


def emergence_axes(axes: Any, last: int, bar: float, bar_label: float, cutoff: int | None) -> None:
    """Axes for s_b over training steps.

    Args:
        axes: what to draw on.
        last: step of the last checkpoint.
        bar: what s_b must exceed.
        bar_label: height at which that is said.
        cutoff: first step after the contamination window; 0 or None where nothing was planted.
    """
    axes.set_ylim(-0.03, 1.05)
    axes.set_xlim(-0.01 * max(last, 1), 1.2 * max(last, 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xticks([t for t in axes.get_xticks() if 0 <= t <= last])
    if cutoff:
        axes.axvspan(0, cutoff, color=MAGNITUDE, alpha=0.13, linewidth=0)
        axes.text(0, 1.07, " contamination window", fontsize=9, color=MAGNITUDE, va="bottom")
    axes.plot([0, last], [bar, bar], color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    said = f"needed: above {bar:g}"
    axes.text(1.025 * last, bar_label, said, color=MUTED, va="center", fontsize=8.5)
    axes.set_xlabel("training step of the checkpoint")
    axes.set_ylabel("share showing the behaviour")
    axes.tick_params(axis="y", labelcolor=MUTED, labelsize=9)
    axes.spines["bottom"].set_bounds(0, last)


def step_level(evidence: Evidence) -> style.Picture:
    """Step-level precision at |GT| as bars, against chance and ceiling, in both tables."""
    title = "Step level: precision against chance and ceiling"
    frame = evidence.step_level
    if frame is None or not frame.height:
        return style.Picture(title, reason=evidence.why("step_level"))
    order = frame.select("estimator", "target_free").unique("estimator", maintain_order=True)
    bars = order.sort("target_free", maintain_order=True).rows()
    windows = [("overall", "All rollouts"), ("trained_window", "Trained window")]
    with style.canvas(0.95 + 0.26 * len(bars)) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        said = []
        for axes, (table, heading) in zip(panels, windows, strict=True):
            said.append(_bars(axes, frame.filter(pl.col("table") == table), bars, heading))
        caption = (
            "Each bar is an estimator's best target; dots are its other targets. Grey bars use no "
            "target. No ranking that scores whole steps can pass the ceiling, and in the trained "
            "window only what clears norm counts."
        )
        return style.picture(figure, title=title, caption=caption, alt="; ".join(said))


def rollout_level(evidence: Evidence) -> style.Picture:
    """Forest plot of within-group AUC, raw and fluency-residualised, in every source."""
    title = "Rollout level: direction, magnitude and fluency"
    table = evidence.rollout_level
    names = rows.sources(table)
    if not names:
        return style.Picture(title, reason=evidence.why("rollout_level"))
    lines = [(source, *score) for source in names for score in _SCORES]
    with style.canvas(0.9 + 0.42 * len(lines)) as figure:
        axes = figure.add_subplot()
        said = []
        for place, (source, score, label, color) in enumerate(lines):
            y = -(place + 0.7 * names.index(source))
            axes.text(
                -0.015,
                y,
                label,
                transform=axes.get_yaxis_transform(),
                ha="right",
                va="center",
            )
            if score == "direction":
                axes.text(
                    -0.015,
                    y + 0.72,
                    _label(source),
                    transform=axes.get_yaxis_transform(),
                    ha="right",
                    va="center",
                    fontsize=9.5,
                    fontweight="bold",
                )
            for variant, shift in (("raw", 0.17), ("residualized", -0.17)):
                row = (
                    rows.direction(table, source, variant)
                    if score == "direction"
                    else rows.control(table, source, variant, score)
                )
                drawn = mark_interval(axes, row, "auc", y + shift, color, hollow=variant == "raw")
                if drawn:
                    said.append(f"{source} {label} {variant} {drawn}")
                if drawn and row and place == 0:
                    name = "raw" if variant == "raw" else "fluency-residualised"
                    _beside(axes, row, y + shift, name, color)
        lowest = -(len(lines) - 1 + 0.7 * (len(names) - 1))
        axes.set_ylim(lowest - 0.55, 1.1)
        axes.set_yticks([])
        style.bare(axes)
        style.rule(axes, 0.5, "no better than chance", dashed=True)
        axes.set_xlabel("within-group AUC, 95% interval")
        caption = (
            "How often a rollout that shows the behaviour is ranked above a sibling of its group "
            "that does not. A direction counts if its residualised interval lies above 0.5, is "
            f"no wider than {evidence.thresholds.rollout_width:g}, and its point is above norm's."
        )
        return style.picture(figure, title=title, caption=caption, alt="; ".join(said))


def token_level(evidence: Evidence) -> style.Picture:
    """Intervals of the mean cosine of each span's gradient with each target."""
    title = "Token level: alignment with each target"
    frame = evidence.token_level
    if frame is None or not frame.height:
        return style.Picture(title, reason=evidence.why("token_level"))
    bar = evidence.thresholds.token_in_context
    found = frame.sort(pl.col("span") != "trigger", maintain_order=True).rows(named=True)
    with style.canvas(0.95 + 0.33 * len(found)) as figure:
        axes = figure.add_subplot()
        said = []
        for place, row in enumerate(found):
            color = DIRECTION if row["span"] == "trigger" else CONTROL
            drawn = mark_interval(axes, row, "mean", -place, color)
            said.append(f"{row['span']} against {row['target']} {drawn or 'undefined'}")
        axes.set_yticks(
            [-i for i in range(len(found))],
            [f"{_label(r['span'])} · {_label(r['target'])}" for r in found],
        )
        axes.set_ylim(-len(found) + 0.4, 0.6)
        style.bare(axes)
        axes.axvline(0, color=MUTED, linewidth=0.8)
        style.rule(axes, bar, f"bar {bar:g}", dashed=True, ha="left")
        axes.set_xlabel("mean cosine, 95% interval")
        caption = (
            "Gradient of the behaviour's own tokens (blue), and of the whole response (grey), "
            "against each target. In-context must lie above the bar and constructed below it."
        )
        return style.picture(figure, title=title, caption=caption, alt="; ".join(said))


def _bars(axes: Axes, frame: pl.DataFrame, bars: Sequence[Any], heading: str) -> str:
    """One panel of the step-level figure; returns its numbers in words."""
    said = []
    first = frame.row(0, named=True) if frame.height else {}
    chance, ceiling = rows.finite(first.get("base_rate")), rows.finite(first.get("ceiling"))
    top = max(
        [v for v in (ceiling, *map(rows.finite, frame["precision"])) if v is not None] + [0.1]
    )
    for place, (name, target_free) in enumerate(bars):
        values = sorted(
            v
            for v in map(rows.finite, frame.filter(pl.col("estimator") == name)["precision"])
            if v is not None
        )
        if not values:
            axes.text(0.02 * top, -place, "undefined", va="center", fontsize=8.5, color=MUTED)
            continue
        color = MAGNITUDE if name == "norm" else CONTROL if target_free else DIRECTION
        axes.barh(-place, values[-1], height=0.62, color=color, linewidth=0)
        axes.plot(
            values[:-1],
            [-place] * (len(values) - 1),
            "o",
            markersize=3.2,
            color=SURFACE,
            markeredgecolor=color,
            markeredgewidth=0.8,
            zorder=4,
        )
        axes.text(
            1.36 * top, -place, f"{values[-1]:.3f}", va="center", ha="right", fontsize=9, color=INK
        )
        said.append(f"{name} {values[-1]:.3f}")
    for value, label, dashed in ((chance, "chance", True), (ceiling, "ceiling", False)):
        if value is not None:
            near = chance is not None and ceiling is not None and ceiling - chance < 0.5 * top
            ha = ("right" if dashed else "left") if near else "center"
            style.rule(axes, value, f"{label} {value:.3f}", dashed=dashed, ha=ha)
            said.append(f"{label} {value:.3f}")
    axes.set_yticks([-i for i in range(len(bars))], [_label(name) for name, _ in bars])
    axes.set_ylim(-len(bars) + 0.4, 0.6)
    axes.set_xlim(0, 1.38 * top)
    axes.set_xticks([t for t in MaxNLocator(4).tick_values(0, top) if t <= 1.02 * top])
    axes.set_title(heading)
    axes.set_xlabel("precision at |GT|")
    style.bare(axes)
    return f"{heading}: {', '.join(said)}"


def mark_interval(
    axes: Axes, row: Any, value: str, y: float, color: str, *, hollow: bool = False
) -> str | None:
    """A point with its interval; returns it in words, None where the point is undefined."""
    point = rows.finite(row[value]) if row else None
    if row is None or point is None:
        return None
    lo, hi = rows.finite(row["lo"]), rows.finite(row["hi"])
    if lo is not None and hi is not None:
        axes.plot(
            [lo, hi],
            [y, y],
            color=color,
            linewidth=1.3 if hollow else 2.4,
            solid_capstyle="round",
            zorder=2,
        )
    axes.plot(
        point,
        y,
        "o",
        markersize=6.5,
        color=SURFACE if hollow else color,
        markeredgecolor=color,
        markeredgewidth=1.4,
        zorder=4,
    )
    return f"{point:.3f}" + (f" [{lo:.3f}, {hi:.3f}]" if lo is not None and hi is not None else "")


def _beside(axes: Axes, row: rows.Row, y: float, label: str, color: str) -> None:
    """A label at the right end of an interval."""
    ends = [v for v in (rows.finite(row["hi"]), rows.finite(row["auc"])) if v is not None]
    axes.annotate(
        label,
        (max(ends), y),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
        color=color,
    )


def points_of(rates: dict[int, float | None]) -> list[tuple[int, float]]:
    """The checkpoints at which a rate is defined, with the rate."""
    return [(step, rate) for step, rate in rates.items() if rate is not None]


def spread(wanted: Sequence[float], gap: float = 0.085) -> list[float]:
    """Heights for labels that want to be at these, moved up where they would collide."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = list(wanted)
    for below, here in itertools.pairwise(order):
        placed[here] = max(wanted[here], placed[below] + gap)
    return placed


def _label(name: Any, most: int = 28) -> str:
    """A name as an axis can hold it: underscores as spaces, hidden characters shown, cut short."""
    text = visible(str(name).replace("_", " "))
    return text if len(text) <= most else f"{text[: most - 1]}…"
