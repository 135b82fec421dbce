import json
import re

import numpy as np
import polars as pl
import pytest
import typer
from typer.testing import CliRunner

from behaviortrace.cli import judge as commands
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate.within_group import judge
from tests.published import DATA, ground_truth_rows, published

AUC = ["--label", "y", "--group", "g", "--score", "s"]
PRECISION = ["--label", "y", "--score", "s"]


@pytest.fixture
def call():
    """Runs a command; BehaviorTraceError passes through, as the application prints it."""
    app = typer.Typer()
    app.command()(commands.auc)
    app.command()(commands.precision)

    def run(*arguments):
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        if isinstance(result.exception, BehaviorTraceError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result

    return run


@pytest.fixture
def table(tmp_path):
    def write(name="rows.csv", **changes):
        generator = np.random.default_rng(0)
        columns = {
            "g": [f"prompt {i}" for i in np.repeat(np.arange(20), 6)],
            "y": generator.integers(0, 2, 120),
            "s": generator.normal(size=120),
            "f": -generator.random(120),
        }
        frame = pl.DataFrame(columns | changes)
        path = tmp_path / name
        frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path)
        return path

    return write


def changed(values, row, value):
    values = list(values)
    values[row] = value
    return values


def test_auc_json_has_the_documented_shape(call, table):
    data = json.loads(call("auc", table(), *AUC, "--score", "f", "--fluency", "f", "--json").stdout)
    assert {"pairs", "groups", "raw", "residualized", "matched"} <= set(data)
    assert data["groups"] == 20
    for block in (data["raw"], data["residualized"]):
        assert set(block) == {"s", "f"}
        assert set(block["s"]) == {"auc", "lo", "hi"}
        assert block["s"]["lo"] <= block["s"]["auc"] <= block["s"]["hi"]
    assert data["matched"]["delta"] == 0.1
    assert 0 < data["matched"]["pairs"] < data["pairs"]
    assert set(data["matched"]) == {"pairs", "delta", "s", "f"}


def test_groups_of_one_cluster_are_one_unit(call, table):
    """Twenty groups of five prompts; each its own cluster gives the numbers of none given."""
    names = [f"prompt {i}" for i in np.repeat(np.arange(20), 6)]
    asked = [f"asks {i % 5}" for i in np.repeat(np.arange(20), 6)]
    path = table(g=names, p=asked, same=[name[::-1] for name in names])
    options = [*AUC, "--fluency", "f", "--json"]
    plain, once, found = (
        json.loads(call("auc", path, *options, *more).stdout)
        for more in ([], ["--cluster", "same"], ["--cluster", "p"])
    )
    assert once == plain and plain["clusters"] == plain["groups"] == 20
    assert (found["groups"], found["clusters"], found["pairs"]) == (20, 5, plain["pairs"])
    rows = pl.read_csv(path)
    expected = judge(
        rows["y"].to_numpy() == 1,
        rows["g"].to_numpy(),
        {"s": rows["s"].to_numpy()},
        rows["f"].to_numpy(),
        cluster=rows["p"].to_numpy(),
    )
    for block, judged in (("raw", expected.raw), ("residualized", expected.residualized)):
        ends = found[block]["s"]
        assert (ends["lo"], ends["hi"]) == (judged["s"].lo, judged["s"].hi)
        held = found["logit_t"][block]["s"]
        assert held["lo"] == pytest.approx(judged["s"].logit_t.lo)
        assert held["p"] == pytest.approx(judged["s"].p)
    assert any("only 5 clusters have pairs" in each for each in found["warnings"])
    shown = call("auc", path, *AUC, "--cluster", "p").stdout
    assert (
        "interval over 5 clusters" in " ".join(shown.split())
        and "of 20 groups (5 clusters)" in shown
    )


