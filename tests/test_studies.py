"""Committed studies: whole, and their tables what their committed rows give."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from behaviortrace import pipeline
from behaviortrace.causes.pooling import over_seeds
from behaviortrace.run import Run
from behaviortrace.sweep.manifest import read_sweep
from behaviortrace.sweep.stage import merge_again

STUDIES = Path(__file__).resolve().parent.parent / "studies"
SWEEPS = sorted(path.parent for path in STUDIES.glob("*/*/sweep.json"))


def test_there_are_studies() -> None:
    assert SWEEPS


@pytest.mark.parametrize("root", SWEEPS, ids=lambda root: root.name)
def test_its_files_are_what_its_manifests_say(root: Path) -> None:
    manifest = read_sweep(root)
    finished = [run for run in manifest.runs if run.state == "finished"]
    assert finished
    for entry in finished:
        run = Run.open(root / entry.folder)
        assert run.verify() == []
        assert run.manifest.left_out and not list(run.path.rglob("*.safetensors"))
    for entry in manifest.results.values():
        assert (root / entry.file).stat().st_size == entry.bytes


@pytest.mark.parametrize("root", SWEEPS, ids=lambda root: root.name)
def test_its_tables_are_made_again_from_its_rows(root: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(root, tmp_path / root.name))
    finished = [run for run in read_sweep(copy).runs if run.state == "finished"]
    one = Run.open(copy / finished[-1].folder)  # all of them: make studies
    for name in ("results/rollout_level", "results/step_level", "results/token_level"):
        one.save_table(name, one.table(name).head(0))
    pipeline.evaluate(one)
    (copy / "report" / "index.html").unlink()
    found = merge_again(copy)
    assert found.report and found.report.is_file()
    for before in sorted((root / "results").glob("*.parquet")):
        table = pl.read_parquet(before)
        again = pl.read_parquet(copy / "results" / before.name)
        hidden = [name for name in ("facts", "sentence") if name in table.columns]
        assert_frame_equal(again.drop(hidden), table.drop(hidden), rel_tol=1e-6, abs_tol=1e-9)
        csv = pl.read_csv(before.with_suffix(".csv"), infer_schema_length=None)
        assert csv.columns == table.columns and csv.height == table.height


@pytest.mark.parametrize("root", SWEEPS, ids=lambda root: root.name)
def test_its_readme_says_what_its_tables_say(root: Path) -> None:
    """Every decisive interval, and what each control leaves of it over seeds, to the last digit."""
    text = (root.parent / "README.md").read_text("utf-8")
    draws = pl.read_parquet(root / "results" / "replicates.parquet")
    controls = pl.read_parquet(root / "results" / "controls.parquet").drop_nulls("mean")
    decisive = controls.filter(ranking="direction, minimal pair", variant="residualized")
    assert decisive.height == 1 and draws.height >= 6
    shown = controls if root.name == "smollm2" else decisive
    shown = shown.filter(
        ~((pl.col("ranking") == "norm") & (pl.col("variant").str.ends_with("norm")))
    )
    told = [*draws.select("auc", "lo", "hi").rows(), *shown.select("mean", "lo", "hi").rows()]
    missing = [
        said for each in told if (said := "{:.3f} [{:.3f}, {:.3f}]".format(*each)) not in text
    ]
    assert not missing
    for entry in read_sweep(root).runs:
        rise = Run.open(root / entry.folder).json("results/summary")["s_b_rise"]
        assert f"{rise['p']:.3f}" in text, "how often luck raises s_b as much"


@pytest.mark.parametrize("root", SWEEPS, ids=lambda root: root.name)
def test_nothing_of_the_machine_is_in_it(root: Path) -> None:
    for file in root.rglob("*.json"):
        assert not re.search(r'"/\w', file.read_text("utf-8")), "an absolute path"


def test_the_study_of_causes_says_what_its_tables_say() -> None:
    folder = STUDIES / "causes"
    text = (folder / "README.md").read_text("utf-8")
    effects = pl.read_csv(folder / "effects.csv").filter(mode="replay", control="matched")
    scores = pl.read_csv(folder / "lds.csv").filter(measure="rate")
    assert effects.height == scores.height == 16
    told = effects.select("effect", "lo", "hi").rows() + scores.select("lds", "lo", "hi").rows()
    for point, lo, hi in told:
        assert f"{point:.3f} [{lo:.3f}, {hi:.3f}]" in text
    by_seed = pl.read_csv(folder / "effects_by_seed.csv").filter(mode="replay", control="matched")
    means = by_seed.group_by("removal").agg(pl.col("effect").mean(), pl.col("seed").n_unique())
    again = effects.select("removal", before="effect").join(means, on="removal")
    assert again["seed"].to_list() == [10] * 16
    assert (again["effect"] - again["before"]).abs().max() < 1e-9  # type: ignore[operator]
    lds = pl.read_csv(folder / "lds_by_seed.csv").filter(measure="rate")
    scored = lds.pivot(on="ranking", index="seed", values="lds")
    fallen = by_seed.pivot(on="removal", index="seed", values="effect")
    arms = pl.read_parquet(folder / "arms.parquet").filter(mode="rerun")
    again = arms.pivot(on="removal", index="seed", values="rate_probe")
    mine = "dot/in_context"
    for table, more, less in (
        (scored, mine, "ground-truth"),
        (scored, mine, "advantage_x_match"),
        (fallen, f"top:{mine}", "top:norm"),
        (again, "random", "ground-truth"),
    ):
        found, _ = over_seeds((table[more] - table[less]).to_numpy())
        said = f"{found.point:.3f} [{found.lo:.3f}, {found.hi:.3f}]"
        assert said in " ".join(text.split()), (more, less)
