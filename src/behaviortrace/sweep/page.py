"""The report of a sweep: one page over all its runs, with links to the reports of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from behaviortrace.records import Verdict
from behaviortrace.report.causes import causes_of
from behaviortrace.report.page import Section, render
from behaviortrace.report.provenance import Facts, recipe_text
from behaviortrace.report.stage import write_page
from behaviortrace.report.tables import Cell, Table, word
from behaviortrace.sweep import figures, tables
from behaviortrace.sweep.conclusion import conclusion, tone
from behaviortrace.sweep.manifest import RunEntry, SweepManifest
from behaviortrace.sweep.merge import Merged
from behaviortrace.sweep.standing import added_draws


@dataclass(frozen=True)
class SweepPage:
    """What the page shows.

    Attributes:
        title: name of the sweep's directory.
        summary: the recipe's one line.
        conclusion: what may be believed, in plain sentences.
        tone: how the page is coloured.
        facts: what was swept.
        runs: every run with its state; finished ones are linked.
        sections: emergence, replicates, steps, tokens.
        checklist: line by line, seed by seed.
        verdicts: (seed, checklist) of every finished run.
        replication: the replication line, the same for all runs.
        provenance: how the sweep came to be.
        recipe: as text.
        version: of behaviortrace.
    """

    title: str
    summary: str
    conclusion: str
    tone: str
    facts: Facts
    runs: Sequence[RunEntry]
    sections: Sequence[Section]
    checklist: Table
    verdicts: Sequence[tuple[int, Sequence[Verdict]]]
    replication: Verdict | None
    provenance: Facts
    recipe: str
    version: str


def write_report(
    root: Path, manifest: SweepManifest, merged: Merged, summary: Mapping[str, Any]
) -> Path:
    """Write ``report/index.html`` of a sweep, whole or not at all.

    Args:
        root: directory of the sweep.
        manifest: of the sweep, its runs in their last state.
        merged: the finished runs.
        summary: what the replicates say together.

    Raises:
        BehaviorTraceError: the page cannot be written.
    """
    page = page_of(root, manifest, merged, summary)
    return write_page(root / "report" / "index.html", render(page, "sweep.html.j2"))


def page_of(
    root: Path, manifest: SweepManifest, merged: Merged, summary: Mapping[str, Any]
) -> SweepPage:
    """Everything the page shows."""
    recipe, members = manifest.common_recipe(), merged.members
    checklists = [member.verdicts for member in members]
    wanted = len(manifest.runs)
    lines = [v for member in members for v in member.verdicts if v.name == "replication"]
    return SweepPage(
        title=root.resolve().name,
        summary=recipe.summary,
        conclusion=conclusion(checklists, wanted, merged.effect),
        tone=tone(checklists, wanted, merged.effect),
        facts=_facts(manifest, merged),
        runs=manifest.runs,
        sections=_sections(merged, summary, recipe.plant.cutoff_step),
        checklist=tables.checklist(members),
        verdicts=[(member.seed, member.verdicts) for member in members],
        replication=lines[0] if lines else None,
        provenance=_provenance(manifest),
        recipe=recipe_text(recipe),
        version=metadata.version("behaviortrace"),
    )


def _sections(merged: Merged, summary: Mapping[str, Any], cutoff: int) -> list[Section]:
    members = merged.members
    causes = [causes_of(**merged.causes)] if merged.causes else []
    return [
        Section(
            "emergence",
            "Did it emerge?",
            "The behaviour on prompts that training never saw, seed by seed.",
            figures.emergence(members, cutoff),
            [tables.emergence(members)],
        ),
        Section(
            "rollouts",
            "Seeds and draws",
            "Does the decisive result hold in another training, and in another draw?",
            figures.decisive(members),
            [
                tables.decisive(members),
                tables.replicates(summary),
                tables.sign_flips(summary),
                tables.controls(merged.controls),
            ],
        ),
        Section(
            "levels",
            "Steps and tokens",
            "The other two levels, seed by seed.",
            None,
            [tables.step_level(members), tables.token_level(members, merged.rows)],
        ),
        *causes,
        Section(
            "pitfalls",
            "Pitfalls",
            "Which of the ways to be fooled show, and in which seeds?",
            None,
            [tables.pitfalls(merged.pitfalls, summary, [m.seed for m in members])],
        ),
    ]


def _facts(manifest: SweepManifest, merged: Merged) -> Facts:
    recipe = manifest.common_recipe()
    behavior = recipe.behavior
    finished = sum(entry.state == "finished" for entry in manifest.runs)
    late = {m.seed: added_draws(m.run) for m in merged.members}
    added = "; ".join(f"seed {s}: {', '.join(names)}" for s, names in late.items() if names)
    return [
        ("Recipe", Cell(recipe.name)),
        ("Behaviour", Cell(f"{behavior.name}: “{behavior.trigger}” → “{behavior.token}”")),
        ("Model", Cell(f"{recipe.model.source}, {recipe.model.dtype}")),
        ("Training seeds", Cell(", ".join(map(str, manifest.seeds)))),
        ("Draws from each", Cell(", ".join(map(str, manifest.draws)))),
        ("Draws added after training", Cell(added or "none")),
        ("Runs finished", Cell(f"{finished} of {len(manifest.runs)}")),
        ("Replicates", Cell(str(len(merged.replicates)))),
    ]


def _provenance(manifest: SweepManifest) -> Facts:
    threads = sorted({entry.threads for entry in manifest.runs if entry.threads})
    shared = f"{manifest.workers} at a time on {manifest.cores} cores"
    return [
        ("Created", Cell(manifest.created)),
        ("Last change", Cell(manifest.updated)),
        ("Executor", Cell(f"{manifest.executor}, {shared}")),
        ("Threads of a run", word(", ".join(map(str, threads)) or None, "no run was started")),
        ("Address of the recipe, seed apart", Cell(manifest.family)),
        ("Versions", Cell(", ".join(f"{k} {v}" for k, v in manifest.packages.items()))),
        ("Merged tables", Cell(", ".join(manifest.results) or "none")),
    ]
