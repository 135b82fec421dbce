"""s_b and the emergence gate."""

from __future__ import annotations

import polars as pl
import pytest

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant.emergence import gate, s_b
from behaviortrace.records import PROBE_SCHEMA, empty


def probes(*rows: tuple[int, str, bool | None]) -> pl.DataFrame:
    schema = {name: PROBE_SCHEMA[name] for name in ("step", "kind", "behavior")}
    return pl.DataFrame(rows, schema=schema, orient="row")


RUN = probes(
    (20, "probe", True),
    (20, "probe", True),
    (20, "probe", False),
    (20, "probe", None),
    (0, "probe", False),
    (0, "probe", False),
    (20, "control", False),
    (10, "control", True),
)


def test_s_b_is_the_share_of_judged_probes_by_step() -> None:
    assert s_b(RUN) == {0: 0.0, 20: pytest.approx(2 / 3)}
    assert list(s_b(RUN)) == [0, 20]
    assert s_b(RUN, "control") == {10: 1.0, 20: 0.0}


def test_the_gate_looks_at_the_last_checkpoint() -> None:
    got = gate(RUN, 0.1)
    assert (got.step, got.probes, got.emerged) == (20, 3, True)
    assert got.s_b == pytest.approx(2 / 3)
    faded = gate(probes((0, "probe", True), (5, "probe", False)), 0.1)
    assert (faded.step, faded.s_b, faded.emerged) == (5, 0.0, False)


def test_the_threshold_itself_is_not_enough() -> None:
    rows = [(3, "probe", i == 0) for i in range(10)]
    assert gate(probes(*rows), 0.1).emerged is False
    assert gate(probes(*rows), 0.09).emerged is True


def test_undefined_is_none_with_a_reason() -> None:
    none = gate(empty(PROBE_SCHEMA), 0.1)
    assert (none.s_b, none.emerged, none.step) == (None, None, None)
    assert "no probe responses" in none.reason
    unjudged = gate(probes((0, "probe", True), (4, "probe", None)), 0.1)
    assert (unjudged.s_b, unjudged.emerged, unjudged.step) == (None, None, 4)
    assert "checkpoint 4" in unjudged.reason
    assert s_b(empty(PROBE_SCHEMA)) == {}


def test_a_missing_column_is_named() -> None:
    for call in (s_b, lambda frame: gate(frame, 0.1)):
        with pytest.raises(BehaviorTraceError, match="lacks column 'kind'"):
            call(pl.DataFrame({"step": [0], "behavior": [True]}))
