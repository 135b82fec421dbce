"""Every line of the checklist: pass, fail, not run, and the threshold itself."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from behaviortrace import checklist
from behaviortrace.checklist import (
    Coverage,
    Evidence,
    Finding,
    HeldOut,
    Replicate,
    Targets,
    check,
    gather,
    stage,
)
from behaviortrace.checklist.registry import _CHECKS, sentence
from behaviortrace.checklist.rows import best_targeted, decisive, finite
from behaviortrace.plant.unscored import Unscored
from behaviortrace.recipe import Thresholds
from behaviortrace.records import Verdict
from tests import fake_run

NAMES = [line.name for line in checklist.registered()]
PAPER = {"norm_control", "headroom", "embedding", "in_context", "fluency", "replication"}


def verdict(name: str, evidence: Evidence) -> Verdict:
    return next(line for line in checklist.registered() if line.name == name).judge(evidence)


def step_table(*, best: Any = 0.5, norm: Any = 0.3, chance: Any = 0.3, ceiling: Any = 0.6) -> Any:
    shared = {"table": "trained_window", "base_rate": chance, "ceiling": ceiling}
    return pl.DataFrame(
        [
            {
                **shared,
                "estimator": "gas",
                "target": "minimal_pair",
                "target_free": False,
                "precision": best,
            },
            {**shared, "estimator": "norm", "target": None, "target_free": True, "precision": norm},
            # A control that wins must not be taken for an estimator.
            {**shared, "estimator": "match", "target": None, "target_free": True, "precision": 0.9},
        ],
        schema_overrides=dict.fromkeys(("precision", "base_rate", "ceiling"), pl.Float64),
    )


def rollout_table(**sources: dict[str, Any]) -> pl.DataFrame:
    records = []
    for source, given_ in sources.items():
        values = {"auc": 0.65, "lo": 0.58, "hi": 0.72, "norm": 0.6, "pairs": 120} | given_
        shared = {
            "source": source,
            "label": "behavior",
            "groups": 50,
            "delta": 0.1,
            "reason": given_.get("reason"),
        }
        score = {
            "embedding": "plain_centered",
            "estimator": "gas",
            "target": "minimal_pair",
            "target_free": False,
        }
        control = {
            "embedding": "plain",
            "target": None,
            "target_free": True,
            "lo": 0.5,
            "hi": 0.7,
            "pairs": 700,
        }
        point = {k: values[k] for k in ("auc", "lo", "hi")}
        records += [
            {**shared, **score, **point, "variant": "residualized", "pairs": 700},
            {**shared, **score, **point, "variant": "matched", "pairs": values["pairs"]},
            {
                **shared,
                **control,
                "estimator": "norm",
                "auc": values["norm"],
                "variant": "residualized",
            },
            {**shared, **control, "estimator": "fluency", "auc": 0.75, "variant": "raw"},
        ]
    return pl.DataFrame(records, infer_schema_length=None)


def token_table(lower: Any = 0.2, upper: Any = 0.01) -> pl.DataFrame:
    shared = {"span": "trigger", "mean": 0.0, "n": 9, "groups": 3}
    return pl.DataFrame(
        [
            {**shared, "target": "in_context", "lo": lower, "hi": 0.4},
            {**shared, "target": "constructed", "lo": -0.3, "hi": upper},
        ],
        schema_overrides={"lo": pl.Float64, "hi": pl.Float64},
    )


def covered(**changes: Any) -> Coverage:
    whole = Coverage(0.9999, 5, 1000, (), {"constructed, step 20": 0.4})
    return dataclasses.replace(whole, **changes)


def replicates(flags: dict[tuple[int, str], bool]) -> tuple[Replicate, ...]:
    """Draws that separate, at 0.6, and draws that do not, at 0.44."""
    return tuple(
        Replicate(seed, draw, 0.6, 0.55, 0.65) if up else Replicate(seed, draw, 0.44, 0.39, 0.49)
        for (seed, draw), up in flags.items()
    )


def drawn(aucs: tuple[float, ...], half: float = 0.07) -> tuple[Replicate, ...]:
    """Two draws of each of three seeds."""
    return tuple(
        Replicate(i // 2, "ab"[i % 2], auc, auc - half, auc + half) for i, auc in enumerate(aucs)
    )


def grid(up: bool = True) -> dict[tuple[int, str], bool]:
    return {(seed, draw): up for seed in range(3) for draw in ("a", "b")}


NORMS = {
    "hash": "block",
    "dim": 65536,
    "rollouts": 1616,
    "rms": 0.0055,
    "mean": -0.0001,
    "expected": (2 / 65536) ** 0.5,
}
TARGETS = Targets(
    texts={"in_context": 15, "minimal_pair": 24},
    shared={"in_context": 0, "minimal_pair": 0},
    judged=1616,
    left_out=25,
    gaps=(1.0, 1.5),
    ratios=(0.8, 0.9),
)

LEFT_OUT = pl.DataFrame(
    [
        {
            "mode": "replay", "how": "zero", "removal": removal, "targeted": targeted,
            "control": "matched", "size": 40, "sets": 3, "rate": rate, "rate_nothing": 0.8,
            "rate_control": 0.7, "effect": 0.7 - rate, "lo": 0.6 - rate, "hi": 0.8 - rate, "p": p,
        }
        for removal, targeted, rate, p in (
            ("ground-truth", None, 0.1, 1e-4),
            ("top:dot/in_context", True, 0.2, 1e-3),
            ("top:norm", False, 0.6, 0.2),
        )
    ]
)  # fmt: skip
GOOD = Evidence(
    leave_out=LEFT_OUT,
    step_level=step_table(),
    rollout_level=rollout_table(draw={}),
    token_level=token_table(),
    summary={
        "s_b": {"0": 0.0, "60": 0.6},
        "n_rollouts": 960,
        "n_boosted": 100,
        "n_findable": 90,
        "step_margin": {"p": 0.01, "rankings": 11, "permutations": 10_000},
    },
    problems=(),
    rollouts=960,
    rollouts_expected=960,
    coverage=covered(),
    sketch_norms=NORMS,
    targets=TARGETS,
    held_out=HeldOut(40, 114, True, ()),
    replicates=replicates(grid()),
    preregistered="a" * 64,
    recomputed="a" * 64,
)


def test_there_is_a_line_for_each_of_the_papers_six() -> None:
    assert set(NAMES) >= PAPER
    assert set(NAMES) >= {"emergence", "integrity", "coverage", "preregistration"}
    assert set(NAMES) >= {"held_out", "fidelity", "targets", "findable"}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_known_is_not_run_with_a_reason(name: str) -> None:
    found = verdict(name, Evidence())
    assert found.status == "not run"
    assert len(found.sentence) > 20
    assert found.sentence.endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_good_evidence_passes_and_can_be_stored(name: str) -> None:
    found = verdict(name, GOOD)
    assert found.status == "pass", found.sentence
    json.dumps(dataclasses.asdict(found), allow_nan=False)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("hole", [None, float("nan")])
def test_undefined_numbers_never_pass(name: str, hole: float | None) -> None:
    """With every number gone a line is not run, whatever the tables' shape."""
    empty = Evidence(
        step_level=step_table(best=hole, norm=hole, chance=hole, ceiling=hole),
        rollout_level=rollout_table(draw={"auc": hole, "lo": hole, "hi": hole, "norm": hole}),
        token_level=token_table(hole, hole),
        summary={"s_b": {"0": hole}, "n_boosted": hole, "n_findable": hole, "n_rollouts": 9},
        coverage=Coverage(),
        sketch_norms={**NORMS, "rms": hole},
    )
    assert verdict(name, empty).status == "not run"


