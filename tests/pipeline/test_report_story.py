"""What the report says in words, from figures alone (no Spark here)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.pipeline.report.charts import charts_of, sparkline
from penstock.pipeline.report.collect import collect_figures
from penstock.pipeline.report.figures import Figures, QueueNow
from penstock.pipeline.report.formatting import (
    shown_change,
    shown_ms,
    shown_number,
    shown_percent,
    shown_period,
)
from penstock.pipeline.report.page import make_page
from penstock.pipeline.report.periods import DAY_S, period_of
from penstock.pipeline.report.story import attention, story

END = 20_000 * DAY_S
PERIOD = period_of(END - DAY_S, END)
COUNTS = ("arrivals", "claims", "acks", "nacks", "lapses", "failures", "expired", "change")
TIMES = {
    "current": END - DAY_S,
    "previous": END - 2 * DAY_S,
    "earlier": END - 9 * DAY_S,
}


def activity(period: str, queue: str, **counts: int) -> dict[str, Any]:
    percentiles = dict.fromkeys(("wait_p50", "wait_p95", "work_p50", "work_p95"))
    return {
        "period": period,
        "time": datetime.fromtimestamp(TIMES[period], UTC),
        "queue": queue,
        **dict.fromkeys(COUNTS, 0),
        **percentiles,
        **counts,
    }


def topic(period: str, name: str, messages: int) -> dict[str, Any]:
    time = datetime.fromtimestamp(TIMES[period], UTC)
    return {"period": period, "time": time, "topic": name, "messages": messages, "bytes": 9}


def wait(period: str, queue: str, p95: int) -> dict[str, Any]:
    return {"period": period, "queue": queue, "kind": "wait", "p50": 1, "p95": p95, "p99": p95}


def failure(period: str, queue: str, name: str, count: int) -> dict[str, Any]:
    time = datetime.fromtimestamp(TIMES[period], UTC)
    return {
        "period": period,
        "fingerprint": name,
        "queue": queue,
        "pattern": f"error {name}",
        "count": count,
        "failed": count,
        "first": time,
        "last": time,
        "example": f"error {name} </script><b>",
        "messages": [1],
    }


def figures(now: dict[str, QueueNow] | None = None, **rows: list[dict[str, Any]]) -> Figures:
    tables = ("topics", "activity", "latency", "failures", "consumers")
    return collect_figures(
        {name: rows.get(name, []) for name in tables},
        PERIOD,
        url="http://here",
        made_at=END * 1000,
        now=now or {},
    )


def reasons(made: Figures) -> dict[str, str]:
    return {one.queue: "; ".join(one.reasons) for one in attention(made)}


def test_the_story_compares_with_the_period_before() -> None:
    made = figures(
        {"billing": QueueNow(depth=7)},
        topics=[
            topic("current", "orders", 120),
            topic("previous", "orders", 60),
            topic("current", "refunds", 5),
            topic("previous", "refunds", 5),
        ],
        activity=[
            activity("current", "billing", arrivals=125, claims=100, acks=98, failures=2),
            activity("previous", "billing", arrivals=65, claims=65, acks=65),
        ],
        latency=[wait("current", "billing", 3_000), wait("previous", "billing", 50)],
        failures=[failure("current", "billing", "f1", 2)],
    )
    assert story(made) == [
        (
            "125 messages were published, 92 % more than in the day before. "
            "The largest change is in orders (+60)."
        ),
        "98 % of 100 finished deliveries were acked; 2 failed and none in the day before.",
        "An error is new: “error f1”, 2 times, in billing.",
        (
            "billing waited longest: 95 % of its deliveries were claimed within 3 s "
            "(50 ms in the day before)."
        ),
        "7 deliveries are waiting now, in billing.",
    ]


def test_nothing_is_compared_with_a_time_before_the_store() -> None:
    made = figures(topics=[topic("current", "orders", 1)])
    assert story(made) == ["1 message was published.", "Nothing is waiting now."]


def test_a_day_without_messages_is_compared_too() -> None:
    made = figures(
        topics=[topic("previous", "orders", 50)],
        activity=[activity("previous", "q", arrivals=50, acks=50)],
    )
    assert story(made)[0] == "No message was published, but 50 in the day before."


def test_every_reason_for_attention() -> None:
    made = figures(
        {
            "failing": QueueNow(),
            "idle": QueueNow(depth=9, oldest_ms=120_000),
            "growing": QueueNow(depth=60),
            "paused": QueueNow(depth=3, paused=True),
            "old": QueueNow(depth=1, oldest_ms=3 * 3_600_000),
            "slow": QueueNow(),
            "lapsing": QueueNow(),
            "good": QueueNow(depth=1),
        },
        activity=[
            activity("current", "failing", arrivals=10, claims=10, acks=9, failures=1),
            activity("current", "growing", arrivals=100, claims=40, acks=40, change=60),
            activity("current", "old", arrivals=9, claims=9, acks=9),
            activity("current", "slow", arrivals=9, claims=9, acks=9),
            activity("current", "lapsing", arrivals=9, claims=18, acks=9, lapses=9),
            activity("current", "good", arrivals=900, claims=901, acks=899, nacks=1),
        ],
        latency=[wait("current", "slow", 4_000), wait("previous", "slow", 1_000)],
        failures=[failure("current", "failing", "f1", 1)],
    )
    found = reasons(made)
    assert set(found) == {"failing", "idle", "growing", "paused", "old", "slow", "lapsing"}
    assert found["failing"].startswith("10 % of its finished deliveries failed: 1")
    assert found["idle"] == "9 wait and no consumer has claimed any, the oldest for 2 min"
    assert "grew by 60 to 60; at this pace it doubles in 24 h" in found["growing"]
    assert "4.0 times as long" in found["slow"]
    commands = {one.queue: one.commands for one in attention(made)}
    assert commands["failing"] == ["penstock pipeline replay failing --fingerprint f1"]
    assert commands["paused"] == ["penstock queue resume paused"]


def test_depth_begins_with_what_was_there_before() -> None:
    made = figures(
        activity=[
            activity("earlier", "q", arrivals=9, change=9),
            activity("previous", "q", arrivals=1, change=-2),
            activity("current", "q", arrivals=1, acks=1, change=1),
        ],
    )
    (queue,) = made.queues
    assert set(queue.depth) == {8}
    assert [chart.id for chart in charts_of(made)] == ["throughput", "depth", "trend"]


def test_text_of_others_cannot_end_a_script_or_become_markup() -> None:
    made = figures(
        activity=[activity("current", "q", claims=1, failures=1)],
        topics=[topic("current", "</script><b>", 1)],
        failures=[failure("current", "q", "f1", 1)],
    )
    page = make_page(made)
    assert "</script><b>" not in page
    assert page.count("<script") == page.count("</script>") == 3


def test_buckets_do_not_depend_on_the_length_of_the_period() -> None:
    for seconds in (1, 60, 3600, DAY_S, 30 * DAY_S, 365 * DAY_S):
        period = period_of(END - seconds, END)
        assert 1 <= len(period.buckets) <= 102
        assert period.buckets.start % period.width == 0


@pytest.mark.parametrize(
    "value, text",
    [(0, "0"), (999, "999"), (12_345, "12.3 k"), (2.5e6, "2.5 M"), (0.25, "0.25")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert shown_number(value) == text


@pytest.mark.parametrize(
    "ms, text",
    [(3, "3 ms"), (1500, "1.5 s"), (300_000, "5 min"), (7_200_000, "2 h"), (9 * 86_400_000, "9 d")],
)
def test_times_are_short(ms: float, text: str) -> None:
    assert shown_ms(ms) == text


def test_changes_and_shares() -> None:
    assert [shown_change(*pair) for pair in ((1, 1), (5, 0), (30, 10), (11, 10), (9, 10))] == [
        "same",
        "new",
        "3 times",
        "+10 %",
        "-10 %",
    ]
    assert [shown_percent(*pair) for pair in ((0, 0), (1, 3), (1, 300))] == [
        "0 %",
        "33 %",
        "0.33 %",
    ]
    assert [shown_period(s) for s in (DAY_S, 7 * DAY_S, 5400)] == ["day", "7 days", "90 minutes"]


def test_a_line_of_nothing_is_not_drawn() -> None:
    assert sparkline([0, None, 0]) == ""
    assert sparkline([1, 2]).count(",") == 2
