import numpy as np
import polars as pl
import pytest

from behaviortrace.evaluate.token import TOKEN_LEVEL_SCHEMA, token_level
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
    found = token_level(pl.concat([first, second]), resamples=500)
    assert dict(found.schema) == TOKEN_LEVEL_SCHEMA
    assert found["target"].to_list() == ["in_context", "constructed"]
    assert found["n"].to_list() == [40, 20]
    assert found["groups"].to_list() == [10, 20]
    assert found["mean"][0] == pytest.approx(first["cosine"].mean())
    assert (found["lo"] < found["mean"]).all() and (found["mean"] < found["hi"]).all()


def test_clusters_widen_the_interval():
    shared = np.repeat(np.random.default_rng(0).normal(size=10), 8)
    width = []
    for group in (np.repeat(np.arange(10), 8), np.arange(80)):
        found = token_level(rows(shared, group), resamples=1000)
        width.append(found["hi"][0] - found["lo"][0])
    assert width[0] > 2 * width[1]


def test_undefined_is_null():
    found = token_level(rows([0.1, None, float("nan"), 0.3], [0, 1, 2, 0]), resamples=100)
    assert (found["n"][0], found["groups"][0], found["mean"][0]) == (2, 1, pytest.approx(0.2))
    assert found["lo"][0] is None and found["hi"][0] is None
    none = token_level(rows([None, None], [0, 1]), resamples=100)
    assert none["mean"][0] is None and none["n"][0] == 0
    assert token_level(empty(TOKEN_SCHEMA)).is_empty()


def test_published_in_context_mean():
    cosine = published("token_level_seed2.csv")["vs_in_context"].to_numpy()
    found = token_level(rows(cosine, np.arange(len(cosine))), resamples=1000)
    assert found["mean"][0] == pytest.approx(0.295, abs=5e-4)
    assert found["lo"][0] > 0.05
