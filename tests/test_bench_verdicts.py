"""The rollout-level rule on simulated studies: how often it passes, by what is true of them."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from behaviortrace.bench.verdicts import DRAW, judged, simulate, true_auc, verdicts
from behaviortrace.checklist import rows
from behaviortrace.cli.app import main


@pytest.mark.parametrize("condition", ["permuted labels", "unrelated target"])
def test_where_nothing_is_to_be_found_few_studies_pass(condition: str) -> None:
    found = verdicts(condition, 60)  # type: ignore[arg-type]  # a name from the table
    assert found["share"] <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 60)
    assert found["above"] <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 60)


def test_fluency_that_bends_passes_the_linear_rule_and_not_the_spline() -> None:
    found = verdicts("bent fluency", 40)
    assert found["above"] > 0.5
    assert found["above_spline"] <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 40)


def test_an_oracle_passes() -> None:
    effect = true_auc(groups=5000)
    assert 0.6 < effect < 0.75
    assert verdicts("oracle", 40)["share"] >= 0.9


def test_permuting_keeps_how_many_of_a_group_show_it() -> None:
    rng = np.random.default_rng(0)
    draw = simulate(rng, groups=20)
    truth = rows.direction(judged(draw, "oracle", rng), DRAW, "raw")
    shuffled = rows.direction(judged(draw, "permuted labels", rng), DRAW, "raw")
    assert truth is not None and shuffled is not None
    assert truth["pairs"] == shuffled["pairs"] and truth["auc"] != shuffled["auc"]


def test_the_commands_print_their_tables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "verdicts", "--studies", "10", "--json"])
    assert stopped.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["condition"] for row in found["conditions"]] == [
        "permuted labels",
        "unrelated target",
        "bent fluency",
        "oracle",
    ]
    with pytest.raises(SystemExit):
        main(["bench", "verdicts", "--studies", "10"])
    assert "oracle" in capsys.readouterr().out


def test_simulated_rollouts_have_what_real_ones_have() -> None:
    draw = simulate(np.random.default_rng(1), groups=50)
    found = draw.rollouts.select(
        pl.corr("fluency", pl.col("behavior").cast(pl.Float64)).alias("fluent")
    )
    assert found["fluent"][0] > 0.1  # fluency can stand in for the label
    norms = np.linalg.norm(draw.sketches, axis=1)
    assert np.corrcoef(norms, draw.rollouts["fluency"])[0, 1] < -0.1  # and magnitude for fluency
    assert abs(float(draw.target @ draw.unrelated)) < 0.2
