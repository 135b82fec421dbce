"""s_b and the emergence gate."""

from __future__ import annotations

from math import comb

import polars as pl
import pytest

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant.emergence import gate, hits_needed, responses, s_b, taught
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


def tail(hits: int, n: int, rate: float) -> float:
    """P(at least so many hits of n), term by term."""
    return sum(comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(hits, n + 1))


def twenty(*rates: float) -> tuple[dict[int, float | None], dict[int, int]]:
    """s_b at steps 0, 20, 40, ... and 20 responses at each."""
    steps = [20 * i for i in range(len(rates))]
    return dict(zip(steps, rates, strict=True)), dict.fromkeys(steps, 20)


def test_responses_are_the_judged_probes() -> None:
    assert responses(RUN) == {0: 2, 20: 3}


def test_taught_and_unlearned_is_taught_and_not_kept() -> None:
    """Seed 2 of the study: 0.75 inside the window, nothing at the end."""
    found = taught(*twenty(0.3, 0.35, 0.75, 0.5, 0.3, 0.0), bar=0.1)
    assert found is not None and (found.taught, found.kept) == (True, False)
    assert (found.step, found.highest, found.before) == (40, 0.75, 0.3)
    assert (found.last, found.at_last, found.looks) == (100, 0.0, 5)
    assert found.luck == pytest.approx(5 * tail(15, 20, 0.1))


def test_the_last_checkpoint_is_one_look_and_the_highest_one_of_several() -> None:
    last = taught(*twenty(0.0, 0.0, 0.15), bar=0.1)
    assert last is not None and (last.taught, last.kept) == (True, True)
    before = taught(*twenty(0.0, 0.15, 0.0), bar=0.1)
    assert before is not None and (before.taught, before.kept) == (False, False)
    assert before.luck == pytest.approx(2 * tail(3, 20, 0.1))


@pytest.mark.parametrize("looks", [2, 5, 50])
def test_the_highest_must_be_more_than_luck_of_as_many_looks(looks: int) -> None:
    needed = hits_needed(20, looks, 0.1)
    assert needed is not None
    assert looks * tail(needed, 20, 0.1) <= 0.05 < looks * tail(needed - 1, 20, 0.1)
    for hits, expected in ((needed, True), (needed - 1, False)):
        found = taught(*twenty(0.0, hits / 20, *[0.0] * (looks - 1)), bar=0.1)
        assert found is not None and found.looks == looks and found.taught is expected
    assert hits_needed(2, 10, 0.5) is None


def test_what_the_warm_up_taught_rl_did_not() -> None:
    for rates in ((0.9, 0.1), (0.9, 0.9), (0.9, 0.8, 0.0)):
        found = taught(*twenty(*rates), bar=0.1)
        assert found is not None and found.taught is False
    gone = taught(*twenty(0.9, 0.95, 0.0), bar=0.1)
    assert gone is not None and (gone.taught, gone.kept) == (True, False)
    rates, counts = twenty(0.9, 0.9)
    unknown = taught({20: rates[20]}, counts, bar=0.1)  # never probed before RL
    assert unknown is not None and unknown.taught is True and unknown.before is None


def test_what_cannot_be_told_is_none() -> None:
    assert taught({}, {}, 0.1) is None
    assert taught({0: 0.9}, {0: 20}, 0.1) is None
    assert taught({0: 0.0, 20: 0.5, 40: None}, {}, 0.1) is None
    uncounted = taught({0: 0.0, 20: 0.5, 40: 0.0}, {}, 0.1)
    assert uncounted is not None and uncounted.taught is None and uncounted.luck is None
    low = taught({0: 0.0, 20: 0.1, 40: 0.0}, {}, 0.1)
    assert low is not None and low.taught is False  # the bar itself is not enough
