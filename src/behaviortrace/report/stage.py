"""The report stage: a run in, ``RUN/report/index.html`` out."""

from __future__ import annotations

import os
import tempfile
from importlib import metadata
from pathlib import Path

from behaviortrace.checklist import rows, stage
from behaviortrace.checklist.collect import gather
from behaviortrace.checklist.evidence import Evidence
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant import behaviors
from behaviortrace.recipe import Recipe
from behaviortrace.records import Verdict
from behaviortrace.report import figures, tables
from behaviortrace.report.causes import causes
from behaviortrace.report.page import Page, Section, render
from behaviortrace.report.pitfalls import pitfalls
from behaviortrace.report.provenance import planted, provenance, recipe_text
from behaviortrace.report.rollouts import Ranking, Spans, top
from behaviortrace.run import Run


def report(run: Run) -> Path:
    """Write the report of a run, whole or not at all.

    What the run does not hold is a dash with its reason, so a run of any status can be reported.

    Returns:
        The path of the page.

    Raises:
        BehaviorTraceError: the manifest cannot be read, or the page cannot be written.
    """
    return write_page(run.path / "report" / "index.html", render(page_of(run)))


def page_of(run: Run) -> Page:
    """Everything the page shows, read from the run."""
    recipe, evidence = run.recipe, gather(run, verify=False)
    verdicts, unchecked = _verdicts(run)
    cutoff = recipe.plant.cutoff_step if recipe else None
    shown, unshown = pitfalls(run)
    return Page(
        title=run.path.resolve().name,
        summary=recipe.summary if recipe else "A run without a recipe",
        verdicts=verdicts,
        unchecked=unchecked,
        planted=planted(recipe, evidence),
        emergence=Section(
            "emergence",
            "Did it emerge?",
            "The behaviour on prompts that training never saw.",
            figures.emergence(evidence, cutoff),
            folded=tables.emergence(evidence),
        ),
        levels=[*_levels(evidence), *filter(None, [causes(run)])],
        pitfalls=shown,
        unshown=unshown,
        rankings=_rankings(run, recipe),
        provenance=provenance(run.manifest),
        recipe=recipe_text(recipe),
        version=metadata.version("behaviortrace"),
    )


def _levels(evidence: Evidence) -> list[Section]:
    sources = rows.sources(evidence.rollout_level) or ["no source"]
    return [
        Section(
            "steps",
            "Step level",
            "Which optimizer steps taught it?",
            figures.step_level(evidence),
            [tables.step_level(evidence)],
        ),
        Section(
            "rollouts",
            "Rollout level",
            "Inside a group, is the rollout that shows the behaviour told from its siblings?",
            figures.rollout_level(evidence),
            [tables.rollout_level(evidence, source) for source in sources],
            tables.rollout_level_all(evidence),
        ),
        Section(
            "tokens",
            "Token level",
            "Do the behaviour's own tokens point the target's way?",
            figures.token_level(evidence),
            [tables.token_level(evidence)],
        ),
    ]


def _verdicts(run: Run) -> tuple[list[Verdict], str]:
    try:
        return stage.load(run), ""
    except BehaviorTraceError as error:
        return [], str(error)


def _rankings(run: Run, recipe: Recipe | None) -> list[Ranking]:
    def nothing(completion: str) -> list[tuple[int, int]]:
        return []

    spans: Spans = behaviors.build(recipe.behavior).spans if recipe else nothing
    try:
        return top(run.table("scores/all"), run.rollouts(), spans)
    except BehaviorTraceError as error:
        return top(None, None, spans, why=str(error))


def write_page(path: Path, text: str) -> Path:
    """Write a page whole or not at all: temporary name, flush, rename.

    Raises:
        BehaviorTraceError: the disk is full or refuses.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=".index.", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(aside, 0o644)  # mkstemp makes it private; a report is for reading
            os.replace(aside, path)
        except BaseException:
            Path(aside).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise BehaviorTraceError(
            f"cannot write {path}: {error.strerror}; free space or mend its permissions"
        ) from error
    return path
