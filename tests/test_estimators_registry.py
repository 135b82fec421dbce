"""Declaring estimators, here and in other packages."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

import numpy as np
import polars as pl
import pytest

from behaviortrace import estimators
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.estimators import Inputs, registry

ROWS = pl.DataFrame({"rollout_id": ["a", "b"], "reward": [1.0, 2.0]})


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    before = set(registry._REGISTERED)
    yield
    for name in set(registry._REGISTERED) - before:
        registry.unregister(name)


def announce(monkeypatch: pytest.MonkeyPatch, *points: tuple[str, str]) -> None:
    found = [metadata.EntryPoint(name, value, registry.ENTRY_POINT_GROUP) for name, value in points]
    monkeypatch.setattr(
        registry.metadata, "entry_points", lambda *, group: found if group == found[0].group else []
    )


def declare(name: str, **changes: object) -> estimators.Estimator:
    given = {
        "needs": frozenset({"reward"}),
        "scale": "invariant",
        "reference": "a test",
        "target_free": True,
        **changes,
    }
    return registry.estimator(name=name, **given)(lambda inputs: inputs.column("reward"))


def test_a_declared_function_is_found_and_scores() -> None:
    declare("by_reward")
    assert "by_reward" in estimators.names()
    np.testing.assert_array_equal(estimators.get("by_reward")(Inputs(rows=ROWS)), [1.0, 2.0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_free": False}, "target_free=False"),
        ({"needs": frozenset({"target", "sketches"})}, "target_free=True"),
        ({"scale": "cubic"}, "scale 'cubic'"),
    ],
)
def test_a_contradictory_declaration_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(BehaviorTraceError, match=words):
        declare("contradictory", **changes)
    assert "contradictory" not in estimators.names()


def test_a_taken_name_is_refused() -> None:
    with pytest.raises(BehaviorTraceError, match="'gas' is declared twice"):
        declare("gas")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(BehaviorTraceError, match=r"no estimator 'gass'; known are dot, gas, trak"):
        estimators.get("gass")


def test_a_wrong_shape_is_refused() -> None:
    unit = registry.estimator(
        name="scalar", needs=frozenset(), scale="invariant", reference="a test", target_free=True
    )(lambda inputs: np.zeros(5))
    with pytest.raises(BehaviorTraceError, match=r"'scalar' returned shape \(5,\) for 2 rollouts"):
        unit(Inputs(rows=ROWS))


def test_plug_ins_load_when_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_PLUGGED", declare("plugged"), raising=False)
    registry.unregister("plugged")
    announce(monkeypatch, ("plugged", "behaviortrace.estimators.registry:_PLUGGED"))
    assert "plugged" in estimators.names() and "plugged" not in registry._REGISTERED
    assert estimators.get("plugged").name == "plugged"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("no_such_package:unit", "cannot be loaded: No module named 'no_such_package'"),
        ("behaviortrace.estimators.dot:nothing", "cannot be loaded"),
        ("behaviortrace.estimators.dot:np", "not an estimator of that name"),
        ("behaviortrace.estimators.dot:dot", "is the estimator 'dot', not an"),
    ],
)
def test_a_broken_plug_in_is_named_in_one_line_and_breaks_nothing_else(
    monkeypatch: pytest.MonkeyPatch, value: str, words: str
) -> None:
    announce(monkeypatch, ("broken", value))
    assert "broken" in estimators.names()
    assert estimators.get("gas").name == "gas"
    with pytest.raises(BehaviorTraceError, match=words) as caught:
        estimators.get("broken")
    message = str(caught.value)
    assert "'broken'" in message and value in message and "\n" not in message


def test_shapes_that_disagree_are_named() -> None:
    with pytest.raises(BehaviorTraceError, match=r"target has shape \(3,\); expected \(4\)"):
        Inputs(rows=ROWS, sketches=np.zeros((2, 4)), target=np.zeros(3))
    with pytest.raises(BehaviorTraceError, match="sketches has shape"):
        Inputs(rows=ROWS, sketches=np.zeros((3, 4)))
    with pytest.raises(BehaviorTraceError, match="given together"):
        Inputs(rows=ROWS, targets=np.zeros((1, 4)))
    with pytest.raises(BehaviorTraceError, match="learning_rates has shape"):
        Inputs(rows=ROWS, targets=np.zeros((1, 4)), learning_rates=np.zeros(2))
