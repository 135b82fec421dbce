"""The pitfalls: shown where they are, and not shown where they are not."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from markupsafe import escape

from behaviortrace import cli, pitfalls
from behaviortrace.capture import replay
from behaviortrace.capture.slices import SliceSink
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate.cluster_mean import cluster_t
from behaviortrace.evaluate.precision import ceiling
from behaviortrace.pitfalls import stage
from behaviortrace.pitfalls.headroom import no_headroom
from behaviortrace.report.page import render
from behaviortrace.report.stage import page_of
from behaviortrace.run import Run
from tests.models import ARCHITECTURES, VOCABULARY, tiny
from tests.reference.analysed_run import analysed_run, policy
from tests.reference.autograd import row_gradient
from tests.reference.planted_run import CUTOFF, STEPS, planted_run


@pytest.fixture(scope="module")
def blind(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """No direction in any gradient, no late step trains, fluency is the label."""
    return planted_run(tmp_path_factory.mktemp("blind") / "run", gap=2.0, rates=(0.8, 0.5))


@pytest.fixture(scope="module")
def telling(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Gradients point where the behaviour is, late steps train, fluency is nothing."""
    path = tmp_path_factory.mktemp("telling") / "run"
    return planted_run(path, late=True, signal=6.0, constructed=0.3)


def rows(found: pitfalls.Demonstration, **where: Any) -> list[dict[str, Any]]:
    return [r for r in found.table.to_dicts() if all(r[k] == v for k, v in where.items())]


def test_the_cliff_explains_overall_precision(blind: Run) -> None:
    found = pitfalls.cliff(blind)
    (knows,) = rows(found, score="trained or not")
    frame = blind.rollouts()
    truth, early = frame["boosted"].to_numpy(), frame["step"].to_numpy() < CUTOFF
    # The trained steps hold all of the ground truth, in one tie block: its density there.
    assert knows["overall"] == pytest.approx(truth[early].mean())
    assert knows["trained_window"] == pytest.approx(found.facts["chance_trained_window"])
    assert found.facts["cliff"] == pytest.approx(truth[early].mean() - truth.mean())
    assert found.facts["cliff_share"] > 0.6
    assert (found.facts["late_steps"], found.facts["late_steps_trained"]) == (STEPS - CUTOFF, 0)
    assert f"0 of {STEPS - CUTOFF} steps after the window trained" in found.sentence
    (norm,) = rows(found, score="norm")
    assert norm["lift_overall"] > 2 and norm["lift_trained_window"] < 1.4


def test_without_a_cliff_it_gains_nothing(telling: Run) -> None:
    found = pitfalls.cliff(telling)
    assert found.facts["late_steps_trained"] == STEPS - CUTOFF
    assert found.facts["cliff"] == pytest.approx(0.0)
    assert found.facts["cliff_share"] in (None, pytest.approx(0.0))


def test_the_headroom_of_steps_and_of_rollouts(telling: Run) -> None:
    found = pitfalls.headroom(telling)
    frame = telling.rollouts()
    inside = frame["step"].to_numpy() < CUTOFF
    truth, step = frame["boosted"].to_numpy()[inside], frame["step"].to_numpy()[inside]
    assert found.facts["ceiling_step"] == pytest.approx(ceiling(truth, step))
    assert found.facts["lost_to_ties"] == pytest.approx(1 - ceiling(truth, step))
    assert found.facts["ceiling_step"] < found.facts["ceiling_rollout"] <= 1.0
    for row in rows(found, embedding="step"):
        assert row["precision"] <= found.facts["ceiling_step"] + 1e-9
        assert row["raw_auc"] is None  # constant inside a group
    best = rows(found, embedding="plain_centered")[0]
    # Among the rollouts with the behaviour half are boosted: that is what direction can reach.
    assert best["precision"] > best["chance"] and best["raw_lo"] > 0.5
    assert "rollouts of their own can reach" in found.sentence


def test_rollouts_without_direction_gain_nothing(blind: Run) -> None:
    found = pitfalls.headroom(blind)
    for row in rows(found, embedding="plain_centered"):
        assert row["raw_lo"] < 0.5 < row["raw_hi"]


def test_what_no_gradient_can_find_lowers_the_rollouts_ceiling() -> None:
    from behaviortrace.pitfalls.headroom import _findable_ceiling

    truth = np.array([True] * 4 + [False] * 12)
    assert _findable_ceiling(truth, truth) == 1.0
    # Two are found; the other two hold places 3 and 4 among 14 in random order.
    assert _findable_ceiling(truth, np.arange(16) < 2) == pytest.approx((2 + 2 * 2 / 14) / 4)
    assert _findable_ceiling(~truth & truth, truth) is None


