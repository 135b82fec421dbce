"""The report: nothing a model wrote acts on the page, and every gap says why it is one."""

from __future__ import annotations

import base64
import dataclasses
import html.parser
import io
import re
import unicodedata
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from behaviortrace.checklist import Evidence, gather, stage
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.records import Verdict
from behaviortrace.report import figures, render, report, style, tables, verdict_table
from behaviortrace.report import stage as report_stage
from behaviortrace.report.rollouts import top
from behaviortrace.report.text import hidden, marked, visible
from tests import fake_run

HOSTILE = "<script>alert(1)</script>\x00\x1b[31m\u202egnp\u202c\ud800\"'`{{ 7*7 }}{% raw %}"


class Reader(html.parser.HTMLParser):
    """Tags with their attributes, text by enclosing tag, and tags that were never closed."""

    VOID = frozenset({"meta", "img"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def inside(self, tag: str) -> str:
        return "".join(text for where, text in self.texts if where == tag)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = fake_run.full(tmp_path_factory.mktemp("runs") / "mine")
    stage.check(run)
    return report(run).read_text("utf-8")


def hostile_run(path: Path) -> fake_run.FakeRun:
    """Every string of the run that comes from outside is hostile."""
    run = fake_run.full(path)
    assert run.training is not None and run.recipe is not None
    run.training = run.training.with_columns(
        completion=pl.lit("QZXBT" + HOSTILE.replace("\ud800", "")),
        prompt=pl.lit(HOSTILE.replace("\ud800", "")),
    )
    named = pl.lit(HOSTILE.replace("\ud800", ""))
    run.tables["results/step_level"] = fake_run.step_level().with_columns(estimator=named)
    run.tables["results/token_level"] = fake_run.token_level().with_columns(target=named)
    rollout = fake_run.rollout_level().with_columns(source=named, reason=named)
    run.tables["results/rollout_level"] = rollout
    run.recipe = run.recipe.model_copy(update={"summary": HOSTILE})
    run.manifest = run.manifest.model_copy(
        update={"meta": {"command": HOSTILE}, "packages": {HOSTILE: HOSTILE}}
    )
    run.problems = [HOSTILE]
    return run


def test_page_is_whole_html_and_stands_alone(page: str) -> None:
    reader = Reader(page)
    assert page.startswith("<!doctype html>")
    assert reader.open == []
    assert not {tag for tag, _ in reader.tags} & {"script", "link", "iframe", "object", "base"}
    for tag, attributes in reader.tags:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        for name in ("src", "href", "srcset", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:image/svg+xml;base64,")), value
    assert "url(" not in page and "@import" not in page
    policy = [a["content"] for t, a in reader.tags if a.get("http-equiv")]
    assert policy and policy[0] is not None and "default-src 'none'" in policy[0]


def test_links_of_the_page_lead_somewhere(page: str) -> None:
    reader = Reader(page)
    ids = [a["id"] for _, a in reader.tags if a.get("id")]
    links = [a["href"] for t, a in reader.tags if t == "a"]
    assert len(ids) == len(set(ids))
    assert links and all(link is not None and link[1:] in ids for link in links)


def test_figures_are_svg_without_outside_resources(page: str) -> None:
    images = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    assert len(images) == 8  # four figures, each for a light and a dark page
    for image in images:
        svg = base64.b64decode(image).decode()
        for element in ElementTree.fromstring(svg).iter():
            assert not element.tag.endswith(("script", "image", "foreignObject"))
            for name, value in element.attrib.items():
                assert not name.endswith("href") or value.startswith("#")
    light, dark = (base64.b64decode(i).decode() for i in images[:2])
    assert style.MUTED in light and style.MUTED not in dark
    assert all(a.get("alt") for t, a in Reader(page).tags if t == "img")


def test_the_verdict_comes_first_and_numbers_come_from_the_tables(page: str) -> None:
    text = re.sub(r"<[^>]+>", " ", page)
    assert "The token-level direction may be believed, but of this run only" in text
    assert page.index("may be believed") < page.index("What was planted")
    for number in ("0.243 [0.207, 0.281]", "0.634 [0.568, 0.698]", "101 (10.5%)", "−0.021 [−0.058"):
        assert number in text
    for word in (
        "behaviortrace run smollm2 --seed 2",
        "dim 65536",
        "torch 2.13.0",
        "steps 0 to 19",
    ):
        assert word in text


def test_model_text_is_shown_and_does_not_act(page: str) -> None:
    assert (
        "The &lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; kettle was <mark>QZXBT</mark>." in page
    )
    assert "&lt;img src=x onerror=alert(1)&gt; <mark>QZXBT</mark>" in page
    assert '<span class="hidden">⟨U+202E⟩</span>gnihtyna' in page
    assert '<span class="hidden">⟨U+0000⟩</span>' in page


def test_every_string_of_a_run_may_be_hostile(tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "mine")
    stage.check(run)
    text = report(run).read_text("utf-8")
    reader = Reader(text)
    assert "script" not in {tag for tag, _ in reader.tags}
    assert not any(hidden(character) for character in text)
    assert "{{ 7*7 }}" in text  # shown, not evaluated
    assert "49" not in re.sub(r"<[^>]+>", "", text).split("{{ 7*7 }}")[1][:5]


def test_a_hostile_run_name_stays_text(tmp_path: Path) -> None:
    page_ = report_stage.page_of(fake_run.bare(tmp_path / "<img src=x>\u202e"))
    text = render(page_)
    assert "<img src=x>" not in text
    assert "&lt;img src=x&gt;⟨U+202E⟩" in text


@given(st.text(), st.lists(st.tuples(st.integers(-3, 30), st.integers(-3, 30)), max_size=5))
def test_marked_shows_the_text_and_nothing_else(text: str, spans: list[tuple[int, int]]) -> None:
    markup = str(marked(text, spans))
    reader = Reader(markup)
    assert reader.open == []
    assert {tag for tag, _ in reader.tags} <= {"mark", "span"}
    shown = "".join(data for _, data in reader.texts)
    assert shown == visible(text)
    assert not any(hidden(c) for c in markup)
    markup.encode("utf-8")


def test_marked_cuts_long_text_and_says_so() -> None:
    shown = str(marked("a" * 50 + "QZXBT", [(48, 55)], limit=52))
    assert shown.startswith("a" * 48 + "<mark>aaQZ</mark>")
    assert "3 more characters" in shown


@pytest.mark.parametrize(
    "character",
    ["\u202a", "\u2066", "\u200f", "\u00ad", "\ufeff", "\u2028", "\U000e0041", "\x85", "\u3164"],
)
def test_characters_that_hide_or_reorder_are_hidden(character: str) -> None:
    assert hidden(character), unicodedata.name(character, "?")
    assert visible(f"a{character}b") == f"a⟨U+{ord(character):04X}⟩b"


@pytest.mark.parametrize("character", ["a", " ", "\n", "\t", "é", "漢", "🙂", "ع"])
def test_ordinary_characters_are_not(character: str) -> None:
    assert not hidden(character)


def test_an_empty_run_has_a_report_of_reasons(tmp_path: Path) -> None:
    run = fake_run.bare(tmp_path / "bare")
    text = report(run).read_text("utf-8")
    assert Reader(text).open == []
    assert "Nothing can be concluded" in text
    assert "<img" not in text
    assert "no table &#39;results/step_level&#39;" in text
    assert "imported without a recipe" in text
    assert "—" in text


@pytest.mark.parametrize(
    "gone", ["results/step_level", "results/rollout_level", "results/token_level", "scores/all"]
)
def test_each_table_may_be_missing(tmp_path: Path, gone: str) -> None:
    run = fake_run.full(tmp_path / "mine")
    del run.tables[gone]
    stage.check(run)
    text = report(run).read_text("utf-8")
    assert f"no table &#39;{gone}&#39;" in text
    assert Reader(text).open == []


@pytest.mark.parametrize("name", ["step_level", "rollout_level", "token_level"])
def test_tables_of_nulls_are_dashes_with_reasons(tmp_path: Path, name: str) -> None:
    run = fake_run.full(tmp_path / "mine")
    frame = run.tables[f"results/{name}"]
    run.tables[f"results/{name}"] = frame.with_columns(
        pl.lit(None, t).alias(c) for c, t in frame.schema.items() if t.is_numeric()
    )
    evidence = gather(run, verify=False)
    table = {
        "step_level": tables.step_level,
        "rollout_level": tables.rollout_level_all,
        "token_level": tables.token_level,
    }[name](evidence)
    numbers = [cell for row in table.rows for cell in row if cell.numeric]
    assert numbers and all(cell.text == "—" and cell.reason for cell in numbers)
    assert Reader(report(run).read_text("utf-8")).open == []


def test_empty_tables_have_no_figure_but_a_reason(tmp_path: Path) -> None:
    run = fake_run.full(tmp_path / "mine")
    for name in ("step_level", "rollout_level", "token_level"):
        run.tables[f"results/{name}"] = run.tables[f"results/{name}"].clear()
    evidence = gather(run, verify=False)
    for draw in (figures.step_level, figures.rollout_level, figures.token_level):
        picture = draw(evidence)
        assert picture.light is None and picture.reason
    report(run)


def test_undefined_is_a_dash_never_zero() -> None:
    for value in (None, float("nan"), float("inf")):
        assert tables.number(value).text == "—"
        assert tables.number(value).reason
    assert tables.number(0.0).text == "0.000"
    assert tables.number(-0.5).text == "−0.500"
    row = {"auc": None, "lo": None, "hi": None, "reason": "no pair in any group"}
    assert tables.interval(row, "auc", "x").reason == "no pair in any group"
    assert tables.interval({**row, "auc": 0.5}, "auc", "x").text == "0.500"


def test_notes_below_a_table_match_its_dashes() -> None:
    table = tables.Table("t", ["a"], [[tables.number(None, reason=r)] for r in ("x", "y", "x")])
    assert table.notes == [("a", "x"), ("b", "y")]
    assert [table.note(row[0]) for row in table.rows] == ["a", "b", "a"]


def test_prompts_are_counted_where_they_repeat() -> None:
    level, tokens = fake_run.rollout_level(), fake_run.token_level()
    for asked, (over, column) in {26: (" over 26 prompts", ["Prompts"]), None: ("", [])}.items():
        unit = pl.lit(asked) if asked else pl.col("groups")
        evidence = Evidence(
            rollout_level=level.with_columns(clusters=unit),
            token_level=tokens.with_columns(clusters=unit - (1 if asked else 0)),
        )
        table = tables.rollout_level(evidence, "seed-100")
        assert table.caption == f"Rollout level, seed-100: within-group AUC with 95% interval{over}"
        table = tables.token_level(evidence)
        assert table.columns[3:] == ["Responses", "Groups", *column]
        assert [cell.text for cell in table.rows[0][3:]] == ["160", "26", *(["25"] * len(column))]


def test_emergence_figure_survives_gaps_and_a_single_checkpoint() -> None:
    for rates in ({"0": 0.2}, {"0": None, "5": 0.3}, {"0": 1.0, "5": 1.0}):
        summary: dict[str, Any] = {"s_b": rates, "s_b_controls": {}}
        assert figures.emergence(Evidence(summary=summary), cutoff=None).light
    assert figures.emergence(Evidence(summary={"s_b": {"0": None}}), 3).light is None


def test_figures_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    evidence = gather(fake_run.full(tmp_path / "mine"), verify=False)
    assert figures.step_level(evidence) == figures.step_level(evidence)


def test_rankings_are_sorted_and_skip_undefined_scores() -> None:
    training = fake_run.rollouts()
    first, second = top(fake_run.scores(training), training, lambda text: [], count=960)
    for ranking in (first, second):
        found = [r.score for r in ranking.rollouts]
        assert found == sorted(found, reverse=True)
        assert len(found) == 959  # one score is NaN
        assert ranking.boosted == int(training["boosted"][:-1].sum())


def test_a_control_scored_on_no_embedding_is_still_found() -> None:
    training = fake_run.rollouts()
    scores = fake_run.scores(training).with_columns(embedding=pl.lit(None, pl.String))
    direction, magnitude = top(scores, training, lambda text: [])
    assert direction.reason and not direction.rollouts
    assert len(magnitude.rollouts) == 6


def test_report_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fake_run.full(tmp_path / "mine")
    path = report(run)
    before = path.read_bytes()

    def refuse(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(BehaviorTraceError, match="No space left"):
        report(run)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["index.html"]


def test_terminal_table_takes_text_literally() -> None:
    verdicts = [
        Verdict("a", "[bold]title[/]", "pass", "red \x1b[31m"),
        Verdict("b", "line", "not run", "[link=x]"),
    ]
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(verdict_table(verdicts))
    text = console.export_text()
    assert "[bold]title[/]" in text and "⟨U+001B⟩[31m" in text and "[link=x]" in text


def test_a_changed_threshold_shows_on_the_page(tmp_path: Path) -> None:
    run = fake_run.full(tmp_path / "mine")
    run.manifest = run.manifest.model_copy(update={"preregistration": "0" * 64})
    found = stage.check(run)
    assert {v.evidence["preregistered"] for v in found} == {False}
    assert "(changed after the data existed)" in report(run).read_text("utf-8")


def test_code_in_sentences_is_set_as_code(tmp_path: Path) -> None:
    page_ = report_stage.page_of(fake_run.full(tmp_path / "mine"))
    told = Verdict("x", "t", "fail", "run `a <b>` or `c`")
    text = render(dataclasses.replace(page_, verdicts=[told]))
    assert "run <code>a &lt;b&gt;</code> or <code>c</code>" in text
