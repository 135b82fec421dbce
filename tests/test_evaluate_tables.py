"""Tables by anyone: what is in the file counts, and text says the same as Parquet."""

import codecs
import gzip
import io
import json
import math
import re
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from behaviortrace.cli.app import main
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate import cells, delimited, table_file
from behaviortrace.evaluate.rows import keys, labels, numbers, read_rows

COLUMNS = ["y", "g", "s", "f"]
SEPARATORS = [",", ";", "\t", "|"]
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-32"]
COMPRESS = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "zstd": lambda data: pyarrow.compress(data, codec="zstd", asbytes=True),
}


def frame_of(seed=0, groups=12):
    rng = np.random.default_rng(seed)
    n = 5 * groups
    return pl.DataFrame(
        {
            "y": rng.integers(0, 2, n),
            "g": np.repeat(np.arange(groups), 5),
            "s": rng.normal(size=n),
            "f": -rng.random(n),
            "note": [f'said "yes; no, | maybe\t"\r\nrow {i}' for i in range(n)],
        }
    )


def quoted(text, separator):
    """As few quotes as the format needs."""
    if any(sign in text for sign in (separator, '"', "\n", "\r")):
        return '"' + text.replace('"', '""') + '"'
    return text


def text_of(frame, separator=",", comma=False, missing="", end="\n"):
    """A table as another program would write it."""

    def cell(value):
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return missing
        written = repr(value) if isinstance(value, float) else str(value)
        return written.replace(".", ",") if comma and isinstance(value, float) else written

    rows = [frame.columns, *([cell(v) for v in row] for row in frame.iter_rows())]
    return "".join(separator.join(quoted(c, separator) for c in row) + end for row in rows)


def printed(capfd, *arguments):
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as stopped:
        main([str(a) for a in arguments])
    out, err = capfd.readouterr()
    return stopped.value.code, out, err