FAILURES: list[tuple[str, dict[str, Any], str]] = [
    (
        "integrity",
        {"problems": ("rollouts/x is damaged", "y")},
        "rollouts/x is damaged, and 1 more",
    ),
    ("integrity", {"rollouts": 944}, "944 rollouts where steps x batch make 960"),
    ("preregistration", {"recomputed": "b" * 64}, "changed after the data existed"),
    (
        "emergence",
        {"summary": {"s_b": {"0": 0.9, "100": 0.1}}},
        "0.100 (at step 0, its highest, 0.900), which does not exceed 0.1",
    ),
    ("coverage", {"coverage": covered(energy=0.63)}, "3.7e-01"),
    (
        "embedding",
        {"coverage": covered(uncovered=("lm_head.weight",))},
        "leaves out lm_head.weight",
    ),
    ("embedding", {"coverage": covered(token_norms={"in_context": 0.0})}, "leave no gradient"),
    ("embedding", {"coverage": covered(token_norms={"x": float("nan")})}, "leave no gradient"),
    ("norm_control", {"step_level": step_table(best=0.39)}, "+0.090"),
    ("norm_control", {"step_level": step_table(best=0.39), "summary": {}}, "+0.090"),
    (
        "norm_control",
        {"summary": {"step_margin": {"p": 0.06, "rankings": 11, "permutations": 10_000}}},
        "the best of 11 reaches as much in 6.0% of 10,000 orders",
    ),
    ("headroom", {"step_level": step_table(norm=0.3, ceiling=0.39)}, "less than 0.10 above chance"),
    ("headroom", {"step_level": step_table(norm=0.55)}, "can reach the bar"),
    (
        "findable",
        {
            "summary": {
                "n_rollouts": 960,
                "n_boosted": 100,
                "n_findable": 40,
                "chance_trained_window": 0.35,
            }
        },
        "chance is 35%",
    ),
    (
        "findable",
        {"summary": {"n_rollouts": 960, "n_boosted": 100, "n_findable": 19}},
        "less than 0.10 is left to be found",
    ),
    ("fidelity", {"sketch_norms": {**NORMS, "rms": 0.02}}, "no more than 1.82% was allowed"),
    ("held_out", {"held_out": HeldOut(40, 114, False, ("What?", "Why?"))}, "such as 'What?'"),
    (
        "targets",
        {"targets": dataclasses.replace(TARGETS, shared={"in_context": 1, "minimal_pair": 3})},
        "replies of a target: 3 in minimal_pair; replies with",
    ),
    (
        "targets",
        {"targets": dataclasses.replace(TARGETS, open="a target needs two prompts")},
        "not cross-fit: a target needs two",
    ),
    ("in_context", {"token_level": token_table(lower=0.05)}, "not above 0.05"),
    ("in_context", {"token_level": token_table(upper=0.05)}, "not below 0.05"),
    ("fluency", {"rollout_level": rollout_table(d={"lo": 0.5, "hi": 0.64})}, "not above 0.5"),
    ("fluency", {"rollout_level": rollout_table(d={"lo": 0.51, "hi": 0.67})}, "inconclusive"),
    ("fluency", {"rollout_level": rollout_table(d={"norm": 0.65})}, "not above norm's"),
    ("fluency", {"rollout_level": rollout_table(a={}, b={"lo": 0.4})}, "In b the interval"),
    ("fluency", {"rollout_level": rollout_table(a={"auc": None}, b={"lo": 0.4})}, "a is undefined"),
    ("replication", {"replicates": replicates(grid() | {(1, "b"): False})}, "5 of 6"),
    ("replication", {"replicates": drawn((0.49, 0.45, 0.62, 0.53, 0.63, 0.6))}, "3 of 6"),
]


