"""The token level: right spans, right targets, and a cross-fit that truly leaves a prompt out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from behaviortrace.draws.stage import draw
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant import behaviors
from behaviortrace.records import TOKEN_SCHEMA
from behaviortrace.run import Run
from behaviortrace.scores.tokens import compare, leave_prompt_out, token_rows
from behaviortrace.targets.spans import behavior_mask
from tests.reference.analysed_run import (
    analysed_run,
    moved,
    policy,
    slow_sketch,
    small_recipe,
    trained_run,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return analysed_run(tmp_path_factory.mktemp("tokens") / "run")


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_cosines_against_plain_autograd_and_explicit_cross_fit(run: Run) -> None:
    table = token_rows(run)
    assert table.schema == TOKEN_SCHEMA
    rows = run.rollouts("seed-7").filter("behavior")
    assert table.height == rows.height * 2 * 3
    model, tokenizer = moved(policy()[0], 2), policy()[1]
    behavior = behaviors.build(small_recipe().behavior)
    spans, whole, found = {}, {}, {}
    for row in rows.iter_rows(named=True):
        mask = behavior_mask(tokenizer, row["completion_ids"], behavior)
        args = (model, row["prompt_ids"], row["completion_ids"])
        spans[row["rollout_id"]], whole[row["rollout_id"]] = (
            slow_sketch(*args, mask),
            slow_sketch(*args),
        )
        found[row["rollout_id"]] = row["prompt"]
    stored = {name: {t.step: t.vector for t in ts} for name, ts in run.targets().items()}
    for row in table.iter_rows(named=True):
        mine = (spans if row["span"] == "trigger" else whole)[row["rollout_id"]]
        if row["target"] == "in_context":
            others = [spans[k] for k, prompt in found.items() if prompt != row["prompt"]]
            target = np.mean(others, axis=0)
        else:
            target = stored[row["target"]][2]
        assert row["cosine"] == pytest.approx(cosine(mine, target), abs=1e-4)
    notes = run.json("results/token_notes")
    assert (
        notes["reason"] is None and notes["draw"] == "seed-7" and notes["responses"] == rows.height
    )


def test_leave_prompt_out_ignores_the_own_prompt_entirely() -> None:
    prompt = np.array(["a", "b", "a", "c", "b"])
    sketches = np.random.default_rng(0).normal(size=(5, 4))
    rest = leave_prompt_out(prompt, sketches)
    changed = sketches.copy()
    changed[[0, 2]] = 1e6  # whatever prompt a's own responses are
    np.testing.assert_allclose(leave_prompt_out(prompt, changed)[[0, 2]], rest[[0, 2]], rtol=1e-6)
    assert not np.allclose(leave_prompt_out(prompt, changed)[1], rest[1])
    np.testing.assert_allclose(rest[0], sketches[[1, 3, 4]].mean(axis=0))
    assert np.isnan(leave_prompt_out(np.array(["a", "a"]), sketches[:2])).all()


def test_a_zero_gradient_has_no_cosine() -> None:
    rows = pl.DataFrame({"rollout_id": ["x", "y"], "group": [0, 1], "prompt": ["a", "b"]})
    spans = np.array([[0.0, 0.0], [1.0, 0.0]])
    table = compare(rows, spans, np.ones((2, 2)), {"constructed": np.array([0.0, 1.0])})
    value = {
        (r["rollout_id"], r["span"], r["target"]): r["cosine"] for r in table.iter_rows(named=True)
    }
    assert (
        np.isnan(value["x", "trigger", "constructed"])
        and value["y", "trigger", "constructed"] == 0.0
    )
    assert np.isnan(
        value["y", "trigger", "in_context"]
    )  # its only other prompt has a zero gradient
    assert value["x", "whole_response", "in_context"] == pytest.approx(0.5**0.5)


def test_a_limit_spreads_over_the_draw(run: Run) -> None:
    table = token_rows(run, limit=4)
    rows = run.rollouts("seed-7").filter("behavior")
    ids = table["rollout_id"].unique(maintain_order=True).to_list()
    picked = [rows["rollout_id"].to_list().index(i) for i in ids]
    assert len(ids) == 4 and max(picked) >= rows.height // 2


def test_fewer_than_two_prompts_give_an_empty_table_and_the_reason(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run", small_recipe(**{"draw.prompts": 1}))
    draw(run, seed=7)
    table = token_rows(run)
    assert table.height == 0 and table.schema == TOKEN_SCHEMA
    assert run.table("results/token_rows").height == 0
    assert "a cross-fitted target needs two" in run.json("results/token_notes")["reason"]


def test_no_draw_is_one_line(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", recipe=small_recipe())
    with pytest.raises(BehaviorTraceError, match="no draw to compare tokens of"):
        token_rows(run)
