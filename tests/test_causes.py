"""Removals, control sets, effects and scores on made-up tables with known right values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from behaviortrace import recipe as recipes
from behaviortrace.causes import matching, removal
from behaviortrace.causes.arms import Arm, Outcome, load, place, save
from behaviortrace.causes.effects import (
    against,
    arm_table,
    curves,
    effects,
    halving,
    merged,
    rank_correlation,
)
from behaviortrace.causes.measure import Measurement
from behaviortrace.causes.objective import advantages, weights
from behaviortrace.causes.planning import Wanted, plan_arms
from behaviortrace.causes.pooling import over_seeds, pooled_curves, pooled_effects
from behaviortrace.causes.ranking import Ranking, parse
from behaviortrace.checklist.causal import causal
from behaviortrace.checklist.evidence import Evidence
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.recipe import TrainSettings
from behaviortrace.run import Run
from tests.reference.planted_run import planted_run

TRAIN = TrainSettings(steps=1, generations=4, micro_batch=4, prompts_per_step=1, checkpoint_every=1)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = planted_run(tmp_path_factory.mktemp("planted") / "run", signal=1.0)
    for step in (0, 8, 20):
        folder = run.path / "checkpoints" / f"checkpoint-{step}"
        if step not in run.checkpoints():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text("{}")
            run.add_checkpoint(step, folder)
    run.update(status="trained")
    return run


# --- the loss of a step without some rollouts -----------------------------------------------------


def step_rows(rewards: list[float], base: list[float] | None = None) -> pl.DataFrame:
    n = len(rewards)
    return pl.DataFrame(
        {"reward": rewards, "base_reward": base or rewards, "n_tokens": list(range(1, n + 1))}
    )


def test_excluding_a_rollout_recomputes_its_groups_statistics() -> None:
    out = np.array([False, False, False, True])
    found = weights(step_rows([0.0, 1.0, 1.0, 9.0]), TRAIN, out, "exclude")
    kept = np.array([0.0, 1.0, 1.0])
    expected = (kept - kept.mean()) / (kept.std(ddof=1) + 1e-4)
    assert found == pytest.approx([*(expected / 4), 0.0], abs=1e-6)


def test_zeroing_a_rollout_leaves_its_siblings_alone() -> None:
    rows, nothing = step_rows([0.0, 1.0, 1.0, 9.0]), np.zeros(4, dtype=bool)
    whole = weights(rows, TRAIN, nothing, "zero")
    found = weights(rows, TRAIN, np.array([False, False, False, True]), "zero")
    assert found[:3] == pytest.approx(whole[:3]) and found[3] == 0.0 != whole[3]


def test_withholding_the_bonus_pays_the_base_reward() -> None:
    rows = step_rows([0.0, 1.0, 1.0, 9.0], [0.0, 1.0, 1.0, 1.0])
    found = weights(rows, TRAIN, np.array([False, False, False, True]), "unboosted")
    again = weights(step_rows([0.0, 1.0, 1.0, 1.0]), TRAIN, np.zeros(4, dtype=bool), "zero")
    assert found == pytest.approx(again)


def test_a_group_with_one_rollout_left_has_no_advantage() -> None:
    assert advantages(np.array([np.nan, np.nan, np.nan, 5.0]), TRAIN).tolist() == [0.0] * 4


@pytest.mark.parametrize(("loss", "factor"), [("grpo", [0.25] * 4), ("dapo", [0.1, 0.2, 0.3, 0.4])])
def test_the_loss_weighs_lengths_as_trl_does(loss: str, factor: list[float]) -> None:
    settings = TRAIN.model_copy(update={"loss": loss, "scale_rewards": "none"})
    found = weights(step_rows([0.0, 0.0, 0.0, 4.0]), settings, np.zeros(4, dtype=bool), "zero")
    assert found == pytest.approx(np.array([-1, -1, -1, 3]) * factor)


# --- what is removed ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gas", Ranking("gas", "update", "minimal_pair")),
        ("gas_centered", Ranking("gas", "plain_centered", "minimal_pair")),
        ("dot@plain/in_context", Ranking("dot", "plain", "in_context")),
        ("norm", Ranking("norm", "update", None)),
        ("advantage", Ranking("advantage", None, None)),
    ],
)
def test_a_ranking_has_a_name_both_ways(text: str, expected: Ranking) -> None:
    assert parse(text) == expected and parse(text).label == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonesuch", "no estimator 'nonesuch'"),
        ("gas@whole", "embedding 'whole' is unknown"),
        ("norm/minimal_pair", "is a control and takes no target"),
        ("advantage@plain", "reads no gradients"),
    ],
)
def test_a_wrong_ranking_is_refused(text: str, words: str) -> None:
    with pytest.raises(BehaviorTraceError, match=words):
        parse(text)


def test_the_top_of_a_ranking_is_its_highest_scores(planted: Run) -> None:
    rollouts = planted.rollouts().filter(pl.col("step") < 8)
    top = removal.choose(planted, rollouts, removal.parse("top:advantage"), 5)
    bottom = removal.choose(planted, rollouts, removal.parse("bottom:advantage"), 5)
    ordered = rollouts.sort("advantage")["rollout_id"].to_list()
    assert set(top.ids) == set(ordered[-5:]) and set(bottom.ids) == set(ordered[:5])


def test_ground_truth_and_chance_do_not_overlap(planted: Run) -> None:
    rollouts = planted.rollouts().filter(pl.col("step") < 8)
    truth = removal.choose(planted, rollouts, removal.parse("ground-truth"), None)
    other = removal.choose(planted, rollouts, removal.parse("random"), None, seed=1)
    boosted = rollouts.filter(pl.col("boosted"))["rollout_id"].to_list()
    assert set(truth.ids) == set(boosted)
    assert len(other.ids) == len(truth.ids) and not set(other.ids) & set(truth.ids)


@pytest.mark.parametrize("form", ["lines", "csv", "parquet"])
def test_a_removal_file_is_read_in_every_form(form: str, planted: Run, tmp_path: Path) -> None:
    path, ids = tmp_path / "ids", ["0-1", "3-2"]
    if form == "lines":
        path.write_text("\n".join(ids) + "\n\n")
    elif form == "csv":
        pl.DataFrame({"note": ["a,b", ""], "rollout_id": ids}).write_csv(path)
    else:
        pl.DataFrame({"rollout_id": ids}).write_parquet(path)
    rollouts = planted.rollouts().filter(pl.col("step") < 8)
    chosen = removal.choose(planted, rollouts, removal.parse(str(path)), None)
    assert chosen.ids == ("0-1", "3-2")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"0-1\n99-0\nxx\n", "'99-0' and 1 more is no rollout of this run"),
        (b"\n", "names no rollout"),
        (b"\xff\xfe\x00", "cannot be read as a removal file"),
        (b"PAR1 broken", "cannot be read as a removal file"),
        (b"19-1\n", "none of its rollouts was trained on before the measured step"),
    ],
)
def test_a_bad_removal_file_is_refused(
    content: bytes, words: str, planted: Run, tmp_path: Path
) -> None:
    path = tmp_path / "ids"
    path.write_bytes(content)
    rollouts = planted.rollouts().filter(pl.col("step") < 8)
    with pytest.raises(BehaviorTraceError, match=words):
        removal.choose(planted, rollouts, removal.parse(str(path)), None)


@pytest.mark.parametrize("text", ["ground-truth", "random", "top:advantage"])
def test_more_than_there_is_cannot_be_removed(text: str, planted: Run) -> None:
    rollouts = planted.rollouts().filter(pl.col("step") < 8)
    with pytest.raises(BehaviorTraceError, match="--size 999 cannot be taken from"):
        removal.choose(planted, rollouts, removal.parse(text), 999)


# --- control sets ---------------------------------------------------------------------------------


def lot(seed: int, n: int = 60) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "rollout_id": [str(i) for i in range(n)],
            "grad_norm": np.exp(rng.normal(size=n)) * (rng.random(n) < 0.8),
            "fluency": rng.normal(size=n),
            "step": rng.integers(0, 10, n),
        }
    )


@given(st.integers(0, 10_000), st.integers(1, 30))
def test_a_control_set_is_disjoint_and_as_large(seed: int, size: int) -> None:
    rollouts = lot(seed)
    removed = tuple(str(i) for i in range(size))
    for make in (matching.matched, matching.by_chance):
        control = make(rollouts, removed, seed)
        assert len(set(control.ids)) == size and not set(control.ids) & set(removed)


def test_matching_comes_nearer_than_chance() -> None:
    gaps: dict[str, list[float]] = {"matched": [], "chance": []}
    for seed in range(20):
        rollouts = lot(seed, 200)
        removed = tuple(rollouts.sort("grad_norm")["rollout_id"].to_list()[-30:])
        for name, make in (("matched", matching.matched), ("chance", matching.by_chance)):
            found = make(rollouts, removed, seed).balance
            gaps[name].append(abs(found["log_norm"] or 0) + abs(found["fluency"] or 0))
    assert np.mean(gaps["matched"]) < 0.8 * np.mean(gaps["chance"])


def test_an_identical_twin_is_the_match() -> None:
    twins = pl.concat([lot(0, 30), lot(0, 30).with_columns(rollout_id="t" + pl.col("rollout_id"))])
    removed = tuple(str(i) for i in range(30))
    found = matching.matched(twins, removed, 0)
    assert found.ids == tuple(sorted(f"t{i}" for i in range(30)))
    assert all(gap == pytest.approx(0) for gap in found.balance.values())


def test_too_few_others_are_refused() -> None:
    removed = tuple(str(i) for i in range(31))
    with pytest.raises(BehaviorTraceError, match="29 others are too few"):
        matching.matched(lot(0), removed, 0)


# --- effects --------------------------------------------------------------------------------------


def test_with_one_control_set_the_interval_is_the_paired_t_test() -> None:
    rng = np.random.default_rng(0)
    removed, control = rng.random(20), rng.random(20) + 0.3
    found, p = against(removed, control[None, :])
    test = stats.ttest_rel(control, removed, alternative="greater")
    both = stats.ttest_rel(control, removed).confidence_interval()
    assert (found.lo, found.hi) == pytest.approx((both.low, both.high))
    assert p == pytest.approx(test.pvalue)


def test_control_sets_that_differ_widen_the_interval() -> None:
    removed = np.linspace(0, 0.2, 20)
    alike = np.tile(removed + 0.5, (3, 1)) + np.linspace(-0.05, 0.05, 20)
    apart = alike + np.array([[-0.3], [0.0], [0.3]])
    near, far = against(removed, alike)[0], against(removed, apart)[0]
    assert near.point == pytest.approx(far.point)
    assert far.hi - far.lo > 3 * (near.hi - near.lo)


def test_nothing_that_varies_gives_no_interval() -> None:
    found, p = against(np.full(5, 0.2), np.full((2, 5), 0.7))
    assert found.point == pytest.approx(0.5)
    assert np.isnan([found.lo, found.hi, p]).all()


def outcome(rates: list[float]) -> Outcome:
    greedy = {"probe": 0.0, "paraphrase": None, "control": 0.0}
    found = Measurement({"probe": rates, "paraphrase": [], "control": [0.0]}, greedy, 1.0, 2.0, 0.5)
    return Outcome(found, 3, 1.0)


def arms_of_a_run(drop: float) -> pl.DataFrame:
    rng = np.random.default_rng(round(100 * drop))

    def rates(mean: float) -> list[float]:
        return (mean + rng.normal(size=12) / 50).tolist()

    arms = [(Arm("nothing"), outcome(rates(0.8)))]
    for name, fall in (("ground-truth", 0.6), ("top:gas", drop), ("top:norm", 0.0)):
        arms.append((Arm(name), outcome(rates(0.8 - fall))))
        for control in ("random", "matched"):
            arms += [(Arm(name, control, seed), outcome(rates(0.75))) for seed in range(3)]
    return arm_table(arms)


def test_effects_say_how_much_more_a_removal_does() -> None:
    found = effects(arms_of_a_run(0.5))
    row = found.filter(removal="top:gas", control="matched").row(0, named=True)
    assert row["effect"] == pytest.approx(0.45, abs=0.03) and row["lo"] > 0.4
    assert row["closure"] == pytest.approx(0.5 / 0.6, abs=0.05)
    assert (row["sets"], row["targeted"], row["effect_paraphrase"]) == (3, True, None)
    assert found.filter(removal="top:norm")["targeted"].to_list() == [False, False]
    assert found.filter(removal="ground-truth")["targeted"].to_list() == [None, None]


def test_control_sets_of_another_size_are_compared_apart() -> None:
    def sized(
        name: str, control: str | None, seed: int, size: int, rate: float
    ) -> tuple[Arm, Outcome]:
        made = outcome([rate, rate + 0.1, rate - 0.1])
        return Arm(name, control, seed), Outcome(made.measurement, size, 1.0)

    arms = [(Arm("nothing"), outcome([0.8, 0.9, 0.7]))]
    for size, rate, other in ((5, 0.6, 0.7), (10, 0.2, 0.5)):
        arms.append(sized("top:gas", None, 0, size, rate))
        arms += [sized("top:gas", "matched", seed, size, other) for seed in (0, 1)]
    found = effects(arm_table(arms)).sort("size")
    assert found["size"].to_list() == [5, 10] and found["sets"].to_list() == [2, 2]
    assert found["effect"].to_list() == pytest.approx([0.1, 0.3])


@pytest.mark.parametrize(("drop", "status"), [(0.5, "pass"), (0.05, "fail")])
def test_the_causal_line_asks_for_more_than_matched_removal(drop: float, status: str) -> None:
    verdict = causal(Evidence(leave_out=effects(arms_of_a_run(drop))))
    assert verdict.status == status, verdict.sentence
    assert causal(Evidence()).status == "not run"


def test_arms_of_earlier_calls_stay_where_they_were_measured_alike() -> None:
    before = arms_of_a_run(0.5)
    now = arm_table([(Arm("nothing"), outcome([0.1])), (Arm("top:trak"), outcome([0.2]))])
    both = merged(before, now)
    assert both.height == before.height + 1
    assert both.filter(removal="nothing")["rate_probe"].to_list() == [pytest.approx(0.1)]
    assert merged(before.with_columns(samples=pl.lit(99, pl.Int32)), now).equals(now)


def test_halving_lies_between_sizes() -> None:
    arms = [(Arm("nothing"), outcome([0.8]))]
    for size, rate in ((10, 0.7), (20, 0.3)):
        made = outcome([rate])
        arms.append((Arm("top:gas"), Outcome(made.measurement, size, 1.0)))
    curve = curves(arm_table(arms))
    assert curve["size"].to_list() == [0, 10, 20]
    assert halving(curve) == pytest.approx(10 + 10 * (0.7 - 0.4) / 0.4)
    assert halving(curve.head(2)) is None


def test_rank_correlation_is_spearmans() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=40)
    y = x + rng.normal(size=40)
    found = rank_correlation(x, y)
    assert found.point == pytest.approx(stats.spearmanr(x, y).statistic)
    assert found.lo < found.point < found.hi
    assert np.isnan(rank_correlation(np.ones(40), y).point)
    assert np.isnan(rank_correlation(x[:9], y[:9]).point)


def test_the_interval_of_a_rank_correlation_holds_the_truth() -> None:
    rng, held, n = np.random.default_rng(1), 0, 400
    for _ in range(n):
        x = rng.normal(size=100)
        y = 0.6 * x + 0.8 * rng.normal(size=100)
        found = rank_correlation(x, y)
        held += found.lo <= 6 / np.pi * np.arcsin(0.3) <= found.hi
    assert 0.92 < held / n < 0.98


def test_over_seeds_is_students_t() -> None:
    values = np.array([0.2, 0.5, 0.1, np.nan, 0.4])
    found, p = over_seeds(values)
    known = values[np.isfinite(values)]
    interval = stats.ttest_1samp(known, 0).confidence_interval()
    assert (found.lo, found.hi) == pytest.approx((interval.low, interval.high))
    assert p == pytest.approx(stats.ttest_1samp(known, 0, alternative="greater").pvalue)


def test_runs_are_pooled_by_removal() -> None:
    runs = [arms_of_a_run(drop) for drop in (0.5, 0.55, 0.6)]
    table = pooled_effects([effects(run) for run in runs])
    row = table.filter(removal="top:gas", control="matched").row(0, named=True)
    assert row["runs"] == 3 and row["effect"] == pytest.approx(0.5, abs=0.03)
    assert row["lo"] < 0.48 and row["p"] < 0.05
    halved = pooled_curves([curves(run) for run in runs])
    assert halved.filter(removal="top:gas")["halved_runs"].to_list() == [3, 3]


# --- plans and outcomes ---------------------------------------------------------------------------


def test_a_plan_holds_every_removal_and_its_controls(planted: Run) -> None:
    recipe = planted.recipe
    assert recipe is not None
    requests = tuple(removal.parse(t) for t in ("ground-truth", "random", "top:advantage"))
    wanted = Wanted(requests, sizes=(0.5, 1.0), seeds=(0, 1), subsets=4)
    arms = plan_arms(planted, wanted)
    truth = len(removal.ground_truth(planted.rollouts().filter(pl.col("step") < 8)))
    assert arms[0].removal == "nothing" and all(arm.until == 8 for arm in arms)
    assert all(arm.how == "zero" for arm in arms)
    named = [arm for arm in arms if arm.removal == "top:advantage"]
    assert [arm.size for arm in named if arm.control is None] == [round(truth / 2), truth]
    assert {(a.control, a.draw) for a in named if a.control} == {
        (name, seed) for name in ("random", "matched") for seed in (0, 1)
    }
    assert all(arm.size == truth for arm in named if arm.control)
    subsets = [arm for arm in arms if arm.removal == "subset"]
    assert len({arm.ids for arm in subsets}) == 4


def test_a_rerun_chooses_ground_truth_as_it_goes(planted: Run) -> None:
    requests = tuple(removal.parse(t) for t in ("ground-truth", "random", "top:advantage"))
    arms = plan_arms(planted, Wanted(requests, seeds=(0,), mode="rerun"))
    assert [a.arm for a in arms if a.removal == "ground-truth"] == ["ground_truth"]
    assert {a.how for a in arms} == {"exclude"}
    assert all(a.arm == "listed" and a.ids for a in arms if a.removal == "top:advantage")


def test_a_size_cannot_be_asked_of_what_is_chosen_as_training_goes(planted: Run) -> None:
    with pytest.raises(BehaviorTraceError, match="--size 3 cannot be had of ground-truth"):
        plan_arms(planted, Wanted((removal.parse("ground-truth"),), size=3, mode="rerun"))


def test_an_unsaved_checkpoint_is_refused(planted: Run) -> None:
    with pytest.raises(BehaviorTraceError, match="--until 7 is no checkpoint"):
        plan_arms(planted, Wanted((), until=7))


def test_arms_that_remove_the_same_are_one_training(planted: Run, tmp_path: Path) -> None:
    one = Arm("top:gas", ids=("0-1",), until=8)
    same = Arm("top:dot", "matched", 3, ("0-1",), until=8, balance={"step": 0.1})
    other = Arm("top:gas", ids=("0-1",), until=8, how="zero")
    assert one.address(planted) == same.address(planted) != other.address(planted)
    assert Arm.parse(one.dump()) == one
    path = place(planted, one)
    assert load(path) is None
    save(path, one, outcome([0.5, 0.25]))
    assert load(path) == outcome([0.5, 0.25])
    path.write_text(path.read_text()[:50])
    with pytest.raises(BehaviorTraceError, match="is damaged"):
        load(path)
    path.unlink()


def test_a_recipes_causes_are_registered_and_shape_no_training() -> None:
    from behaviortrace.sweep import address

    plain, with_causes = recipes.load("tiny"), recipes.load("tiny", {"causes.subsets": 3})
    assert plain.preregistration() != with_causes.preregistration()
    assert address(plain) == address(with_causes)
    with pytest.raises(BehaviorTraceError, match=r"causes\.until 7 is never saved"):
        recipes.load("tiny", {"causes.until": 7})