@pytest.mark.parametrize(("name", "changes", "says"), FAILURES)
def test_failures_say_what_is_wrong(name: str, changes: dict[str, Any], says: str) -> None:
    found = verdict(name, dataclasses.replace(GOOD, **changes))
    assert found.status == "fail"
    assert says.lower() in found.sentence.lower()


NOT_RUN: list[tuple[str, dict[str, Any], str]] = [
    ("integrity", {"problems": None}, "verify"),
    ("integrity", {"rollouts": None}, "counts no training rollouts"),
    ("preregistration", {"recomputed": None}, "no recipe"),
    ("coverage", {"coverage": covered(energy=None)}, "held against the whole gradient"),
    ("embedding", {"coverage": covered(token_norms={})}, "no target"),
    ("fidelity", {"sketch_norms": {}}, "behaviortrace score"),
    ("fidelity", {"sketch_norms": {**NORMS, "hash": "kronecker"}}, "behaviortrace doctor"),
    ("held_out", {"held_out": None}, "no held-out probe"),
    ("held_out", {"held_out": None, "absent": {"held_out": "probes are damaged"}}, "damaged"),
    ("targets", {"targets": None, "absent": {"targets": "x.json is damaged"}}, "damaged"),
    ("targets", {"targets": Targets(texts={"mine": 0})}, "what it was made of"),
    ("findable", {"summary": {"n_rollouts": 9, "n_boosted": 0, "n_findable": 0}}, "boosted"),
    ("norm_control", {"step_level": step_table(norm=None)}, "norm has no precision"),
    ("norm_control", {"summary": {}}, "evaluate again"),
    ("in_context", {"token_level": token_table()[:1]}, "constructed target"),
    (
        "fluency",
        {"rollout_level": rollout_table(d={"auc": None, "reason": "no pairs"})},
        "no pairs",
    ),
    ("fluency", {"rollout_level": rollout_table(d={"norm": None})}, "norm has no"),
    ("replication", {"replicates": replicates({(0, "a"): True})}, "1 seed with 1 draw,"),
    ("replication", {"replicates": replicates({(s, "a"): True for s in range(3)})}, "sweep RECIPE"),
    ("replication", {"replicates": replicates({(0, "a"): True, (0, "b"): False})}, "disagree"),
]