def test_fluency_stands_in_for_the_label_where_it_does(blind: Run, telling: Run) -> None:
    found = pitfalls.fluency(blind)
    for row in found.table.to_dicts():
        assert row["fluency_raw"] > 0.95
        assert 1.5 < row["fluency_gap"] < 2.5
        assert abs(row["direction_residualized"] - 0.5) < 0.25
    assert found.facts["fluency_at_or_above_gradients"] == found.facts["rows"] == 5
    (drawn,) = rows(found, rollouts="seed-100")
    assert drawn["behavior_rate"] == pytest.approx(0.8, abs=0.1)
    other = pitfalls.fluency(telling, stretches=2)
    assert other.table.height == 3 and other.facts["fluency_at_or_above_gradients"] == 0
    assert all(row["direction_raw"] > 0.9 for row in other.table.to_dicts())
    with pytest.raises(BehaviorTraceError, match="stretches is 0"):
        pitfalls.fluency(blind, stretches=0)


def test_intervals_are_over_prompts_where_they_repeat(telling: Run, tmp_path: Path) -> None:
    """The same run, its prompts asked again: as many groups and pairs, and fewer units."""
    run = Run.open(shutil.copytree(telling.path, tmp_path / "run"))
    tokens = run.table("results/token_rows")
    asked = pl.col("group").cast(pl.Int64) % 4
    run.save_table("results/token_rows", tokens.with_columns(prompt=pl.format("p{}", asked)))
    found, once = pitfalls.constructed(run).facts, pitfalls.constructed(telling).facts
    width, narrow = (f["difference_hi"] - f["difference_lo"] for f in (found, once))
    assert found["difference"] == once["difference"] and width != narrow
    assert tokens["group"].n_unique() > 4
    own = tokens.filter(span="trigger")
    gap = (
        own.filter(target="in_context")["cosine"] - own.filter(target="constructed")["cosine"]
    ).to_numpy()
    unit = own.filter(target="in_context")["group"].to_numpy() % 4
    expected = cluster_t(gap, unit)
    assert (found["difference_lo"], found["difference_hi"]) == pytest.approx(
        (expected.lo, expected.hi)
    )
    for row in rows(pitfalls.fluency(telling)):
        assert row["clusters"] == row["groups"]  # each is asked once there


def test_a_constructed_target_points_elsewhere_where_it_does(blind: Run, telling: Run) -> None:
    found = pitfalls.constructed(blind)
    assert found.facts["difference"] == pytest.approx(0.3, abs=0.03)
    assert found.facts["difference_lo"] > 0.2
    assert found.facts["bar_met"] is True and "is met" in found.sentence
    assert found.facts["cosine_in_context_minimal_pair"] == 0.0
    (row,) = rows(found, target="constructed")
    assert abs(row["tokens_mean"]) < 0.05 and row["auc_auc"] is None
    same = pitfalls.constructed(telling)
    assert abs(same.facts["difference"]) < 0.05
    assert same.facts["bar_met"] is False and "is not met" in same.sentence


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("size", [1, 50, 333, 5000])
def test_a_slice_is_the_first_coordinates_of_the_gradient(architecture: str, size: int) -> None:
    model, rng = tiny(architecture), np.random.default_rng(0)
    some = [
        (rng.integers(1, VOCABULARY, 4).tolist(), rng.integers(1, VOCABULARY, 3 + i).tolist())
        for i in range(3)
    ]
    done = replay(model, some, SliceSink(size), pad_token_id=0, micro_batch=2)
    exact = torch.stack([row_gradient(model, *row) for row in some])
    wanted = np.zeros((3, size), np.float32)
    wanted[:, : exact.shape[1]] = exact[:, :size].numpy()
    np.testing.assert_allclose(done.plain, wanted, atol=1e-5 * float(exact.abs().max()))
    np.testing.assert_allclose(done.norms, exact.norm(dim=1).numpy(), rtol=1e-5)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return analysed_run(tmp_path_factory.mktemp("real") / "run")


def test_a_slice_misses_the_behaviour_and_a_sketch_does_not(real: Run) -> None:
    model, tokenizer = policy()
    token = tokenizer.convert_tokens_to_ids("QZXBT")
    width = model.config.hidden_size
    small = 1 << (token * width - 1).bit_length() - 1  # ends before the token's row
    found = pitfalls.slice_misses(real, size=small, limit=24)
    assert found.facts["completions"] == 24
    assert found.facts["rows_inside"] == small // width
    assert (found.facts["token_ids"], found.facts["token_ids_inside"]) == (1, 0)
    held = {row["embedding"]: row for row in found.table.to_dicts()}
    assert held["slice"]["energy_tokens"] < 0.1
    assert held["countsketch"]["energy_tokens"] == pytest.approx(1.0, abs=0.3)
    assert held["slice"]["target_norm"] < 0.2 * held["countsketch"]["target_norm"]
    assert found.facts["cosine_rms"] > 0.1 and "is void" in found.sentence


def test_a_slice_that_holds_the_token_is_told_so(real: Run) -> None:
    found = pitfalls.slice_misses(real, size=1024, limit=8)
    assert found.facts["token_ids_inside"] == 1 and "is in those rows" in found.sentence


