"""Does the direction separate rollouts once fluency is controlled, and better than magnitude?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from behaviortrace.checklist import rows
from behaviortrace.checklist.evidence import Evidence
from behaviortrace.checklist.registry import Finding, check, not_run
from behaviortrace.recipe import Thresholds

SLACK = 1e-9  # a difference of two rounded numbers that should equal the threshold


@check(
    name="fluency", title="The direction survives a fluency control and beats magnitude", order=90
)
def fluency(evidence: Evidence) -> Finding:
    """Pass where every decisive source meets the pre-registered rollout-level rule (Section 3.5).

    The residualised AUC of the group-centred GAS with the minimal-pair target: its interval above
    0.5, no wider than ``thresholds.rollout_width``, and its point above norm's. Matched pairs are
    reported, and named as powered from ``thresholds.matched_pairs`` on, with the smallest AUC they
    detect; so is the AUC with fluency regressed out by a spline, and with the gradient's norm
    regressed out beside it. A norm below 0.5 ranks as well turned round; that is told. Decisive
    are the fresh draws; training where there is none.

    The direction is the one pre-registered claim. All targeted rankings together are a family: how
    many stand after Holm's correction is reported.
    """
    limits = {
        "above": 0.5,
        "rollout_width": evidence.thresholds.rollout_width,
        "matched_pairs": evidence.thresholds.matched_pairs,
    }
    names = rows.decisive(evidence.rollout_level)
    if not names:
        return not_run(evidence.why("rollout_level"), **limits)
    facts: dict[str, dict[str, Any]] = {}
    failed: list[str] = []
    undefined: list[str] = []
    for source in names:
        found, reason = _source(evidence, source)
        facts[source] = found
        if reason:
            undefined.append(f"in {source} {reason}")
        elif short := shortfalls(found, evidence.thresholds):
            failed.append(f"in {source} {' and '.join(short)}")
    all_found = {"sources": facts}
    if undefined and not failed:
        return Finding("not run", "; ".join(undefined), all_found, limits)
    described = "; ".join(_describe(name, found) for name, found in facts.items())
    if failed:
        return Finding("fail", f"{'; '.join(failed)}: {described}", all_found, limits)
    return Finding("pass", f"every source meets the rule: {described}", all_found, limits)


_FURTHER = (
    (1, "with_norm", "with norm regressed out too", ", so magnitude may explain it"),
    (1, "spline", "by a spline", ", so a bent effect of fluency may explain it"),
)
"""Further controls: where in the sentence, key, how it reads, and what it would mean."""


def _source(evidence: Evidence, source: str) -> tuple[dict[str, Any], str | None]:
    """The numbers of one source, and why it cannot be judged (None where it can)."""
    table = evidence.rollout_level
    score = rows.direction(table, source, "residualized")
    norm = rows.control(table, source, "residualized", "norm")
    raw = rows.control(table, source, "raw", "fluency")
    matched = rows.direction(table, source, "matched") or {}
    bent = rows.direction(table, source, "residualized_spline") or {}
    both = rows.direction(table, source, "residualized_norm") or {}
    pairs = matched.get("pairs")
    found = {
        **{c: rows.finite(score[c]) if score else None for c in ("auc", "lo", "hi", "pairs")},
        "norm": rows.finite(norm["auc"]) if norm else None,
        "fluency_raw": rows.finite(raw["auc"]) if raw else None,
        "interval": score.get("interval") if score else None,
        "groups": score.get("groups") if score else None,
        "clusters": score.get("clusters") if score else None,
        "p_holm": rows.finite(score.get("p_holm")) if score else None,
        **{f"spline_{c}": rows.finite(bent.get(c)) for c in ("auc", "lo", "hi")},
        **{f"with_norm_{c}": rows.finite(both.get(c)) for c in ("auc", "lo", "hi")},
        "matched": rows.finite(matched.get("auc")),
        "matched_pairs": pairs,
        "matched_powered": None if pairs is None else pairs >= evidence.thresholds.matched_pairs,
        "matched_detectable": rows.finite(matched.get("detectable")),
        "family": rows.family(table, source, "residualized"),
    }
    if score is None:
        return found, "the group-centred GAS with the minimal-pair target was not evaluated"
    if None in (found["auc"], found["lo"], found["hi"]):
        return found, score.get("reason") or "its residualised AUC is undefined"
    if found["norm"] is None:
        reason = norm.get("reason") if norm else None
        return found, reason or "norm has no residualised AUC to compare with"
    return found, None


def shortfalls(found: Mapping[str, Any], thresholds: Thresholds) -> list[str]:
    """What the pre-registered rollout-level rule (Section 3.5) finds wanting.

    Args:
        found: numbers ``auc``, ``lo`` and ``hi`` of the direction, and ``norm``, norm's AUC.
        thresholds: the recipe's.
    """
    short = []
    if found["lo"] <= 0.5:
        short.append("the interval is not above 0.5")
    if found["hi"] - found["lo"] > thresholds.rollout_width + SLACK:
        width = found["hi"] - found["lo"]
        short.append(f"its width {width:.3f} exceeds {thresholds.rollout_width:g} (inconclusive)")
    if found["auc"] <= found["norm"]:
        short.append("the point is not above norm's")
    return short


def _turned(norm: float) -> str:
    return f" (turned round {1 - norm:.3f})" if norm < 0.5 else ""


def _describe(source: str, found: dict[str, Any]) -> str:
    if None in (found["auc"], found["lo"], found["hi"], found["norm"]):
        return f"{source} is undefined"
    if found["matched_pairs"] is None:
        matched = "no matched pairs"
    else:
        power = "powered" if found["matched_powered"] else "not powered"
        seen = found["matched_detectable"]
        smallest = "" if seen is None else f", AUC {seen:.3f} detectable at 80%"
        pairs = "pair" if found["matched_pairs"] == 1 else "pairs"
        matched = f"{found['matched_pairs']} matched {pairs} ({power}{smallest})"
    kind = f" ({found['interval']}{rows.over_prompts(found)})" if found["interval"] else ""
    parts = [
        f"{source} has direction {found['auc']:.3f} [{found['lo']:.3f}, {found['hi']:.3f}]{kind}",
        f"norm {found['norm']:.3f}{_turned(found['norm'])}",
        matched,
    ]
    for at, key, how, doubt in _FURTHER:
        if None not in (found[f"{key}_auc"], found[f"{key}_lo"], found[f"{key}_hi"]):
            ends = f"[{found[f'{key}_lo']:.3f}, {found[f'{key}_hi']:.3f}]"
            doubted = doubt if found["lo"] > 0.5 >= found[f"{key}_lo"] else ""
            parts.insert(at, f"{how} {found[f'{key}_auc']:.3f} {ends}{doubted}")
    if found["family"]:
        judged, stand = found["family"]["judged"], found["family"]["above"]
        rankings = "targeted ranking" if judged == 1 else "targeted rankings"
        verb = "stands" if stand == 1 else "stand"
        parts.append(f"and of {judged} {rankings} {stand} {verb} above 0.5 after Holm")
    return ", ".join(parts)
