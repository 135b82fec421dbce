"""Is a target free of what it is compared with, and what do its minimal pairs differ in?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.registry import Finding, check, not_run

SAMPLED = {"in_context"}
"""Targets of sampled replies, against which nothing is decided as they are stored."""


@check(name="targets", title="Targets hold nothing of what they are compared with", order=55)
def targets(evidence: Evidence) -> Finding:
    """Pass where no judged rollout is a reply that a deciding target was made of.

    Deciding are the written targets: the minimal pairs of the rollout level, the constructed one of
    the token level. The token level's in-context target is made anew for every response, and has to
    leave out the response's own prompt. The stored in-context one is sampled, and may by chance
    hold what was sampled in training too: that is told.

    What the minimal pairs differ in besides the behaviour, fluency and gradient norm, is reported:
    the direction carries it, and the controls have to take it out.
    """
    found = evidence.targets
    if found is None or not any(found.texts.values()):
        none = "the run has no target that says what it was made of"
        return not_run(evidence.absent.get("targets", none))
    facts: dict[str, Any] = {
        "texts": dict(found.texts),
        "shared": dict(found.shared),
        "judged": found.judged,
        "left_out": found.left_out,
        **_spread("fluency_gap", found.gaps),
        **_spread("norm_ratio", found.ratios),
    }
    shared = {name: f"{n} in {name}" for name, n in found.shared.items() if n}
    wrong = []
    if deciding := [said for name, said in shared.items() if name not in SAMPLED]:
        wrong.append(
            f"of {found.judged:,} judged rollouts some are replies of a target: "
            f"{', '.join(deciding)}"
        )
    if found.open:
        wrong.append(f"the token level is not cross-fit: {found.open}")
    about = _about_pairs(facts)
    if wrong:
        return Finding("fail", f"{' and '.join(wrong)}{about}", facts)
    by_chance = [said for name, said in shared.items() if name in SAMPLED]
    told = f" ({', '.join(by_chance)} by chance, which decides nothing)" if by_chance else ""
    fit = f", and tokens are cross-fit over {found.left_out} prompts" if found.left_out else ""
    return Finding(
        "pass",
        f"none of {found.judged:,} judged rollouts is a reply that a deciding target is made of"
        f"{told}{fit}{about}",
        facts,
    )


def _spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    known = [value for value in values if np.isfinite(value)]
    if not known:
        return dict.fromkeys((name, f"{name}_lowest", f"{name}_highest"))
    return {
        name: float(np.mean(known)),
        f"{name}_lowest": min(known),
        f"{name}_highest": max(known),
    }


def _about_pairs(facts: dict[str, Any]) -> str:
    gap, ratio = facts["fluency_gap"], facts["norm_ratio"]
    if gap is None or ratio is None:
        return ""
    low, high = facts["fluency_gap_lowest"], facts["fluency_gap_highest"]
    return (
        f"; replies with the behaviour are {abs(gap):.2f} nats {'more' if gap > 0 else 'less'} "
        f"fluent than their neutral pairs ({low:+.2f} to {high:+.2f}), their gradients "
        f"{ratio:.2f} times as large"
    )