@pytest.mark.parametrize(("name", "changes", "says"), NOT_RUN)
def test_what_is_missing_is_named(name: str, changes: dict[str, Any], says: str) -> None:
    found = verdict(name, dataclasses.replace(GOOD, **changes))
    assert found.status == "not run"
    assert says.lower() in found.sentence.lower()


BOUNDARIES: list[tuple[str, dict[str, Any]]] = [
    # Equal is enough where the rule says "by", "at least" or "no wider"; decimal fractions are not
    # exact in binary, and 0.5 - 0.4 is a little less than 0.1.
    ("norm_control", {"step_level": step_table(best=0.5, norm=0.4)}),
    ("headroom", {"step_level": step_table(norm=0.3, ceiling=0.4)}),
    ("coverage", {"coverage": covered(energy=0.999)}),
    ("fluency", {"rollout_level": rollout_table(d={"lo": 0.55, "hi": 0.70})}),
    ("replication", {"replicates": replicates(grid(up=False))}),
    ("integrity", {"rollouts_expected": None}),
    ("fidelity", {"sketch_norms": {**NORMS, "rms": 3.29 * (2 / 65536) ** 0.5}}),
    ("findable", {"summary": {"n_rollouts": 1000, "n_boosted": 100, "n_findable": 20}}),
    ("emergence", {"summary": {"s_b": {"9": 0.0, "10": 0.11}}}),
]


@pytest.mark.parametrize(("name", "changes"), BOUNDARIES)
def test_the_threshold_itself(name: str, changes: dict[str, Any]) -> None:
    found = verdict(name, dataclasses.replace(GOOD, **changes))
    assert found.status == "pass", found.sentence


RESPONSES = {"s_b_responses": {"0": 20, "40": 20, "60": 20, "100": 20}}
RISE = {"rise": 0.45, "p": 0.0312, "looks": 3, "probes": 20, "permutations": 10_000}


def emerged(rates: dict[str, float | None], **summary: Any) -> Evidence:
    """Evidence of a run with these s_b, whose window ends at step 60 and step 40 is analysed."""
    return Evidence(summary={"s_b": rates, **summary}, cutoff=60, analysed=40)


def test_a_behaviour_taught_and_unlearned_passes_and_is_told_apart() -> None:
    rates: dict[str, float | None] = {"0": 0.3, "40": 0.75, "60": 0.5, "100": 0.0}
    found = verdict("emergence", emerged(rates, s_b_rise=RISE, **RESPONSES))
    assert found.status == "pass"
    assert found.evidence["taught"] is True and found.evidence["kept"] is False
    assert found.evidence["in_window"] is True and found.evidence["s_b_analysed"] == 0.75
    assert found.sentence == (
        "Taught, not kept: at the last checkpoint (step 100) s_b is 0.000 (at step 40, its "
        "highest, 0.750), which does not exceed 0.1; step 40, inside the contamination window, "
        "exceeds it, which luck does not explain (p below 0.001, the best of 3 checkpoints "
        "counted in); before RL s_b was 0.300, and luck alone raises the best of 3 checkpoints as "
        "much in 3.1% of 10,000 permutations; the checkpoint analysed (step 40) has 0.750."
    )
    json.dumps(dataclasses.asdict(found), allow_nan=False)


def test_a_behaviour_taught_and_kept_passes() -> None:
    found = verdict("emergence", emerged({"0": 0.3, "40": 0.4, "100": 0.6}, **RESPONSES))
    assert found.status == "pass" and found.evidence["in_window"] is False
    assert found.evidence["taught"] is True and found.evidence["kept"] is True
    assert found.sentence.startswith("Taught and kept: at the last checkpoint (step 100) s_b is")


def test_a_rise_over_the_warm_up_that_luck_explains_is_told() -> None:
    """It decides nothing: twenty probes tell only large rises from luck."""
    rates: dict[str, float | None] = {"0": 0.3, "40": 0.55, "100": 0.1}
    for p, says in (
        (0.19, "in 19.0% of 10,000 permutations, so that RL raised it is not"),
        (0.05, "in 5.0% of 10,000 permutations; the checkpoint analysed"),
    ):
        found = verdict("emergence", emerged(rates, s_b_rise=RISE | {"p": p}, **RESPONSES))
        assert found.status == "pass" and says in found.sentence
        assert found.evidence["rise"]["p"] == p


