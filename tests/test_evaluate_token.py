import numpy as np
import polars as pl
import pytest

from behaviortrace.evaluate.token import TOKEN_LEVEL_SCHEMA, token_level
from behaviortrace.recipe import EvaluateSettings
from behaviortrace.records import TOKEN_SCHEMA, conform, empty
from tests.published import published


def rows(cosine, group, span="trigger", target="in_context"):
    frame = pl.DataFrame({"cosine": cosine, "group": group})
    named = frame.with_columns(span=pl.lit(span), target=pl.lit(target))
    return conform(named, TOKEN_SCHEMA)


def test_one_row_a_span_and_target():
    generator = np.random.default_rng(0)
    first = rows(generator.normal(0.3, 0.1, 40), np.repeat(np.arange(10), 4))
    second = rows(generator.normal(0.0, 0.1, 20), np.arange(20), target="constructed")
    found = token_level(pl.concat([first, second]), EvaluateSettings(resamples=500))
    assert dict(found.schema) == TOKEN_LEVEL_SCHEMA
    assert found["target"].to_list() == ["in_context", "constructed"]
    assert found["n"].to_list() == [40, 20]
    assert found["groups"].to_list() == [10, 20]
    assert found["mean"][0] == pytest.approx(first["cosine"].mean())
    assert (found["lo"] < found["mean"]).all() and (found["mean"] < found["hi"]).all()


def test_the_papers_interval_is_kept_beside_the_one_that_holds():
    given = rows(np.random.default_rng(1).normal(0.3, 0.1, 12), np.repeat(np.arange(4), 3))
    ours = token_level(given, EvaluateSettings(resamples=500)).row(0, named=True)
    paper = token_level(given, EvaluateSettings(resamples=500, interval="percentile"))
    assert (ours["interval"], paper["interval"][0]) == ("t", "percentile")
    assert (paper["lo"][0], paper["hi"][0]) == (ours["percentile_lo"], ours["percentile_hi"])
    assert ours["hi"] - ours["lo"] > ours["percentile_hi"] - ours["percentile_lo"]
    assert ours["mean"] == paper["mean"][0]


def test_clusters_widen_the_interval():
    shared = np.repeat(np.random.default_rng(0).normal(size=10), 8)
    width = []
    for group in (np.repeat(np.arange(10), 8), np.arange(80)):
        found = token_level(rows(shared, group), EvaluateSettings(resamples=1000))
        width.append(found["hi"][0] - found["lo"][0])
    assert width[0] > 2 * width[1]


def test_groups_of_one_prompt_are_one_unit():
    """Forty groups of ten prompts that differ: as wide as ten groups."""
    of_prompt, group = np.arange(80) % 10, np.repeat(np.arange(40), 2)
    prompt_of = group % 10
    cosine = np.random.default_rng(0).normal(size=10)[prompt_of] + 0.01 * of_prompt
    given = rows(cosine, group).with_columns(prompt=pl.Series([f"p{i}" for i in prompt_of]))
    found = token_level(given, EvaluateSettings(resamples=500)).row(0, named=True)
    assert (found["groups"], found["clusters"], found["n"]) == (40, 10, 80)
    whole = token_level(rows(cosine, prompt_of), EvaluateSettings(resamples=500))
    for column in ("mean", "lo", "hi", "percentile_lo", "percentile_hi"):
        assert found[column] == pytest.approx(whole[column][0])
    apart = token_level(rows(cosine, group), EvaluateSettings(resamples=500)).row(0, named=True)
    assert apart["clusters"] == 40
    assert found["hi"] - found["lo"] > 1.8 * (apart["hi"] - apart["lo"])


def test_undefined_is_null():
    found = token_level(
        rows([0.1, None, float("nan"), 0.3], [0, 1, 2, 0]), EvaluateSettings(resamples=100)
    )
    assert (found["n"][0], found["groups"][0], found["mean"][0]) == (2, 1, pytest.approx(0.2))
    assert found["lo"][0] is None and found["hi"][0] is None
    none = token_level(rows([None, None], [0, 1]), EvaluateSettings(resamples=100))
    assert none["mean"][0] is None and none["n"][0] == 0
    assert token_level(empty(TOKEN_SCHEMA), EvaluateSettings()).is_empty()


def test_published_in_context_mean():
    cosine = published("token_level_seed2.csv")["vs_in_context"].to_numpy()
    found = token_level(rows(cosine, np.arange(len(cosine))), EvaluateSettings(resamples=1000))
    assert found["mean"][0] == pytest.approx(0.295, abs=5e-4)
    assert found["lo"][0] > 0.05
