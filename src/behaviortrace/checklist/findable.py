"""Has the ground truth a gradient, so that it could be found?"""

from __future__ import annotations

from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.registry import Finding, check, not_run

SLACK = 1e-9  # a difference of two rounded numbers that should equal the threshold


@check(name="findable", title="Enough of the ground truth can be found at all", order=65)
def findable(evidence: Evidence) -> Finding:
    """Pass where the findable share of |GT| lies ``thresholds.headroom`` above chance.

    Chance is that of the trained window, where precision is judged; of all steps if unknown.

    A boosted rollout in a group without reward variance has no update gradient: it taught nothing,
    and no gradient can find it. The share of the others is the most that precision at |GT| can
    reach on merit; what lies above it is luck.
    """
    need = evidence.thresholds.headroom
    boosted, found = evidence.number("n_boosted"), evidence.number("n_findable")
    total = evidence.number("n_rollouts")
    if not boosted or found is None or not total:
        return not_run("no rollout is known to be boosted, or to be findable", headroom=need)
    inside = evidence.number("chance_trained_window")
    share, chance = found / boosted, boosted / total if inside is None else inside
    facts = {
        "boosted": boosted,
        "findable": found,
        "share": share,
        "chance": chance,
        "ceiling_findable": evidence.number("ceiling_findable"),
    }
    odd = evidence.unscored
    lost = odd.boosted - odd.findable if odd and odd.any else 0
    if lost:
        facts["lost_to_unscored"] = lost
    enough = share - chance >= need - SLACK
    return Finding(
        "pass" if enough else "fail",
        f"{found:,.0f} of {boosted:,.0f} boosted rollouts ({share:.0%}) are in a group with reward "
        f"variance; chance is {chance:.0%}"
        + ("" if enough else f", so that less than {need:.2f} is left to be found")
        + (f"; {lost:,} that are not share a group with a reward that is not finite" * bool(lost)),
        facts,
        {"headroom": need},
    )
