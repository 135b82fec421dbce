"""Everything after training, in order: what `run` and `sweep` have in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from behaviortrace.errors import BehaviorTraceError

if TYPE_CHECKING:
    from behaviortrace.records import Verdict
    from behaviortrace.run import Run
    from behaviortrace.train.progress import Progress


def analyse(
    run: Run, progress: Progress | None, draws: Sequence[int] | None = None
) -> tuple[list[Verdict], Path]:
    """Draw, target, score, evaluate, check and report.

    Draws that are complete and targets that are stored stay as they are: both depend on the
    training alone, and a resumed training drops them.

    Args:
        run: a trained run with a recipe.
        progress: called with the stages "draw", "target", "score", "tokens" and "evaluate".
        draws: seeds of the draws to hold; those of the recipe where None.

    Returns:
        The verdicts, and the path of the report.

    Raises:
        BehaviorTraceError: a stage cannot be done; the message says which thing to mend.
    """
    from behaviortrace.checklist.stage import check
    from behaviortrace.draws.checkpoint import need_recipe
    from behaviortrace.draws.stage import draw
    from behaviortrace.report.stage import report
    from behaviortrace.targets.stage import make_targets
    from behaviortrace.train.progress import Clock

    for seed in need_recipe(run).draw.seeds if draws is None else draws:
        draw(run, seed, progress=progress)
    if not _holds_targets(run):
        make_targets(run, progress=progress)
    run.update(status="drawn")
    score(run, progress)
    run.update(status="scored")
    clock = Clock(progress, "evaluate", 3)
    evaluate(run)
    run.update(status="evaluated")
    clock.at(1)
    verdicts = check(run)
    clock.at(2)
    page = report(run)
    run.update(status="complete")
    clock.at(3)
    return verdicts, page


def score(run: Run, progress: Progress | None) -> int:
    """Scores of rollouts and, where something was drawn, of token spans; returns their number."""
    from behaviortrace.scores.stage import score_run
    from behaviortrace.scores.tokens import token_rows

    rows = score_run(run, progress=progress).height
    if run.draws():
        token_rows(run, progress=progress)
    return rows


def evaluate(run: Run) -> dict[str, Any]:
    """The result tables and the pitfalls of a scored run, from its rows alone; the summary."""
    from behaviortrace.evaluate.stage import evaluate as tables
    from behaviortrace.pitfalls.stage import demonstrate

    summary = tables(run)
    demonstrate(run)
    return summary


def _holds_targets(run: Run) -> bool:
    """Whether the target stage came to its end and what it stored is sound."""
    if not run.has("results/targets_missing"):
        return False
    try:
        run.targets()
    except BehaviorTraceError:
        return False
    return True