def test_a_cluster_that_cannot_be_is_refused_by_name(call, table):
    names = [f"prompt {i}" for i in np.repeat(np.arange(20), 6)]
    path = table(p=changed(names, 7, "elsewhere"))
    with pytest.raises(BehaviorTraceError) as refused:
        call("auc", path, *AUC, "--cluster", "p")
    told = str(refused.value)
    assert str(path) in told and "\n" not in told and "--cluster p" in told
    assert "group prompt 1 lies in clusters 'prompt 1' and 'elsewhere'" in told
    with pytest.raises(BehaviorTraceError, match="has no column 'nil' for --cluster"):
        call("auc", path, *AUC, "--cluster", "nil")
    gaps = table(p=changed(names, 3, None))
    with pytest.raises(BehaviorTraceError, match="'p' has 1 missing value"):
        call("auc", gaps, *AUC, "--cluster", "p")


def test_without_fluency_the_controlled_blocks_are_null(call, table):
    data = json.loads(call("auc", table(), *AUC, "--json").stdout)
    assert data["residualized"] is None and data["matched"] is None


def test_every_score_has_the_interval_that_holds_too(call, table):
    options = [*AUC, "--score", "f", "--fluency", "f", "--json"]
    data = json.loads(call("auc", table(), *options).stdout)
    for block in ("raw", "residualized", "matched"):
        assert set(data["logit_t"][block]) == {"s", "f"}
        for name, found in data["logit_t"][block].items():
            assert set(found) == {"lo", "hi", "p", "p_holm"}
            assert found["p"] <= found["p_holm"] <= 2 * found["p"] or found["p_holm"] == 1
            if (block, name) == ("residualized", "f"):  # fluency given itself: nothing is left
                assert data[block][name] == {"auc": 0.5, "lo": None, "hi": None}
                assert (found["lo"], found["hi"], found["p"]) == (None, None, 1)
            else:
                assert found["lo"] <= data[block][name]["auc"] <= found["hi"]
    assert data["detectable"]["power"] == 0.8
    assert 0.5 < data["detectable"]["all_pairs"] < data["detectable"]["matched"]
    plain = json.loads(call("auc", table(), *AUC, "--json").stdout)
    assert plain["logit_t"]["residualized"] is None and plain["detectable"]["matched"] is None


def test_residual_and_interval_are_used(call, table):
    rng = np.random.default_rng(3)
    f = -rng.random(120)
    path = table(f=f, s=(3 * f) ** 4 + 0.1 * rng.normal(size=120))
    line, spline = (
        json.loads(
            call("auc", path, *AUC, "--fluency", "f", "--residual", control, "--json").stdout
        )
        for control in ("linear", "spline")
    )
    assert (line["control"], spline["control"]) == ("linear", "spline")
    assert line["residualized"] != spline["residualized"]
    assert line["raw"] == spline["raw"] and line["matched"] == spline["matched"]
    shown = call("auc", path, *AUC, "--fluency", "f", "--interval", "logit-t").stdout
    assert "95% logit-t interval" in shown
    assert shown != call("auc", path, *AUC, "--fluency", "f").stdout
    found = line["logit_t"]["raw"]["s"]
    assert f"[{found['lo']:.3f}, {found['hi']:.3f}]".replace("0.", ".") in shown
    two = call("auc", path, *AUC, "--score", "f", "--fluency", "f").stdout
    assert "of 2 scores, by Holm" in two and "detect an AUC from" in two


def test_csv_parquet_and_label_spellings_agree(call, table, tmp_path):
    path = table()
    expected = call("auc", path, *AUC, "--json").stdout
    assert call("auc", table("rows.parquet"), *AUC, "--json").stdout == expected
    unnamed = tmp_path / "rows"
    unnamed.write_bytes((tmp_path / "rows.parquet").read_bytes())
    assert call("auc", unnamed, *AUC, "--json").stdout == expected
    y = pl.read_csv(path)["y"]
    for spelled in (y == 1, y.cast(pl.Float64), ["True" if v else "False" for v in y]):
        assert call("auc", table("again.csv", y=spelled), *AUC, "--json").stdout == expected
    assert call("auc", table("again.parquet", y=y == 1), *AUC, "--json").stdout == expected


def test_seed_and_resamples_are_used(call, table):
    path = table()
    runs = [
        call("auc", path, *AUC, "--json", "--seed", seed, "--resamples", resamples).stdout
        for seed, resamples in ((0, 5000), (0, 5000), (1, 5000), (0, 200))
    ]
    assert runs[0] == runs[1] and len(set(runs)) == 3


