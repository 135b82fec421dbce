"""Rollouts that trained several steps: one row a use, or one a rollout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from behaviortrace.run import Run, uses
from tests.reference.run_builder import plain_sketches, rollout_frame, write_checkpoint


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.randoms())
def test_uses_are_those_found_one_rollout_at_a_time(names: list[int], random: object) -> None:
    seen: dict[int, int] = {}
    use = []
    for name in names:
        use.append(seen.get(name, 0))
        seen[name] = use[-1] + 1
    frame = pl.DataFrame(
        {
            "rollout_id": [str(n) for n in names],
            "use": use,
            "grad_norm": [float(i) for i in range(len(names))],
            "total_norm": [None if u == 0 else 100.0 + i for i, u in enumerate(use)],
            "update_weight": [1.0] * len(names),
        }
    )
    sketches = np.random.default_rng(len(names)).normal(size=(len(names), 3))
    found = uses.find(frame)
    if found is None:
        assert max(use) == 0
        return
    own = {name: [i for i, n in enumerate(names) if n == name] for name in dict.fromkeys(names)}
    total = uses.summed(sketches, found)
    table = uses.one_row_a_rollout(frame, found)
    assert table["rollout_id"].to_list() == [str(n) for n in own]
    for row, rows, line in zip(total, own.values(), table.iter_rows(named=True), strict=True):
        np.testing.assert_allclose(row, sketches[rows].sum(0))
        assert line["uses"] == len(rows)
        alone = len(rows) == 1
        assert line["grad_norm"] == (rows[0] if alone else 100.0 + rows[-1])
        assert line["update_weight"] == (1.0 if alone else None)


def test_tables_without_uses_are_left_alone() -> None:
    assert uses.find(rollout_frame(0)) is None
    assert uses.find(rollout_frame(0).with_columns(use=pl.lit(0))) is None
    assert uses.find(rollout_frame(0).with_columns(use=pl.lit(None, pl.Int32))) is None


def test_a_sum_without_its_norm_has_none(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    frame = rollout_frame(0).with_columns(grad_norm=pl.lit(1.0))
    for step in range(2):
        now = frame.with_columns(step=pl.lit(step, pl.Int32), use=pl.lit(step, pl.Int32))
        run.write_shard("training", step, 0, now, {"update": plain_sketches(step)})
    found = run.rollouts()
    assert found["grad_norm"].null_count() == 3 and found["step"].to_list() == [0] * 3
    np.testing.assert_array_equal(run.sketches(), plain_sketches(0) + plain_sketches(1))
    assert run.rollouts(uses=True).height == len(run.sketches(uses=True)) == 6
    assert run.verify() == []


def test_a_masked_rollout_has_an_update_of_zero(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    plain = plain_sketches(0)
    plain[0] = np.nan
    run.write_shard("training", 0, 0, rollout_frame(0), {"plain": plain})
    assert run.rollouts()["update_weight"][0] == 0
    assert not run.sketches()[0].any() and np.isfinite(run.sketches()).all()
    assert np.isnan(run.sketches("plain")[0]).all()


def test_a_resume_drops_the_optimizer_of_the_steps_it_drops(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    moments = pl.DataFrame({"parameter": ["a", "b"], "second_moment": [0.1, 0.2]})
    for step in range(3):
        plain = {"plain": plain_sketches(step)}
        run.commit(
            [
                run.prepare_shard("training", step, 0, rollout_frame(step), plain),
                run.prepare_shard("optimizer", step, 0, moments),
            ]
        )
        run.add_checkpoint(step + 1, write_checkpoint(run, step + 1))
    (run.path / "optimizer" / "step-000001-rank-0000.parquet").write_bytes(b"damaged")
    assert any("optimizer/step-000001" in problem for problem in run.verify())
    assert run.begin_resume(exact=False) == 1
    assert [s.step for s in run.manifest.store("optimizer")] == [0]
    assert run.read("optimizer")["parameter"].to_list() == ["a", "b"] and run.verify() == []
    assert len(list((run.path / "optimizer").iterdir())) == 1