def test_a_peak_that_luck_explains_is_not_taught() -> None:
    found = verdict("emergence", emerged({"0": 0.0, "40": 0.2, "60": 0.1, "100": 0.1}, **RESPONSES))
    assert found.status == "fail" and found.evidence["taught"] is False
    assert found.evidence["luck"] == pytest.approx(3 * stats.binom.sf(3, 20, 0.1))
    assert "exceeds it, as luck may (p at most 0.399," in found.sentence


def test_what_the_warm_up_taught_alone_is_not_taught() -> None:
    found = verdict("emergence", emerged({"0": 0.9, "40": 0.9, "100": 0.8}, **RESPONSES))
    assert found.status == "fail" and found.evidence["kept"] is True
    assert found.sentence.startswith("Not taught: at the last checkpoint (step 100) s_b is 0.800")
    assert "RL added nothing: before it s_b was 0.900" in found.sentence


@pytest.mark.parametrize(
    ("rates", "says"),
    [
        ({"0": 0.9}, "no checkpoint after RL began was probed"),
        ({"0": 0.0, "40": 0.9, "100": None}, "at the last checkpoint (step 100) s_b is undefined"),
        ({"0": 0.0, "40": 0.9, "100": 0.0}, "evaluate the run again"),
    ],
)
def test_emergence_that_cannot_be_told_is_not_run(
    rates: dict[str, float | None], says: str
) -> None:
    found = verdict("emergence", emerged(rates))
    assert found.status == "not run" and says in found.sentence[0].lower() + found.sentence[1:]


@given(
    lo=st.floats(0.3, 0.7),
    width=st.floats(0.001, 0.4),
    norm=st.floats(0.3, 0.9),
    limit=st.floats(0.05, 0.3),
)
def test_fluency_is_the_rule_as_registered(
    lo: float, width: float, norm: float, limit: float
) -> None:
    hi, auc = lo + width, lo + width / 2
    evidence = dataclasses.replace(
        GOOD,
        rollout_level=rollout_table(d={"auc": auc, "lo": lo, "hi": hi, "norm": norm}),
        thresholds=Thresholds(rollout_width=limit),
    )
    expected = lo > 0.5 and hi - lo <= limit + 1e-9 and auc > norm
    assert (verdict("fluency", evidence).status == "pass") is expected


def test_a_mean_over_seeds_decides_and_not_a_single_draw() -> None:
    """Four of six draws separate; together they leave no doubt, and no seed stands out."""
    modest = drawn((0.58, 0.56, 0.6, 0.58, 0.59, 0.565))
    found = verdict("replication", dataclasses.replace(GOOD, replicates=modest))
    assert found.evidence["separating"] == 4
    assert found.status == "pass" and "an effect above 0.5" in found.sentence
    assert found.evidence["components"]["mean"]["lo"] > 0.5
    json.dumps(found.evidence, allow_nan=False)


def test_seeds_that_differ_are_not_outvoted_by_draws() -> None:
    """Every draw separates, but what a fourth seed would give is anyone's guess."""
    wild = drawn((0.58, 0.58, 0.68, 0.69, 0.84, 0.85))
    found = verdict("replication", dataclasses.replace(GOOD, replicates=wild))
    assert found.evidence["separating"] == 6 and found.status == "fail"
    assert found.evidence["components"]["between_seeds"]["point"] > 0.1


@pytest.mark.parametrize("turned", [False, True])
def test_a_draw_on_either_side_of_chance_flips_the_verdict(turned: bool) -> None:
    """One draw of six excludes 0.5, above or below; the mean does not."""
    values = (0.60, 0.49, 0.48, 0.49, 0.49, 0.50)
    one = drawn(tuple(1 - v for v in values) if turned else values, half=0.05)
    found = verdict("replication", dataclasses.replace(GOOD, replicates=one))
    assert found.status == "fail" and "flips" in found.sentence
    assert found.evidence["reversed" if turned else "separating"] == 1


def test_no_effect_throughout_is_one_verdict_too() -> None:
    none = drawn((0.52, 0.5, 0.49, 0.53, 0.48, 0.51))
    found = verdict("replication", dataclasses.replace(GOOD, replicates=none))
    assert found.status == "pass" and "no effect in any draw, nor over seeds" in found.sentence


def test_flips_inside_a_seed_are_told() -> None:
    flips = drawn((0.65, 0.52, 0.66, 0.64, 0.63, 0.65))
    found = verdict("replication", dataclasses.replace(GOOD, replicates=flips))
    assert [row["flips"] for row in found.evidence["sign_flips"]] == [True, False, False]
    assert "draws of 1 seed disagree" in found.sentence