def test_a_slice_that_cannot_be_shown_is_refused(real: Run, blind: Run, tmp_path: Path) -> None:
    with pytest.raises(BehaviorTraceError, match="limit 3 holds no group of 4"):
        pitfalls.slice_misses(real, limit=3)
    with pytest.raises(BehaviorTraceError, match="slice size 0"):
        pitfalls.slice_misses(real, size=0)
    with pytest.raises(BehaviorTraceError, match="must be a power of two"):
        pitfalls.slice_misses(real, size=100)
    with pytest.raises(BehaviorTraceError, match="no complete checkpoint"):
        pitfalls.slice_misses(blind)
    bare = Run.create(tmp_path / "bare", recipe=real.recipe)
    with pytest.raises(BehaviorTraceError, match="no draw to replay"):
        pitfalls.slice_misses(bare)


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    printed = capsys.readouterr()
    return int(stop.value.code or 0), printed.out, printed.err


@pytest.mark.parametrize("name", ["cliff", "headroom", "constructed", "fluency"])
def test_the_commands(name: str, blind: Run, capsys: pytest.CaptureFixture[str]) -> None:
    blind.update(status="complete")
    code, out, _ = call(capsys, "pitfall", name, str(blind.path), "--json")
    found = json.loads(out)
    assert code == 0 and found["name"] == name and found["rows"] and found["facts"]
    code, out, _ = call(capsys, "pitfall", name, str(blind.path))
    assert code == 0 and found["title"] in out
    assert " ".join(found["sentence"].split()) in " ".join(out.split())


def test_the_slice_command(real: Run, capsys: pytest.CaptureFixture[str]) -> None:
    real.update(status="drawn")
    options = ["--size", "128", "--limit", "8", "--json"]
    code, out, _ = call(capsys, "pitfall", "slice", str(real.path), *options)
    assert code == 0
    assert [row["embedding"] for row in json.loads(out)["rows"]] == ["slice", "countsketch"]


@pytest.mark.parametrize("name", ["cliff", "headroom", "constructed", "fluency"])
def test_a_run_without_results_names_the_stage(
    name: str, real: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    real.update(status="drawn")
    code, _, error = call(capsys, "pitfall", name, str(real.path))
    assert code == 2 and error.count("\n") == 1 and "make it with 'behaviortrace" in error


def test_undefined_numbers_are_null(blind: Run) -> None:
    for show in (pitfalls.cliff, pitfalls.headroom, pitfalls.constructed, pitfalls.fluency):
        found = show(blind)
        values = [v for row in found.table.to_dicts() for v in row.values()]
        values += list(found.facts.values())
        assert not any(isinstance(v, float) and math.isnan(v) for v in values)


def test_groups_with_both_labels_are_counted(telling: Run) -> None:
    (row,) = rows(pitfalls.fluency(telling), rollouts=telling.draws()[0])
    shown = telling.rollouts(telling.draws()[0]).group_by("group").agg(pl.col("behavior").sum())
    size = telling.rollouts(telling.draws()[0]).height / shown.height
    both = [0 < n < size for n in shown["behavior"]]
    assert (row["groups"], row["mixed"]) == (len(both), sum(both)) and 0 < sum(both) < len(both)


def test_they_are_stored_and_shown_in_the_report(telling: Run) -> None:
    found = stage.demonstrate(telling)
    assert [each.name for each in found] == ["cliff", "headroom", "constructed", "fluency"]
    stage.keep(telling, dataclasses.replace(found[0], name="slice", title="P3: made up"))
    loaded, missing = stage.load(telling)
    assert [each.title[:2] for each in loaded] == ["P1", "P2", "P3", "P4", "P5"]
    assert missing == {}
    fresh = {each.name: each.as_json() for each in found}
    for each in loaded:
        if each.name != "slice":
            assert each.as_json() == fresh[each.name]
    page = page_of(telling)
    assert [p.title for p in page.pitfalls] == [each.title for each in loaded]
    text = render(page)
    for each in loaded:
        assert str(escape(each.sentence)) in text
        assert str(escape(each.rule)) in text


def test_what_cannot_be_shown_is_named_with_its_reason(tmp_path: Path) -> None:
    run = planted_run(tmp_path / "run")
    run.save_json("results/pitfalls", [{"name": "constructed", "missing": "no <draw>"}])
    loaded, missing = stage.load(run)
    assert loaded == [] and missing["constructed"] == "no <draw>"
    assert "pitfall slice" in missing["slice"]
    text = render(page_of(run))
    assert "no &lt;draw&gt;" in text and "<draw>" not in text


def test_each_shows_where_it_was_planted(blind: Run, telling: Run) -> None:
    assert pitfalls.cliff(blind).shows is True
    assert pitfalls.cliff(telling).shows is not True
    assert pitfalls.fluency(blind).shows is True
    assert pitfalls.fluency(telling).shows is False
    assert pitfalls.headroom(blind).shows is True
    assert pitfalls.headroom(telling).shows is True  # by step; by rollout it gains
    assert no_headroom(0.40, 0.30, 0.34) is False
    assert no_headroom(0.40, 0.30, 0.36) is True
    assert no_headroom(0.40, 0.36, 0.30) is True
    assert no_headroom(0.40, 0.30, None) is None
    assert pitfalls.constructed(blind).shows is True