def read(content, wanted=COLUMNS, name="rows.csv"):
    """The rows of a file with this content."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_rows(path, wanted)


def all_of(rows):
    return [
        labels(rows, "y").tolist(),
        keys(rows, "g", "--group").tolist(),
        numbers(rows, "s", "--score").tolist(),
        numbers(rows, "f", "--fluency").tolist(),
    ]


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=4)
GROUP_KINDS = st.sampled_from(["numbers", "large numbers", "floats", "text", "padded"])
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def tables(draw):
    n = draw(st.integers(2, 12))
    member = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    named = {
        "numbers": [2, 10, 9, -1],
        "large numbers": [2**63 + 1, 2**63, 5, 40],
        "floats": [0.5, 10.0, 9.0, -1e30],
        "text": draw(st.lists(NAMES, min_size=4, max_size=4, unique=True)),
        "padded": ["007", "7", "70", "x"],
    }[draw(GROUP_KINDS)]
    types = {"g": pl.UInt64} if named[0] == 2**63 + 1 else {}
    data = {
        "y": draw(st.lists(st.sampled_from([0, 1]), min_size=n, max_size=n)),
        "g": [named[m] for m in member],
        "s": draw(st.lists(FLOATS | st.none(), min_size=n, max_size=n)),
        "f": draw(st.lists(FLOATS | st.just(math.inf), min_size=n, max_size=n)),
        "note": draw(st.lists(NAMES | st.just('a;b,"c\n'), min_size=n, max_size=n)),
    }
    if not draw(st.booleans()):  # mostly, nothing is missing
        data["s"] = [0.25 if v is None else v for v in data["s"]]
        data["f"] = [0.25 if math.isinf(v) else v for v in data["f"]]
    return pl.DataFrame(data, schema_overrides=types, strict=False)


def outcome(path):
    """What is read, or why it is refused, without the file's name and the rows' numbers."""
    try:
        return all_of(read_rows(path, COLUMNS))
    except BehaviorTraceError as error:
        said = str(error)
        assert "\n" not in said and str(path) in said
        return re.match(r".* column '\w' has \d+ \w+ values? in \d+ rows", said)[0][
            len(str(path)) :
        ]


@given(
    tables(),
    st.sampled_from(SEPARATORS),
    st.booleans(),
    st.sampled_from(ENCODINGS),
    st.sampled_from(sorted(COMPRESS)),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from(["", "NA", "nan", "NaN", "N/A", "NULL", "null", "None", "#N/A", " "]),
    st.sampled_from(["rows.csv", "rows.parquet", "rows.txt.gz", "rows"]),
)
@example(frame_of(), ";", True, "utf-16", "gzip", "\r\n", "", "rows.parquet")
@settings(max_examples=150, deadline=None)
def test_text_reads_as_the_parquet_of_the_same_table(
    table, separator, comma, encoding, compression, end, missing, name
):
    with tempfile.TemporaryDirectory() as folder:
        expected, path = Path(folder) / "expected.parquet", Path(folder) / name
        table.write_parquet(expected)
        text = text_of(table, separator, comma, missing, end)
        path.write_bytes(COMPRESS[compression](text.encode(encoding)))
        wanted = outcome(expected)
        assert outcome(path) == wanted


@pytest.mark.parametrize("compression", sorted(COMPRESS))
def test_parquet_is_known_by_its_content(compression):
    frame = frame_of()
    held = io.BytesIO()
    frame.write_parquet(held)
    found = read(COMPRESS[compression](held.getvalue()), name="rows.csv")
    assert all_of(found) == all_of(read(text_of(frame), name="rows.parquet"))
    assert found.lines is None and found.columns == frame.columns


def test_both_commands_print_the_same_for_text_and_parquet(tmp_path, capfd):
    frame = frame_of()
    frame.write_parquet(tmp_path / "rows.parquet")
    european = text_of(frame, ";", comma=True, end="\r\n")
    (tmp_path / "rows.csv").write_bytes(gzip.compress(european.encode("utf-16")))
    for command in (
        ["auc", "--group", "g", "--fluency", "f"],
        ["precision", "--block", "g"],
    ):
        options = ["--label", "y", "--score", "s", "--json"]
        codes, outs, _ = zip(
            *(
                printed(capfd, command[0], tmp_path / name, *command[1:], *options)
                for name in ("rows.parquet", "rows.csv")
            ),
            strict=True,
        )
        assert codes == (0, 0) and outs[0] == outs[1] and json.loads(outs[0])


SPELLED = ["", "nan", "NaN", "NA", "N/A", "NULL", "null", "None", "#N/A", "<NA>", "  ", "n/a"]


@pytest.mark.parametrize("spelling", SPELLED)
@pytest.mark.parametrize("column", COLUMNS)
def test_missing_values_are_refused_by_line(spelling, column, tmp_path, capfd):
    whole = frame_of(groups=2).with_columns(pl.col(COLUMNS).cast(pl.String))
    bad = pl.int_range(pl.len()).is_in([1, 4, 5, 8])
    text = whole.with_columns(pl.when(bad).then(pl.lit(spelling)).otherwise(column).alias(column))
    for name in ("rows.csv", "rows.parquet"):
        path = tmp_path / name
        text = text.with_columns(note=pl.lit("-"))
        path.write_text(text_of(text)) if name == "rows.csv" else text.write_parquet(path)
        options = ["--label", "y", "--group", "g", "--score", "s", "--fluency", "f"]
        code, out, err = printed(capfd, "auc", path, *options)
        assert code == 2 and out == "" and err.count("\n") == 1
        shown = f"'{spelling}'" if spelling.strip() else "an empty cell"
        rows = (3, 6, 7) if name == "rows.csv" else (2, 5, 6)
        where = ", ".join(f"{shown} in row {row}" for row in rows)
        assert f"{path}: column '{column}' has 4 missing values in 10 rows: {where}, and 1" in err


@pytest.mark.parametrize("spelling", ["inf", "-inf", "Inf", "-Infinity", "1e999"])
def test_infinite_values_are_refused_as_such(spelling):
    rows = read(f"y,g,s,f\n1,a,{spelling},0\n0,a,1,0\n")
    with pytest.raises(BehaviorTraceError, match=f"1 infinite value in 2 rows: '{spelling}' in r"):
        numbers(rows, "s", "--score")


def test_rows_are_lines_of_the_file():
    """A quoted field may hold line breaks, and blank lines are none of the rows."""
    rows = read('\n"y","note",s\r\n1,"two\r\nlines",1\r\n\r\n0,"a ""quote"", a comma",2\n1,,x\n')
    assert rows.lines.tolist() == [3, 6, 7]
    with pytest.raises(BehaviorTraceError, match=r"'x' in row 7 .rows are the file's lines, the h"):
        numbers(rows, "s", "--score")


def test_numbers_by_exact_rules():
    good = {"1": 1.0, " +2.5 ": 2.5, ".5": 0.5, "3.": 3.0, "1E-3": 1e-3, "-0": 0.0, "1e+2": 100.0}
    assert cells.decimal(pl.Series(list(good))).to_list() == list(good.values())
    bad = ["1_000", "1,000,000", "1.000,5", "0x1", "5%", "$1", "1 000", "--1", "1e", ".", "true"]
    assert cells.decimal(pl.Series(bad)).null_count() == len(bad)
    exact = np.random.default_rng(0).integers(0, 2**63, 2000).view(np.float64)
    exact = exact[np.isfinite(exact)].tolist()
    assert cells.decimal(pl.Series([repr(x) for x in exact])).to_list() == exact


def test_a_comma_is_read_where_it_can_only_be_decimal():
    def scores(text):
        return numbers(read(text, ["y", "s"]), "s", "--score").tolist()

    assert scores("y;s\n1;1,234\n0;2\n") == [1.234, 2.0]
    assert scores('y,s\n1,"1,25"\n0,2\n') == [1.25, 2.0]
    assert scores("y\ts\n1\t0,123\n0\t1,234\n") == [0.123, 1.234]
    for text in ("y\ts\n1\t1,234\n0\t2\n", 'y,s\n1,"1,234"\n0,2\n'):
        with pytest.raises(BehaviorTraceError, match=r"'s' may have decimal commas or sep.*1,234"):
            scores(text)
    with pytest.raises(BehaviorTraceError, match=r"'s' mixes decimal points .'2.5'. and commas"):
        scores("y;s\n1;1,5\n0;2.5\n")


def test_labels_in_all_spellings():
    for yes, no in (("1", "0"), ("1.0", "0.0"), ("1,0", "0,0"), ("TRUE", "False"), ("true", "0")):
        assert labels(read(f"y;s\n{yes};1\n{no};2\n"), "y").tolist() == [True, False]
    with pytest.raises(BehaviorTraceError, match="label column 'y' is not binary: 'yes' in row 3"):
        labels(read("y;s\n1;1\nyes;2\n"), "y")


def test_scores_that_are_true_and_false():
    assert numbers(read("y,s\n1,TRUE\n0,false\n"), "s", "--score").tolist() == [1.0, 0.0]
    with pytest.raises(BehaviorTraceError, match="'s' is not numeric: 'true' in row 2"):
        numbers(read("y,s\n1,true\n0,0.5\n"), "s", "--score")


@pytest.mark.parametrize(
    ("groups", "codes"),
    [
        (["10", "9", "9.0"], [1, 0, 0]),  # numbers by their value
        (["010", "9", "10"], [0, 2, 1]),  # padded: names, by their text
        (["b", "10", "9"], [2, 0, 1]),
        (["18446744073709551617", "18446744073709551616", "3"], [2, 1, 0]),  # too long for a float
    ],
)
def test_groups_are_told_apart_alike_in_text_and_in_parquet(groups, codes):
    held = io.BytesIO()
    pl.DataFrame({"g": groups, "s": 1}).write_parquet(held)
    text = "g,s\n" + "".join(f"{g},1\n" for g in groups)
    for content in (text, held.getvalue()):
        assert keys(read(content), "g", "--group").tolist() == codes


def test_other_types_of_parquet_columns():
    held = io.BytesIO()
    frame = pl.DataFrame({"y": [True, False], "g": ["b", "a"], "s": ["1.5", "2.5"]})
    frame.with_columns(
        g=pl.col("g").cast(pl.Categorical),
        f=pl.col("s").cast(pl.Decimal(10, 2)),
        d=pl.date(2024, 1, 2),
        n=pl.lit(None),
    ).write_parquet(held)
    rows = read(held.getvalue(), [*COLUMNS, "d", "n"])
    assert all_of(rows) == [[True, False], [1, 0], [1.5, 2.5], [1.5, 2.5]]
    assert keys(rows, "d", "--group").tolist() == [0, 0]
    with pytest.raises(BehaviorTraceError, match="column 'd' holds Date, not numbers"):
        numbers(rows, "d", "--score")
    with pytest.raises(BehaviorTraceError, match="'n' has 2 missing values in 2 rows: null in"):
        numbers(rows, "n", "--score")


def test_excel_names_its_separator_in_a_first_line():
    rows = read("sep=;\r\ny;g;s;f\r\n1;a;0,5;1\r\n0;a;x;1\r\n")
    assert labels(rows, "y").tolist() == [True, False] and rows.lines.tolist() == [3, 4]
    assert read("sep=^\ny^g^s^f\n1^a^1^1\n").frame.row(0) == ("1", "a", "1", "1")


def test_the_separator_is_the_one_that_gives_the_columns_asked_for():
    found = read("y,g;1,s|x,f\n1,a,2,3\n", ["y", "s|x"])
    assert (found.separator, found.columns) == (",", ["y", "g;1", "s|x", "f"])
    assert read('"y,1";s\n1;2\n', ["y,1", "s"]).separator == ";"


BOMB = gzip.compress(b"y,g,s,f\n" + b"1,a,1,1\n" * 2**19)  # 4 MiB


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"y\n1\n", "has one column, 'y', where several are needed; separate them by comma, semi"),
        (b"y g s f\n1 a 1 1\n", "has one column, 'y g s f'"),
        (b"y,g,s;f\n1,a,1;2\n", "has no column 's' for --score; its columns are y, g, s;f"),
        (b"a,b;c\n1,2;3\n", "may be separated by comma or semicolon, and the columns asked for"),
        (b"y,g,s,s\n1,a,1,1\n", "has more than one column 's'; rename all but one"),
        (b"y,g,s,f\n1,a,1,1\n0,a,1\n", "row 3 has 3 fields where the header has 4, separated by c"),
        (b"y;g;s;f\n1;a;1;1;\n", "row 2 has 5 fields where the header has 4, separated by semic"),
        (b'y,g,s,f\n1,"a,1,1\n0,a,1,1\n', "row 2: unexpected end of data"),
        (b'y,g,s,f\n1,"a"b,1,1\n', "row 2: ',' expected after '\"'"),
        (b'"y,g,s,f\n', "the quotes of its header do not match"),
        (b"", "is empty; give a CSV or Parquet table with rows"),
        (codecs.BOM_UTF8, "is empty"),
        (b"\n \r\n\n", "is empty"),
        (gzip.compress(b""), "is empty"),
        (b"y,g,s,f\n\n", "has a header but no rows"),
        (bytes(range(256)), "it is binary, or UTF-16 without a byte-order mark"),
        ("y,g,s,f\n1,é,1,1\n".encode("latin-1"), "it is not UTF-8 text: save it as UTF-8"),
        (codecs.BOM_UTF16_LE + b"y,g,s", "it is not UTF-16 text"),
        (b"PK\x03\x04...", "it is a workbook or a zip archive: save the sheet as CSV"),
        (b"PAR1 and no more, PAR1", "cannot be read as CSV or Parquet"),
        (BOMB[:-20], "cannot be read as CSV or Parquet"),
        (b"\x1f\x8bnot gzip", "cannot be read as CSV or Parquet"),
        (b"\x28\xb5\x2f\xfdnot zstd", "cannot be read as CSV or Parquet"),
    ],
)
def test_what_is_no_table_is_refused_in_one_line(content, message, tmp_path, capfd):
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    code, out, err = printed(capfd, "auc", path, "--label", "y", "--group", "g", "--score", "s")
    assert code == 2 and out == "" and err.count("\n") == 1
    assert err.startswith(f"behaviortrace: {path}") and message in err


def test_a_folder_and_nothing_are_refused(tmp_path):
    for path, message in ((tmp_path, "is not a file"), (tmp_path / "no", "no such file")):
        with pytest.raises(BehaviorTraceError, match=message):
            read_rows(path, COLUMNS)


def test_names_are_repeated_on_one_line_and_in_part():
    many = ",".join(['"a\nb"', *(f"c{i}" for i in range(100)), "x" * 500])
    with pytest.raises(BehaviorTraceError) as caught:
        labels(read(f"{many}\n" + "1," * 101 + "1\n"), "y")
    said = str(caught.value)
    assert r"'a\nb', c0" in said and said.endswith("c18, and 82 more") and len(said) < 300


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_bomb_is_refused_before_it_is_held(compression, monkeypatch):
    monkeypatch.setattr(table_file, "MAX_BYTES", 2**22)
    content = COMPRESS[compression](b"y,g,s,f\n" + b"0" * 2**26)
    assert len(content) < 2**17
    tracemalloc.start()
    with pytest.raises(BehaviorTraceError, match="holds more than 4 MiB once decompressed; give a"):
        read(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**25


def test_limits_of_text_and_parquet(monkeypatch):
    frame, held = frame_of(), io.BytesIO()
    frame.write_parquet(held)
    for module in (delimited, "behaviortrace.evaluate.rows"):
        name = module if isinstance(module, str) else module.__name__
        monkeypatch.setattr(f"{name}.MAX_ROWS", 59)
    for content in (text_of(frame), held.getvalue()):
        with pytest.raises(BehaviorTraceError, match=r"holds .*more than 59.*fewer rows"):
            read(content)
    monkeypatch.undo()
    monkeypatch.setattr("behaviortrace.evaluate.rows.MAX_BYTES", 1900)
    with pytest.raises(BehaviorTraceError, match="in the columns asked for"):
        read(held.getvalue())
    assert len(read(held.getvalue(), ["y"]).frame) == 60  # other columns are not read
    monkeypatch.setattr(table_file, "MAX_BYTES", 1900)
    with pytest.raises(BehaviorTraceError, match="MiB of text"):
        read(text_of(frame))


def test_long_completions_are_read():
    text = "y,g,s,f,note\n1,a,1,1," + "x" * 300_000 + "\n"
    assert read(text).frame.height == 1


def test_rows_are_taken_in_parts(monkeypatch):
    whole = all_of(read(text_of(frame_of())))
    for part in (1, 7, 60):
        monkeypatch.setattr(delimited, "_PART", part)
        assert all_of(read(text_of(frame_of()))) == whole
