"""Tables as a reader sees them: every number from the run, a dash with its reason where none is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from behaviortrace.checklist import rows
from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.registry import sentence
from behaviortrace.report.text import DASH


@dataclass(frozen=True)
class Cell:
    """One cell: its text, why it is a dash (where it is), and whether it is a number."""

    text: str
    reason: str | None = None
    numeric: bool = False


@dataclass(frozen=True)
class Table:
    """A table of the report.

    Attributes:
        caption: what it shows.
        columns: headings.
        rows: cells, one a heading.
        reason: why the table is empty, where it is.
    """

    caption: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    reason: str = ""

    @property
    def reasons(self) -> list[str]:
        """The distinct reasons of its dashes, in order of appearance."""
        found = (cell.reason for row in self.rows for cell in row if cell.reason)
        return list(dict.fromkeys(found))

    def note(self, cell: Cell) -> str:
        """The letter of a dash's reason below the table; empty for any other cell."""
        return _letter(self.reasons.index(cell.reason)) if cell.reason else ""

    @property
    def notes(self) -> list[tuple[str, str]]:
        """(letter, reason) of every distinct reason."""
        return [(_letter(i), reason) for i, reason in enumerate(self.reasons)]


def word(value: Any, reason: str = "not recorded") -> Cell:
    """A cell of text; a dash with the reason for None."""
    return Cell(str(value)) if value is not None else Cell(DASH, reason)


def number(value: Any, pattern: str = ".3f", reason: str | None = None) -> Cell:
    """A cell of one number; a dash with the reason where it is undefined."""
    found = rows.finite(value)
    if found is None:
        return Cell(DASH, reason or "not defined", numeric=True)
    return Cell(signed(format(found, pattern)), numeric=True)


def signed(text: str) -> str:
    """Formatted numbers with a minus sign for a hyphen, so that signs are as wide as a plus."""
    return text.replace("-", "−")


def interval(row: Mapping[str, Any] | None, value: str, reason: str) -> Cell:
    """A cell of a point with its interval, such as ``0.629 [0.561, 0.688]``."""
    point = rows.finite(row[value]) if row else None
    if row is None or point is None:
        return Cell(DASH, (row.get("reason") if row else None) or reason, numeric=True)
    lo, hi = rows.finite(row["lo"]), rows.finite(row["hi"])
    ends = f" [{lo:.3f}, {hi:.3f}]" if lo is not None and hi is not None else ""
    return Cell(signed(f"{point:.3f}{ends}"), numeric=True)


def emergence(evidence: Evidence) -> Table:
    """s_b by checkpoint, on probes and on control prompts."""
    caption = "Share of responses that show the behaviour, by checkpoint"
    probes, controls = evidence.emergence(), evidence.emergence("s_b_controls")
    if not probes:
        return Table(caption, reason="No held-out probe was answered.")
    body = [
        [
            number(step, ".0f"),
            number(rate, reason="probes of this checkpoint were not answered"),
            number(controls.get(step), reason="no control prompts at this checkpoint"),
        ]
        for step, rate in probes.items()
    ]
    return Table(caption, ["Step", "Held-out probes, s_b", "Control prompts"], body)


def step_level(evidence: Evidence) -> Table:
    """Precision at |GT| and lift of every estimator, over all rollouts and the trained window."""
    caption = "Step level: precision at |GT|, every rollout taking its step's score"
    frame = evidence.step_level
    if frame is None or not frame.height:
        return Table(caption, reason=sentence(evidence.why("step_level")))
    windows = ("overall", "trained_window")
    body = []
    for kind, name, target in _keys(frame, "target_free", "estimator", "target"):
        found = [
            _one(frame, table=w, target_free=kind, estimator=name, target=target) for w in windows
        ]
        cells = [word(name), word(target, "a control: it uses no target")]
        for row in found:
            why = (row and row.get("reason")) or "not evaluated in this table"
            cells.append(number(row and row["precision"], reason=why))
            cells.append(number(row and row["lift"], ".2f", reason=why))
        body.append(cells)
    for label, column in (("chance", "base_rate"), ("ceiling", "ceiling")):
        cells = [word(label), Cell("")]
        for window in windows:
            row = _one(frame, table=window)
            cells += [number(row and row[column]), Cell("")]
        body.append(cells)
    heads = ["Estimator", "Target", "Overall", "Lift", "Trained window", "Lift"]
    return Table(caption, heads, body)


