"""How the figures look, and how one becomes an image a page can hold in light and dark."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, MUTED, RULE, SURFACE = "#1c2024", "#62686f", "#d3d7dc", "#fefefe"
DIRECTION, MAGNITUDE, FLUENCY, CONTROL = "#0072b2", "#d55e00", "#007f5f", "#8b9199"
"""Okabe and Ito's colour-blind-safe hues (the green darkened for contrast); grey for controls."""

_DARK = {
    INK: "#e8eaed",
    MUTED: "#a4abb3",
    RULE: "#3b4148",
    SURFACE: "#16191d",
    DIRECTION: "#56b4e9",
    MAGNITUDE: "#f0934e",
    FLUENCY: "#3cc9a0",
    CONTROL: "#868d96",
}
_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "behaviortrace",
    "text.parse_math": False,
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 22,
    "axes.labelsize": 10,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": RULE,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 10,
    "figure.constrained_layout.use": True,
}
WIDTH = 7.0  # inches; 504 px at the SVG's 72 per inch, a column's width on a page


@dataclass(frozen=True)
class Picture:
    """A figure as the page holds it.

    Attributes:
        title: what it shows.
        caption: how to read it.
        alt: its numbers in words.
        light: data URI of the SVG for a light page; None where there is nothing to draw.
        dark: the same for a dark page.
        reason: why there is nothing to draw.
    """

    title: str
    caption: str = ""
    alt: str = ""
    light: str | None = None
    dark: str | None = None
    reason: str = ""


@contextmanager
def canvas(height: float) -> Iterator[Figure]:
    """An empty figure of the page's width, in the house style, outside pyplot's global state.

    Args:
        height: inches.
    """
    with matplotlib.rc_context(cast(Any, _STYLE)):  # its stub wants each key as a literal
        figure = Figure(figsize=(WIDTH, height))
        figure.patch.set_alpha(0)
        yield figure


def picture(figure: Figure, *, title: str, caption: str, alt: str) -> Picture:
    """The figure as a pair of data URIs; call inside :func:`canvas`."""
    for axes in figure.axes:
        axes.patch.set_alpha(0)
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing)
    drawn = buffer.getvalue()
    drawn = drawn[drawn.index("<svg") :]  # without the document type, which names a remote DTD
    light = re.sub(r"font: ([\d.]+px|[^;\"]*?px) [^;\"]*", rf"font: \1 {_FONTS}", drawn)
    dark = re.sub("|".join(_DARK), lambda found: _DARK[found.group()], light)
    return Picture(title, caption, alt, _uri(light), _uri(dark))


def bare(axes: Axes, *, grid: bool = True) -> None:
    """Leave the bottom spine only, hairlines along x, and no tick marks on y."""
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", length=3, width=0.8)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis="x", color=RULE, linewidth=0.6, alpha=0.7)


def rule(axes: Axes, x: float, label: str, *, dashed: bool = False, ha: str = "center") -> None:
    """A vertical reference line with its label above the axes."""
    axes.axvline(x, color=INK, linewidth=1.0, linestyle=(0, (4, 3)) if dashed else "-", zorder=3)
    axes.annotate(
        label,
        (x, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 4),
        textcoords="offset points",
        ha=ha,
        va="bottom",
        fontsize=8.5,
        color=MUTED,
    )


def _uri(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