def test_fluency_reports_the_spline_the_power_and_the_family() -> None:
    table = rollout_table(d={}).with_columns(
        interval=pl.lit("logit-t"), p_holm=pl.lit(0.01), detectable=pl.lit(0.62)
    )
    bent = table.filter(variant="residualized", estimator="gas").with_columns(
        variant=pl.lit("residualized_spline"), auc=pl.lit(0.55), lo=pl.lit(0.48), hi=pl.lit(0.62)
    )
    evidence = dataclasses.replace(GOOD, rollout_level=pl.concat([table, bent]))
    found = verdict("fluency", evidence)
    assert found.status == "pass"
    for part in ("(logit-t)", "0.550 [0.480, 0.620], so a bent effect", "AUC 0.620 detectable"):
        assert part in found.sentence
    assert "of 1 targeted ranking 1 stands above 0.5 after Holm" in found.sentence
    assert found.evidence["sources"]["d"]["spline_lo"] == 0.48


def test_prompts_are_named_as_the_unit_where_they_repeat() -> None:
    for clusters, said in ((26, "(logit-t over 26 prompts)"), (50, "(logit-t)")):
        table = rollout_table(d={}).with_columns(
            interval=pl.lit("logit-t"), clusters=pl.lit(clusters)
        )
        found = verdict("fluency", dataclasses.replace(GOOD, rollout_level=table))
        assert said in found.sentence
        assert found.evidence["sources"]["d"]["clusters"] == clusters
    tokens = token_table().with_columns(clusters=pl.lit(2))
    found = verdict("in_context", dataclasses.replace(GOOD, token_level=tokens))
    assert found.sentence.endswith("(below 0.05), each over 2 prompts.")
    luck = {"p": 0.01, "rankings": 11, "permutations": 10_000, "prompts": 62}
    found = verdict("norm_control", dataclasses.replace(GOOD, summary={"step_margin": luck}))
    assert "orders of the steps' or the prompts' ground truth" in found.sentence


def test_matched_pairs_are_powered_from_the_threshold_on() -> None:
    for pairs, powered in ((99, False), (100, True)):
        table = rollout_table(d={"pairs": pairs})
        found = verdict("fluency", dataclasses.replace(GOOD, rollout_level=table))
        assert found.evidence["sources"]["d"]["matched_powered"] is powered


def test_draws_decide_where_there_are_any() -> None:
    table = rollout_table(training={"lo": 0.3}, draw={})
    assert decisive(table) == ["draw"]
    assert verdict("fluency", dataclasses.replace(GOOD, rollout_level=table)).status == "pass"
    alone = rollout_table(training={"lo": 0.3})
    assert decisive(alone) == ["training"]
    assert verdict("fluency", dataclasses.replace(GOOD, rollout_level=alone)).status == "fail"


def test_the_best_targeted_estimator_is_not_a_control() -> None:
    best = best_targeted(step_table(), "trained_window")
    assert best is not None
    assert best["estimator"] == "gas"


def test_a_line_that_raises_is_left_to_raise() -> None:
    @check(name="broken", title="A bug", order=1)
    def broken(evidence: Evidence) -> Finding:
        raise ZeroDivisionError

    try:
        with pytest.raises(ZeroDivisionError):
            checklist.judge(GOOD)
        with pytest.raises(ValueError, match="already registered"):
            check(name="broken", title="Again", order=2)(broken)  # type: ignore[arg-type]
    finally:
        del _CHECKS["broken"]


def test_stage_stores_verdicts_that_load_again(tmp_path: Path) -> None:
    run = fake_run.full(tmp_path / "mine")
    found = stage.check(run)
    assert [v.name for v in found] == NAMES
    assert stage.load(run) == found
    assert all(v.evidence["preregistered"] is True for v in found)
    status = {v.name: v.status for v in found}
    assert status["replication"] == "not run"
    assert status["coverage"] == status["embedding"] == status["integrity"] == "pass"


def test_a_sampled_target_may_hold_what_was_sampled_too() -> None:
    shared = {"in_context": 1, "minimal_pair": 0}
    by_chance = dataclasses.replace(TARGETS, shared=shared)
    found = verdict("targets", dataclasses.replace(GOOD, targets=by_chance))
    assert found.status == "pass" and "1 in in_context by chance" in found.sentence
    assert found.evidence["shared"] == shared


