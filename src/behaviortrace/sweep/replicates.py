"""What the replicates of a sweep say together: the place where seeds and draws are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from behaviortrace.checklist.evidence import Replicate
from behaviortrace.checklist.replication import components_of, facts_of, flips_of
from behaviortrace.errors import BehaviorTraceError


def summarise_replicates(replicates: Sequence[Replicate]) -> dict[str, Any]:
    """Compare the decisive results of all seeds and draws.

    The merged replicates of a sweep are handed on here and nowhere else; what is returned is
    printed, stored in the sweep's results and shown in its report.

    Args:
        replicates: the decisive rollout-level result of every draw of every run.

    Returns:
        ``replicates``, their number; ``separating`` and ``reversed``, how many intervals lie above
        and below 0.5; ``sign_flips``, a row a seed; ``disagree``, of
        :func:`one_run_is_not_enough`; and ``components``, those of the checklist's replication
        line, or None where there are too few to tell seeds from draws, with the reason in
        ``components_missing`` (else None).
    """
    found, missing = None, None
    try:
        found = dict(facts_of(components_of(replicates)))
    except BehaviorTraceError as error:
        missing = str(error)
    return {
        "replicates": len(replicates),
        "separating": sum(replicate.side == "above" for replicate in replicates),
        "reversed": sum(replicate.side == "below" for replicate in replicates),
        "sign_flips": flips_of(replicates),
        "disagree": one_run_is_not_enough(replicates),
        "components": found,
        "components_missing": missing,
    }


def one_run_is_not_enough(replicates: Sequence[Replicate]) -> bool | None:
    """P6: whether single draws would have said different things.

    Returns:
        Whether the AUC's side of 0.5, or whether its interval excludes 0.5, differs between the
        replicates; where it does not, None unless they are of several seeds.
    """
    if len({(r.auc > 0.5, r.side) for r in replicates}) > 1:
        return True
    return False if len({r.seed for r in replicates}) > 1 else None
