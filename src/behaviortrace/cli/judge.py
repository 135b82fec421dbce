"""The `auc` and `precision` commands: judge anyone's scores by the same statistics."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from behaviortrace.cli import view
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate.control import Control

if TYPE_CHECKING:
    import numpy as np

    from behaviortrace.evaluate.bootstrap import Interval
    from behaviortrace.evaluate.within_group import AucReport, Judged

Shown = Literal["percentile", "logit-t"]

_ROWS_HELP = (
    "One row a rollout: Parquet, or text separated by comma, semicolon, tab or bar; "
    "plain, gzip or zstd. The content tells, not the name."
)
_RESERVED = ("pairs", "delta")  # keys of the "matched" block beside the scores' names


def auc(
    rows: Annotated[Path, typer.Argument(help=_ROWS_HELP)],
    label: Annotated[str, typer.Option(help="Column: does the rollout show the behaviour (0/1)?")],
    group: Annotated[str, typer.Option(help="Column: rollouts of one prompt in one step.")],
    score: Annotated[list[str], typer.Option(help="Column to judge; give it once a score.")],
    fluency: Annotated[
        str | None, typer.Option(help="Column: mean token log-probability, to control for.")
    ] = None,
    matched: Annotated[
        float, typer.Option(help="Largest fluency difference of a matched pair, nats.")
    ] = 0.10,
    cluster: Annotated[
        str | None,
        typer.Option(help="Column: what is independent, such as the prompt, if groups repeat one."),
    ] = None,
    residual: Annotated[
        Control, typer.Option(help="How fluency is regressed out: one slope, or a spline.")
    ] = "linear",
    interval: Annotated[
        Shown, typer.Option(help="Interval shown: the paper's, or the one that holds.")
    ] = "percentile",
    resamples: Annotated[
        int, typer.Option(help="Bootstrap resamples over groups, or clusters.")
    ] = 5000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Within-group AUC of scores: raw, with fluency regressed out, and on fluency-matched pairs."""
    from behaviortrace.evaluate import rows as tables
    from behaviortrace.evaluate.within_group import judge

    names = tables.distinct(score, "--score")
    if fluency is not None:
        _refuse_reserved(names)
    further = [name for name in (fluency, cluster) if name is not None]
    table = tables.read_rows(rows, [label, group, *names, *further])
    report = judge(
        tables.labels(table, label),
        tables.keys(table, group, "--group"),
        {name: tables.numbers(table, name, "--score") for name in names},
        None if fluency is None else tables.numbers(table, fluency, "--fluency"),
        delta=matched,
        resamples=resamples,
        seed=seed,
        control=residual,
        cluster=None if cluster is None else tables.clusters(table, cluster, group),
    )
    if report.pairs == 0:
        raise BehaviorTraceError(
            f"{rows}: no group of {group!r} holds both a row with and one without {label!r}, "
            "so there is no pair to rank; check --label and --group"
        )
    _warn(report.warnings)
    if as_json:
        _print_json(auc_json(report))
    else:
        _print_auc(report, interval)