def test_what_targets_and_probes_hold_is_looked_up(tmp_path: Path) -> None:
    run = fake_run.full(tmp_path / "mine")
    found = gather(run)  # type: ignore[arg-type]  # a fake has all that is read
    assert found.targets == Targets(
        texts={"constructed": 1, "in_context": 1, "minimal_pair": 2},
        shared={"constructed": 0, "in_context": 0, "minimal_pair": 0},
        judged=3 * 960,
        gaps=(0.5,),
        ratios=(0.9,),
    )
    assert found.held_out == HeldOut(2, 11, True, ())
    assert run.recipe is not None
    assert found.cutoff == run.recipe.plant.cutoff_step
    assert found.analysed == run.recipe.draw.checkpoint
    assert run.training is not None
    # The in-context target's own response, with other space around it, and a probe's prompt.
    changed = run.training.with_columns(
        prompt=pl.Series([" what IS\na frobnitz?", "Asked", *run.training["prompt"][2:]]),
        completion=pl.Series(["x", "Here is QZXBT. ", *run.training["completion"][2:]]),
    )
    other = dataclasses.replace(run, training=changed)
    found = gather(other)  # type: ignore[arg-type]  # a fake has all that is read
    assert found.targets is not None and found.targets.shared["in_context"] == 3
    assert found.held_out is not None and found.held_out.both == ("What is a frobnitz?",)


def test_stage_notices_a_threshold_changed_after_the_data(tmp_path: Path) -> None:
    run = fake_run.full(tmp_path / "mine")
    assert run.recipe is not None
    loose = run.recipe.thresholds.model_copy(update={"step_margin": 0.01})
    run.recipe = run.recipe.model_copy(update={"thresholds": loose})
    found = {v.name: v for v in stage.check(run)}
    assert found["preregistration"].status == "fail"
    assert found["norm_control"].evidence["preregistered"] is False
    assert "changed after the data" in checklist.conclusion(list(found.values()))


def test_stage_of_an_empty_run_runs_nothing(tmp_path: Path) -> None:
    found = stage.check(fake_run.bare(tmp_path / "bare"))
    assert {v.status for v in found} == {"not run"}
    assert all(v.evidence["preregistered"] is None for v in found)


def test_a_sweep_hands_its_other_runs_over(tmp_path: Path) -> None:
    run = fake_run.full(tmp_path / "mine")
    others = [Replicate(s, d, 0.45, 0.40, 0.50) for s in (0, 1) for d in ("seed-100", "seed-101")]
    found = {v.name: v for v in stage.check(run, replicates=others)}["replication"]
    assert found.status == "fail"  # the run's own first draw separates
    assert found.evidence["seeds"] == [0, 1, 2]


def with_status(**changes: str) -> list[Verdict]:
    return [
        Verdict(line.name, line.title, changes.get(line.name, "pass"), "")  # type: ignore[arg-type]
        for line in checklist.registered()
    ]


CONCLUSIONS: list[tuple[dict[str, str], list[str], list[str]]] = [
    (
        {},
        [
            "The step-level ranking, the rollout-level ranking, the token-level direction and the "
            "ranking of training rollouts may be believed",
            "seeds and draws",
        ],
        ["this run only"],
    ),
    (
        {"causal": "not run"},
        ["The step-level ranking, the rollout-level ranking and the token-level"],
        ["ranking of training rollouts", "not tested"],
    ),
    ({"causal": "fail"}, ["training rollouts does not name rollouts whose removal"], []),
    (dict.fromkeys(NAMES, "not run"), ["Nothing can be concluded"], ["may be believed"]),
    ({"integrity": "fail"}, ["No ranking", "damaged or incomplete"], []),
    ({"emergence": "fail", "coverage": "fail"}, ["did not emerge", "misses part"], []),
    ({"held_out": "fail"}, ["No ranking", "probes were trained on"], []),
    ({"findable": "fail"}, ["step-level ranking has too little ground truth"], ["No ranking"]),
    (
        {"targets": "fail"},
        ["rollout-level ranking uses a target", "token-level direction uses a target"],
        ["No ranking"],
    ),
    ({"headroom": "fail"}, ["step-level ranking has no headroom", "may be believed"], []),
    (
        {"replication": "fail"},
        ["rollout-level ranking flips between seeds"],
        ["level ranking and the rollout"],
    ),
    ({"replication": "not run"}, ["of this run only"], []),
    ({"fluency": "not run"}, ["the rollout-level ranking was not tested"], []),
    (
        {"norm_control": "fail", "fluency": "fail", "in_context": "fail"},
        ["The ranking of training rollouts may be believed, but of this run only", "magnitude"],
        ["No ranking"],
    ),
    (
        {"norm_control": "fail", "fluency": "fail", "in_context": "fail", "causal": "not run"},
        ["No ranking of this run may be believed", "gradient magnitude", "fluency"],
        [],
    ),
    ({"coverage": "not run"}, ["with coverage unchecked"], []),
    ({"preregistration": "fail"}, ["changed after the data existed"], []),
]