def test_matched_width_is_used(call, table):
    path = table()
    near, far = (
        json.loads(call("auc", path, *AUC, "--fluency", "f", "--matched", delta, "--json").stdout)[
            "matched"
        ]
        for delta in (0.05, 10)
    )
    assert near["pairs"] < far["pairs"]
    data = json.loads(call("auc", path, *AUC, "--json").stdout)
    assert far["s"] == data["raw"]["s"]  # everything matches


def test_undefined_is_null_and_said(call, table):
    spread = table(f=-np.arange(120.0))
    result = call("auc", spread, *AUC, "--fluency", "f", "--json")
    data = json.loads(result.stdout)
    assert data["matched"]["s"] == {"auc": None, "lo": None, "hi": None}
    assert "only 0 fluency-matched pairs" in result.stderr
    assert any("not powered" in w for w in data["warnings"])


def test_few_groups_warn_on_stderr_only(call, table):
    result = call("auc", table(g=np.arange(120) // 30), *AUC, "--json")
    assert result.stderr.startswith("warning: only 4 groups have pairs")
    assert result.stderr.count("\n") == 1
    json.loads(result.stdout)


def test_tables_for_people(call, table):
    shown = call("auc", table(), *AUC, "--fluency", "f").stdout
    assert "Within-group AUC" in shown and "With fluency regressed out" in shown
    assert "give --fluency" in call("auc", table(), *AUC).stdout
    shown = call("precision", table(), *PRECISION, "--block", "g").stdout
    assert "rows tied by g" in shown and "Precision at |GT|" in shown


def test_what_is_undefined_or_below_chance_is_shown(call, table):
    lone = table(g=["only"] * 120)
    assert "(no interval)" in call("auc", lone, *AUC).stdout
    spread = table(f=-np.arange(120.0))
    assert "undefined" in call("auc", spread, *AUC, "--fluency", "f").stdout
    y = np.tile([0, 1], 60)
    below = table(y=y, s=-1.0 * y)
    assert "below chance: s" in call("auc", below, *AUC, "--interval", "logit-t").stdout
    assert "below chance" not in call("auc", below, *AUC).stdout  # every group loses every pair
    varied = changed(-1.0 * y, 0, -2.0)
    assert "below chance: s" in call("auc", table(y=y, s=varied), *AUC).stdout


def test_an_interval_that_says_nothing_is_not_given(call, table):
    y = np.tile([0, 1], 60)
    path = table(y=y, s=np.zeros(120), f=1.0 * y)
    options = [*AUC, "--score", "f"]
    data = json.loads(call("auc", path, *options, "--json").stdout)
    assert data["raw"]["s"] == {"auc": 0.5, "lo": None, "hi": None}
    assert data["raw"]["f"] == {"auc": 1.0, "lo": None, "hi": None}
    why = data["no_interval"]["raw"]
    assert why["s"] == {"percentile": "every pair ties", "logit_t": "every pair ties"}
    assert "no group differs" in why["f"]["percentile"] and why["f"]["logit_t"] is None
    tied, perfect = (data["logit_t"]["raw"][name] for name in "sf")
    assert (tied["lo"], tied["hi"], tied["p"]) == (None, None, 1.0)
    assert perfect["lo"] == pytest.approx(0.025 ** (1 / 20)) and perfect["hi"] == 1.0
    shown = call("auc", path, *options).stdout
    assert "no interval: s (raw): every pair ties\n" in shown
    assert "no interval: f (raw): no group differs" in shown and "above chance: none" in shown
    shown = call("auc", path, *options, "--interval", "logit-t").stdout
    assert shown.count("no interval:") == 1 and "above chance: f" in shown
    data = json.loads(call("auc", table(), *AUC, "--json").stdout)
    assert data["no_interval"] == {
        "raw": {"s": {"percentile": None, "logit_t": None}},
        "residualized": None,
        "matched": None,
    }


def test_clusters_are_read_alike_from_text_and_parquet(call, table, tmp_path):
    path = table("rows.parquet", c=np.repeat([f"p;{i % 7}" for i in range(20)], 6))
    semicolons = tmp_path / "rows.txt"
    semicolons.write_text(
        pl.read_parquet(path).write_csv(separator=";", decimal_comma=True), encoding="utf-16"
    )
    options = [*AUC, "--cluster", "c", "--json"]
    expected = call("auc", path, *options).stdout
    assert json.loads(expected)["clusters"] == 7
    assert call("auc", semicolons, *options).stdout == expected
    stray = table("stray.csv", c=["x" * 100 + "\n", *["b"] * 119])
    message = r"lies in clusters 'x{57}\.{3}' and 'b'"
    with pytest.raises(BehaviorTraceError, match=message) as caught:
        call("auc", stray, *options)
    assert "\n" not in str(caught.value)


def test_nested_columns_are_refused(call, table):
    nested = table("rows.parquet", n=[[1]] * 120)
    with pytest.raises(BehaviorTraceError, match=r"'n' holds List.*not numbers"):
        call("auc", nested, "--label", "y", "--group", "g", "--score", "n")
    with pytest.raises(BehaviorTraceError, match=r"'n' holds List.*needs numbers or text"):
        call("auc", nested, "--label", "y", "--group", "n", "--score", "s")


def test_precision_json(call, table):
    result = call("precision", table(), *PRECISION, "--json")
    data = json.loads(result.stdout)
    assert {"n", "positives", "base_rate", "ceiling", "scores"} <= set(data)
    assert data["n"] == 120 and data["ceiling"] == 1.0
    assert set(data["scores"]["s"]) == {"precision", "lift"}
    found = data["scores"]["s"]
    assert found["lift"] == pytest.approx(found["precision"] / data["base_rate"])


def test_precision_says_when_a_score_breaks_its_blocks(call, table):
    result = call("precision", table(), *PRECISION, "--block", "g", "--json")
    assert "score 's' varies inside 20 blocks" in result.stderr
    tied = table(s=np.repeat(np.arange(20.0), 6))
    assert call("precision", tied, *PRECISION, "--block", "g", "--json").stderr == ""


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, ["--label", "no", "--group", "g", "--score", "s"], "no column 'no' for --label; its"),
        ({}, ["--label", "y", "--group", "no", "--score", "s"], "no column 'no' for --group"),
        ({}, ["--label", "y", "--group", "g", "--score", "no"], "columns are g, y, s, f"),
        ({}, [*AUC, "--fluency", "no"], "no column 'no' for --fluency"),
        ({}, [*AUC, "--score", "s"], "--score s is given more than once"),
        ({}, [*AUC, "--resamples", "99"], "resamples is 99"),
        ({}, [*AUC, "--matched", "0"], "matched is 0.0"),
        ({}, [*AUC, "--matched", "-1", "--fluency", "f"], "matched is -1.0"),
        ({}, [*AUC, "--seed", "-1"], "seed is -1"),
        ({}, ["--label", "y", "--group", "g", "--score", "g"], "'g' is not numeric: 'prompt 0'"),
        ({}, ["--label", "s", "--group", "g", "--score", "s"], "'s' is not binary: .* in row {1}"),
        ({"y": [1] * 120}, AUC, "no group of 'g' holds both a row with and one without 'y'"),
        ({"g": range(120)}, AUC, "no group of 'g' holds both"),
        (
            {"y": [None, *[0, 1] * 59, 1]},
            AUC,
            "'y' has 1 missing value in 120 rows: .* in row {1} .*label",
        ),
        (
            {"g": [None, *range(119)]},
            AUC,
            "'g' has 1 missing value in 120 rows: .* in row {1} .*--group needs",
        ),
        (
            {"s": changed(range(120), 4, None)},
            AUC,
            "'s' has 1 missing value in 120 rows: .* in row {5} .*fill them or drop",
        ),
        (
            {"s": [0.0] * 7 + [float("nan")] * 4 + [float("inf")] + [1.0] * 108},
            AUC,
            "'s' has 4 missing values in 120 rows: (?i:'?nan'? in row {8}, .*{10}, and 1 more)",
        ),
        (
            {"f": [float("-inf"), 0.5, float("inf")] + [0.0] * 117},
            [*AUC, "--fluency", "f"],
            "'f' has 2 infinite values in 120 rows: '?-inf'? in row {1}, '?inf'? in row {3}",
        ),
        ({"s": [None] * 120}, AUC, "'s' has 120 missing values in 120 rows"),
        (
            {"s": changed([str(i) for i in range(120)], 2, "high")},
            AUC,
            "'s' is not numeric: 'high' in row {3}",
        ),
        (
            {"pairs": range(120)},
            [*AUC, "--score", "pairs", "--fluency", "f"],
            "--score pairs has the name of a key",
        ),
    ],
)
@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_bad_input_to_auc(call, table, name, changes, options, message):
    path = table(name, **changes)
    header = name.endswith(".csv")  # is line 1 of the file
    message = re.sub(r"\{(\d+)\}", lambda row: str(int(row[1]) + header), message)
    with pytest.raises(BehaviorTraceError, match=message) as caught:
        call("auc", path, *options)
    text = str(caught.value)
    if " in row " in message:
        assert ("the header's among them" if header else "rows are counted from 1") in text
    assert "\n" not in text
    assert str(path) in text or "--" in text or " is " in text


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (None, "gone.csv", "no such file"),
        (b"", "empty.csv", "is empty"),
        (b"g,y,s\n", "header.csv", "header but no rows"),
        (b"PAR1 and nothing else", "torn.parquet", "cannot be read as CSV or Parquet"),
        (b"g,y,s\n1,1,2,9,9\n", "ragged.csv", "cannot be read as CSV or Parquet .row 2 has 5"),
        (b"\xff\xfe\x00\x81g,y\n1,2\n", "bytes.csv", "bytes.csv"),
        (b"g,y,s,s\na,1,2,3\n", "double.csv", "more than one column 's'"),
    ],
)
def test_bad_files(call, tmp_path, content, name, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    for command, options in (("auc", AUC), ("precision", PRECISION)):
        with pytest.raises(BehaviorTraceError, match=message) as caught:
            call(command, path, *options)
        assert name in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_is_not_a_table(call, tmp_path):
    with pytest.raises(BehaviorTraceError, match="is not a file"):
        call("auc", tmp_path, *AUC)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"y": [0] * 120}, PRECISION, "has no positive among 120 rows"),
        (
            {"s": [float("nan")] + [1.0] * 119},
            PRECISION,
            "'s' has 1 missing value in 120 rows: 'NaN' in row 2",
        ),
        ({}, [*PRECISION, "--block", "no"], "no column 'no' for --block"),
        ({}, [*PRECISION, "--score", "s"], "given more than once"),
        ({"b": [None, *range(119)]}, [*PRECISION, "--block", "b"], "'b' has 1 missing"),
    ],
)
def test_bad_input_to_precision(call, table, changes, options, message):
    with pytest.raises(BehaviorTraceError, match=message):
        call("precision", table(**changes), *options)


def test_published_rows_through_the_command(call):
    published("rollout_rows_seed2.csv")
    options = ["--label", "has_behavior", "--group", "group", "--fluency", "fluency"]
    for name in ("cos_centered", "cos_plain", "norm", "fluency"):
        options += ["--score", name]
    data = json.loads(call("auc", DATA / "rollout_rows_seed2.csv", *options, "--json").stdout)
    assert (data["pairs"], data["groups"], data["matched"]["pairs"]) == (882, 156, 136)
    assert round(data["raw"]["cos_centered"]["auc"], 4) == 0.6689
    assert round(data["residualized"]["norm"]["auc"], 4) == 0.7370


def test_published_ground_truth_through_the_command(call, tmp_path):
    path = tmp_path / "scores.parquet"
    ground_truth_rows().with_columns(s=pl.col("step") >= 900).write_parquet(path)
    options = ["--label", "boosted", "--score", "s", "--block", "step", "--json"]
    data = json.loads(call("precision", path, *options).stdout)
    assert (data["n"], data["positives"]) == (16_000, 1383)
    assert (round(data["base_rate"], 4), round(data["ceiling"], 4)) == (0.0864, 0.5510)
    assert data["scores"]["s"] == {"precision": 0.0, "lift": 0.0}