def precision(
    scores: Annotated[Path, typer.Argument(help=_ROWS_HELP)],
    label: Annotated[str, typer.Option(help="Column: is the row ground truth (0/1)?")],
    score: Annotated[list[str], typer.Option(help="Column to judge; give it once a score.")],
    block: Annotated[
        str | None, typer.Option(help="Column of tie blocks, such as the step: sets the ceiling.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tie-aware precision at |GT|, with the base rate and the ceiling of the tie blocks."""
    from behaviortrace.evaluate import rows as tables

    names = tables.distinct(score, "--score")
    table = tables.read_rows(scores, [label, *names, *([] if block is None else [block])])
    truth = tables.labels(table, label)
    columns = {name: tables.numbers(table, name, "--score") for name in names}
    blocks = None if block is None else tables.keys(table, block, "--block")
    if not truth.any():
        raise BehaviorTraceError(
            f"{scores}: column {label!r} has no positive among {len(truth)} rows, so precision at "
            "|GT| is undefined; check --label"
        )
    result = precision_json(truth, columns, blocks)
    _warn(result["warnings"])
    if as_json:
        _print_json(result)
    else:
        _print_precision(result, block)


def auc_json(report: AucReport) -> dict[str, Any]:
    """The JSON of `auc`; undefined numbers are None.

    ``lo`` and ``hi`` of a score are the paper's percentile interval. Under ``logit_t`` the same
    scores have the interval that holds, with its p-value and that adjusted by Holm over the scores.
    Where an interval would carry no information its ends are None, and ``no_interval`` says why.
    """
    from behaviortrace.evaluate.power import POWER

    matched: dict[str, Any] | None = None
    if report.matched is not None:
        matched = {"pairs": report.matched_pairs, "delta": report.delta, **_cells(report.matched)}
    blocks = {
        "raw": report.raw,
        "residualized": report.residualized,
        "matched": report.matched,
    }
    return {
        "pairs": report.pairs,
        "groups": report.groups,
        "groups_with_pairs": report.groups_with_pairs,
        "clusters": report.clusters,
        "raw": _cells(report.raw),
        "residualized": None if report.residualized is None else _cells(report.residualized),
        "matched": matched,
        "logit_t": {n: None if b is None else _tested(b) for n, b in blocks.items()},
        "no_interval": {n: None if b is None else _reasons(b) for n, b in blocks.items()},
        "control": None if report.residualized is None else report.control,
        "detectable": {
            "power": POWER,
            "all_pairs": _number(report.detectable),
            "matched": _number(report.matched_detectable),
        },
        "warnings": list(report.warnings),
    }


def precision_json(
    label: np.ndarray, scores: Mapping[str, np.ndarray], block: np.ndarray | None
) -> dict[str, Any]:
    """The JSON of `precision`, from arrays of shape (n,) with at least one positive label."""
    from behaviortrace.evaluate import precision as precision_metric

    rate = precision_metric.base_rate(label)
    results = {}
    warnings = []
    for name, values in scores.items():
        reached = precision_metric.precision_at_ground_truth(values, label)
        results[name] = {"precision": reached, "lift": precision_metric.lift(reached, rate)}
        varying = 0 if block is None else _varying_blocks(values, block)
        if varying:
            warnings.append(
                f"score {name!r} varies inside {varying} blocks, so the ceiling does not bound it"
            )
    return {
        "n": len(label),
        "positives": int(label.sum()),
        "base_rate": rate,
        "ceiling": precision_metric.ceiling(label, block),
        "scores": results,
        "warnings": warnings,
    }


def _varying_blocks(values: np.ndarray, block: np.ndarray) -> int:
    import numpy as np

    order = np.argsort(block, kind="stable")
    block, values = block[order], values[order]
    changed = (block[1:] == block[:-1]) & (values[1:] != values[:-1])
    return len(np.unique(block[1:][changed]))


def _refuse_reserved(names: Sequence[str]) -> None:
    for name in names:
        if name in _RESERVED:
            raise BehaviorTraceError(
                f"--score {name} has the name of a key of the result; rename the column"
            )


def _cells(intervals: Mapping[str, Interval]) -> dict[str, dict[str, float | None]]:
    return {
        name: {"auc": _number(i.point), "lo": _number(i.lo), "hi": _number(i.hi)}
        for name, i in intervals.items()
    }


def _tested(judged: Mapping[str, Judged]) -> dict[str, dict[str, float | None]]:
    import numpy as np

    from behaviortrace.evaluate.multiplicity import holm

    adjusted = holm(np.array([j.p for j in judged.values()]))
    return {
        name: {
            "lo": _number(j.logit_t.lo),
            "hi": _number(j.logit_t.hi),
            "p": _number(j.p),
            "p_holm": _number(float(family)),
        }
        for (name, j), family in zip(judged.items(), adjusted, strict=True)
    }


def _reasons(judged: Mapping[str, Judged]) -> dict[str, dict[str, str | None]]:
    """Why each score has no interval; None where it has one."""
    return {
        name: {"percentile": j.reason, "logit_t": j.logit_t.reason} for name, j in judged.items()
    }


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def _print_json(data: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(data, indent=2, allow_nan=False))


def _warn(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        typer.echo(f"warning: {sentence}", err=True)


def _print_auc(report: AucReport, interval: Shown) -> None:
    unit = "groups" if report.clusters == report.groups else f"{report.clusters} clusters"
    title = f"Within-group AUC [95% {interval} interval over {unit}]"
    table = Table(title=title, title_justify="left")
    table.add_column("score")
    variants: dict[str, Mapping[str, Judged]] = {f"raw\n({report.pairs} pairs)": report.raw}
    if report.residualized is not None and report.matched is not None:
        how = "" if report.control == "linear" else f" ({report.control})"
        variants[f"fluency\nregressed out{how}"] = report.residualized
        title = f"within {report.delta:g} nats\n({report.matched_pairs} pairs)"
        variants[title] = report.matched
    for title in variants:
        table.add_column(title, no_wrap=True)
    for name in report.raw:
        cells = [_shown(_chosen(judged[name], interval)) for judged in variants.values()]
        table.add_row(name, *cells)
    view.stdout.print(table)
    for title, judged in variants.items():
        for why, names in _without(judged, interval).items():
            typer.echo(f"no interval: {', '.join(names)} ({title.splitlines()[0]}): {why}")
    typer.echo(_auc_sentence(report, interval))


def _chosen(judged: Judged, interval: Shown) -> Interval:
    from behaviortrace.evaluate.logit_t import METHOD

    return judged.logit_t if interval == METHOD else judged


def _shown(interval: Interval) -> str:
    if math.isnan(interval.point):
        return "undefined"
    if math.isnan(interval.lo):
        return f"{_short(interval.point)} (no interval)"
    return f"{_short(interval.point)} [{_short(interval.lo)}, {_short(interval.hi)}]"


def _without(judged: Mapping[str, Judged], interval: Shown) -> dict[str, list[str]]:
    """Names of the scores that have an AUC and no interval, by reason."""
    found: dict[str, list[str]] = {}
    for name, each in judged.items():
        chosen = _chosen(each, interval)
        if chosen.reason is not None and not math.isnan(chosen.point):
            found.setdefault(chosen.reason, []).append(name)
    return found


def _short(value: float) -> str:
    """Three decimals without the leading zero, as AUCs are printed in the field."""
    return f"{value:.3f}".removeprefix("0")


def _auc_sentence(report: AucReport, interval: Shown) -> str:
    import numpy as np

    from behaviortrace.evaluate.multiplicity import holm
    from behaviortrace.evaluate.power import POWER

    block = report.raw if report.residualized is None else report.residualized
    ends = {name: _chosen(judged, interval) for name, judged in block.items()}
    above = [name for name, i in ends.items() if i.lo > 0.5]
    below = [name for name, i in ends.items() if i.hi < 0.5]
    control = (
        "Fluency is not controlled for; give --fluency. "
        if report.residualized is None
        else "With fluency regressed out, "
    )
    parts = [f"above chance: {', '.join(above) or 'none'}"]
    if below:
        parts.append(f"below chance: {', '.join(below)}")
    if len(block) > 1:
        adjusted = dict(zip(block, holm(np.array([j.p for j in block.values()])), strict=True))
        kept = [name for name in above if adjusted[name] <= 0.05]
        parts.append(f"of {len(block)} scores, by Holm: {', '.join(kept) or 'none'}")
    smallest = _number(report.matched_detectable)
    power = (
        ""
        if smallest is None
        else f" The matched pairs detect an AUC from {_short(smallest)} on with {POWER:.0%} power."
    )
    lie = "" if report.clusters == report.groups else f" ({report.clusters} clusters)"
    return (
        f"{report.pairs} pairs in {report.groups_with_pairs} of {report.groups} groups{lie}. "
        f"{control}{'; '.join(parts)}.{power}"
    )


def _print_precision(result: Mapping[str, Any], block: str | None) -> None:
    table = Table(title="Precision at |GT|", title_justify="left")
    for title in ("score", "precision", "lift"):
        table.add_column(title)
    for name, cell in result["scores"].items():
        table.add_row(name, f"{cell['precision']:.4f}", f"{cell['lift']:.2f}")
    view.stdout.print(table)
    ties = "no tie blocks given" if block is None else f"rows tied by {block}"
    typer.echo(
        f"{result['positives']} of {result['n']} rows are ground truth: a random order reaches "
        f"{result['base_rate']:.4f}, the best possible {result['ceiling']:.4f} ({ties})."
    )