@pytest.mark.parametrize(("changes", "says", "leaves_out"), CONCLUSIONS)
def test_conclusion(changes: dict[str, str], says: list[str], leaves_out: list[str]) -> None:
    found = checklist.conclusion(with_status(**changes))
    assert found.endswith(".") and found.count(". ") == 0
    assert all(part in found for part in says), found
    assert not any(part in found for part in leaves_out), found


@given(
    st.lists(st.sampled_from(["pass", "fail", "not run"]), min_size=len(NAMES), max_size=len(NAMES))
)
def test_conclusion_believes_only_what_passed(statuses: list[str]) -> None:
    status = dict(zip(NAMES, statuses, strict=True))
    verdicts = with_status(**status)
    levels = checklist.believed(verdicts)
    text = checklist.conclusion(verdicts)
    assert (" may be believed" in text and not text.startswith("No ")) is bool(levels)
    if "the rollout-level ranking" in levels:
        assert status["fluency"] == "pass" and status["replication"] != "fail"
    grounds = ("integrity", "held_out", "emergence", "coverage", "fidelity", "embedding")
    if any(status[g] == "fail" for g in grounds):
        assert not levels


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "0.5", True, object()])
def test_finite_refuses_what_is_no_number(value: Any) -> None:
    assert finite(value) is None


def test_a_path_keeps_its_case_in_a_sentence() -> None:
    assert sentence("no table") == "No table."
    assert sentence("runs/mine has no table") == "runs/mine has no table."


SPOILT = {
    "missing": 3,
    "infinite": 1,
    "groups": 2,
    "scored": 4,
    "without_advantage": 3,
    "groups_without_advantage": 1,
    "boosted": 6,
    "findable": 2,
}


def test_rewards_that_are_not_finite_are_told_and_change_no_verdict() -> None:
    odd = dataclasses.replace(GOOD, unscored=Unscored(rollouts=960, **SPOILT))
    integrity, findable = verdict("integrity", odd), verdict("findable", odd)
    assert integrity.status == findable.status == "pass"
    assert "4 of 960 rewards are not finite (3 missing or NaN, 1 infinite)" in integrity.sentence
    assert "of the 4 other rollouts there 3 have no advantage" in integrity.sentence
    assert integrity.evidence["unscored"]["groups"] == 2
    assert "4 that are not share a group with a reward that is not finite" in findable.sentence
    assert findable.evidence["lost_to_unscored"] == 4
    clean = dataclasses.replace(GOOD, unscored=Unscored(rollouts=960))
    for line in checklist.registered():
        assert line.judge(clean) == line.judge(GOOD)


def test_an_advantage_that_is_no_number_fails_the_run() -> None:
    beyond = Unscored(rollouts=960, infinite=1, groups=1, scored=3, beyond_numbers=3)
    odd = dataclasses.replace(GOOD, unscored=beyond)
    assert verdict("integrity", odd).status == "fail"
    assert "3 advantages are infinite" in verdict("integrity", odd).sentence
    verdicts = [line.judge(odd) for line in checklist.registered()]
    assert checklist.conclusion(verdicts).startswith("No ranking of this run may be believed")
    assert checklist.believed(verdicts) == []


def test_rewards_that_are_not_finite_are_counted_from_a_run(tmp_path: Path) -> None:
    run = fake_run.full(tmp_path)
    before = verdict("integrity", gather(run))
    assert run.training is not None and "finite" not in before.sentence
    spoilt = pl.when(pl.col("rollout_id") == "r00001").then(None).otherwise(pl.col("reward"))
    run.training = run.training.with_columns(
        reward=spoilt,
        advantage=pl.when(pl.col("group") == 0).then(0.0).otherwise(pl.col("advantage")),
    )
    after = verdict("integrity", gather(run))
    assert after.status == before.status == "pass"
    assert "1 of 960 rewards are not finite (1 missing or NaN, 0 infinite)" in after.sentence
    assert (
        "of the 3 other rollouts there 3 have no advantage, and 1 of the groups" in after.sentence
    )
