"""The page: everything the template shows, and the one place it is rendered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2
from markupsafe import Markup, escape

from behaviortrace.checklist.conclusion import LEVELS, believed, conclusion
from behaviortrace.records import Verdict
from behaviortrace.report.pitfalls import Pitfall
from behaviortrace.report.provenance import Facts
from behaviortrace.report.rollouts import Ranking
from behaviortrace.report.style import Picture
from behaviortrace.report.tables import Table, signed
from behaviortrace.report.text import finalize, visible


@dataclass(frozen=True)
class Section:
    """A level of the evaluation: its figure, its tables, and one long table folded away."""

    anchor: str
    title: str
    question: str
    picture: Picture | None = None
    tables: Sequence[Table] = ()
    folded: Table | None = None


@dataclass(frozen=True)
class Page:
    """What the report shows.

    Attributes:
        title: name of the run.
        summary: the recipe's one line.
        verdicts: the checklist.
        unchecked: why there are no verdicts.
        planted: what was planted.
        emergence: s_b over training.
        levels: step, rollout and token level.
        pitfalls: the paper's, as far as the run was tried for them.
        unshown: (name, reason) of the others.
        rankings: highest-ranked rollouts.
        provenance: how the run came to be.
        recipe: the recipe as text.
        version: of behaviortrace.
    """

    title: str
    summary: str
    verdicts: Sequence[Verdict]
    planted: Facts
    emergence: Section
    levels: Sequence[Section]
    rankings: Sequence[Ranking]
    provenance: Facts
    pitfalls: Sequence[Pitfall] = ()
    unshown: Sequence[tuple[str, str]] = ()
    unchecked: str = ""
    recipe: str = ""
    version: str = ""
    counts: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        counts = {
            status: sum(v.status == status for v in self.verdicts)
            for status in ("pass", "fail", "not run")
        }
        object.__setattr__(self, "counts", counts)

    @property
    def conclusion(self) -> str:
        """What may be believed, in one sentence."""
        return conclusion(self.verdicts)

    @property
    def tone(self) -> str:
        """ "believed", "partly", "refused", or "open" where nothing has run."""
        if levels := believed(self.verdicts):
            return "believed" if len(levels) == len(LEVELS) else "partly"
        return "refused" if any(v.status != "not run" for v in self.verdicts) else "open"


def render(page: Any, template: str = "report.html.j2") -> str:
    """A page as one HTML document that needs nothing else: no script, no outside resource.

    Every value is escaped, and characters that would hide or reorder text are shown by number.

    Args:
        page: what the template calls ``page``; a :class:`Page` for the report of a run.
        template: of the folder ``templates``.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("behaviortrace.report", "templates"),
        autoescape=True,
        finalize=finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["thresholds"] = _thresholds
    environment.filters["evidence"] = _evidence
    environment.filters["code"] = _code
    environment.filters["signed"] = signed
    return environment.get_template(template).render(page=page).lstrip()


def _thresholds(verdict: Verdict) -> str:
    return " · ".join(f"{k.replace('_', ' ')} {v}" for k, v in verdict.thresholds.items())


def _code(text: str) -> Markup:
    """Escaped text, what stands between backticks set as code."""
    pieces = visible(text).split("`")
    if len(pieces) % 2 == 0:
        return escape(visible(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if i % 2 else escape(piece)
        for i, piece in enumerate(pieces)
    )


def _evidence(verdict: Verdict) -> str:
    shown: dict[str, Any] = {k: v for k, v in verdict.evidence.items() if k != "preregistered"}
    return json.dumps(shown, indent=2, ensure_ascii=False, default=str) if shown else ""
