"""Counting: how calls end, and how values are spread."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import errors
from penstock.server.metrics import Metrics
from penstock.server.metrics.counting import OTHER, Calls, Histogram, outcome_of
from tests.calls import calls_of


@pytest.mark.parametrize(
    "name, outcome",
    [
        ("ok", "ok"),
        ("disconnected", "disconnected"),
        ("cancelled", "cancelled"),
        ("error", "error"),
        ("BadInput", "bad_input"),
        ("TooLarge", "bad_input"),
        ("Unauthenticated", "denied"),
        ("Forbidden", "denied"),
        ("UnknownQueue", "not_found"),
        ("StaleReceipt", "conflict"),
        ("QueueFull", "full"),
        ("Busy", "busy"),
        ("CommitFailed", "unavailable"),
        ("StoreClosed", "unavailable"),
        ("ZeroDivisionError", "error"),
        ("", "error"),
    ],
)
def test_how_a_call_ended(name: str, outcome: str) -> None:
    assert outcome_of(name).value == outcome


def test_every_error_has_an_outcome() -> None:
    for name in errors.__all__:
        if name != "PenstockError":
            assert outcome_of(name).value not in {"ok", "error"}, name


@settings(deadline=None)
@given(st.lists(st.floats(0, 20)))
def test_a_histogram_counts_what_is_at_or_below_each_bound(values: list[float]) -> None:
    bounds = (0.0, 1.0, 2.5, 10.0)
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    expected = [float(sum(value <= bound for value in values)) for bound in bounds]
    assert [count for _, count in histogram.buckets()] == [*expected, len(values)]
    assert [bound for bound, _ in histogram.buckets()] == ["0.0", "1.0", "2.5", "10.0", "+Inf"]
    assert histogram.total == pytest.approx(sum(values))


def test_verbs_are_bounded() -> None:
    calls = Calls()
    for n in range(1000):
        calls.ended(f"verb-{n}", "ok", 0.1)
    assert len(calls.verbs) == 401
    assert sum(sum(verb.outcomes.values()) for verb in calls.verbs.values()) == 1000
    assert sum(calls.verbs[OTHER].outcomes.values()) == 600


def test_counting_is_cheap() -> None:
    """It is on the path of every call: half a microsecond, which is a few calls of functions."""
    metrics = Metrics()

    def count() -> None:
        metrics.began()
        metrics.called("publish", "ok", 0.001)

    count()
    assert len(calls_of(count)) <= 12