def rollout_level(evidence: Evidence, source: str) -> Table:
    """Within-group AUC in one source: targeted scores group-centred, controls on plain sketches.

    Where an estimator was not run on that embedding, the first one it was run on is shown.
    """
    caption = f"Rollout level, {source}: within-group AUC with 95% interval"
    frame = rows.where(evidence.rollout_level, source=source, label="behavior")
    if frame is None:
        return Table(caption, reason=sentence(evidence.why("rollout_level")))
    caption += rows.over_prompts(frame.row(0, named=True))
    preferred = (
        pl.when("target_free").then(pl.lit("plain")).otherwise(pl.lit(rows.DIRECTION["embedding"]))
    )
    rank = (pl.col("embedding") != preferred).fill_null(True)  # the preferred embedding first
    shown = frame.with_columns(rank=rank).filter(
        pl.col("rank") == pl.col("rank").min().over("estimator", "target")
    )
    return _auc_table(caption, shown, ("estimator", "target"))


def rollout_level_all(evidence: Evidence) -> Table:
    """Within-group AUC of everything evaluated: every source, label and embedding."""
    caption = "Every rollout-level result"
    if evidence.rollout_level is None or not evidence.rollout_level.height:
        return Table(caption, reason=sentence(evidence.why("rollout_level")))
    keys = ("source", "label", "embedding", "estimator", "target")
    return _auc_table(caption, evidence.rollout_level, keys)


def token_level(evidence: Evidence) -> Table:
    """Mean cosine of each span's gradient with each target."""
    caption = "Token level: cosine of a span's gradient with each target, 95% interval"
    frame = evidence.token_level
    if frame is None or not frame.height:
        return Table(caption, reason=sentence(evidence.why("token_level")))
    repeated = any(rows.over_prompts(row) for row in frame.iter_rows(named=True))
    counts = ["n", "groups", *(["clusters"] if repeated else [])]
    body = [
        [
            word(row["span"]),
            word(row["target"]),
            interval(row, "mean", "no response shows the behaviour"),
            *(number(row[count], ",.0f") for count in counts),
        ]
        for row in frame.iter_rows(named=True)
    ]
    heads = ["Span", "Target", "Mean cosine", "Responses", "Groups", "Prompts"]
    return Table(caption, heads[: 3 + len(counts)], body)


def _auc_table(caption: str, frame: pl.DataFrame, keys: Sequence[str]) -> Table:
    absent = {"target": "a control: it uses no target", "embedding": "it uses no embedding"}
    body = []
    for values in _keys(frame, *keys):
        picked = dict(zip(keys, values, strict=True))
        raw, residualized, matched = (
            _one(frame, variant=v, **picked) for v in ("raw", "residualized", "matched")
        )
        body.append(
            [
                *(word(v, absent.get(k, "not recorded")) for k, v in picked.items()),
                interval(raw, "auc", "not evaluated"),
                interval(residualized, "auc", "not evaluated"),
                interval(matched, "auc", "not evaluated"),
                number(raw and raw["pairs"], ",.0f"),
                number(matched and matched["pairs"], ",.0f"),
            ]
        )
    heads = [k.capitalize() for k in keys]
    heads += ["Raw AUC", "Fluency-residualised", "Fluency-matched", "Pairs", "Matched pairs"]
    return Table(caption, heads, body)


def _keys(frame: pl.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Distinct values of the columns, in order of appearance; targeted before target-free."""
    found = frame.select(columns).unique(maintain_order=True)
    if "target_free" in columns:
        found = found.sort("target_free", maintain_order=True)
    return found.rows()


def _one(frame: pl.DataFrame, **conditions: Any) -> rows.Row | None:
    """The first row that equals every condition; a None condition asks for null."""
    tests = [pl.col(c).is_null() if v is None else pl.col(c) == v for c, v in conditions.items()]
    found = frame.filter(tests)
    return found.row(0, named=True) if found.height else None


def _letter(index: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return letters[index % 26] * (1 + index // 26)
