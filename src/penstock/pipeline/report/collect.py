"""Puts the rows of the tables together: what a report knows about each queue, topic and error.

Plain Python over small tables; nothing here depends on the number of messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from penstock.pipeline.report.figures import (
    COUNTED,
    Consumer,
    Counts,
    Failure,
    Figures,
    Latency,
    QueueFigures,
    QueueNow,
    Row,
    TopicFigures,
)
from penstock.pipeline.report.periods import DAY_S, Period

__all__ = ["collect_figures"]


def collect_figures(
    rows: Mapping[str, Sequence[Row]],
    period: Period,
    *,
    url: str,
    made_at: int,
    now: Mapping[str, QueueNow],
) -> Figures:
    """Put the tables together; ``now`` has the queues that exist."""
    queues = _queues(rows["activity"], period)
    for name, state in now.items():
        queues(name).now = state
        queues(name).exists = True
    for row in rows["latency"]:
        _add_latency(queues(row["queue"]), row)
    every = sorted(queues.known.values(), key=lambda q: (-q.current.arrivals, -q.now.depth, q.name))
    return Figures(
        url=url,
        made_at=made_at,
        period=period,
        queues=[queue for queue in every if queue.exists or queue.current.settled],
        topics=_topics(rows["topics"], period),
        failures=_failures(rows["failures"]),
        consumers=[_consumer(row) for row in rows["consumers"]],
        current=_sum(queue.current for queue in every),
        previous=_sum(queue.previous for queue in every),
        days=_days(rows),
    )


class _Queues:
    """The queues by name, created when they are first seen."""

    def __init__(self, buckets: int) -> None:
        self.known: dict[str, QueueFigures] = {}
        self._buckets = buckets

    def __call__(self, name: str) -> QueueFigures:
        if name not in self.known:
            self.known[name] = QueueFigures(
                name=name, current=Counts(), previous=Counts(), depth=[], series={}
            )
            self.known[name].series = _empty_series(self._buckets)
        return self.known[name]


def _empty_series(buckets: int) -> dict[str, list[float | None]]:
    zeros: dict[str, list[float | None]] = {name: [0.0] * buckets for name in COUNTED}
    for name in ("wait_p50", "wait_p95", "work_p50", "work_p95"):
        zeros[name] = [None] * buckets
    return zeros


def _queues(activity: Sequence[Row], period: Period) -> _Queues:
    queues = _Queues(len(period.buckets))
    depth_before: dict[str, int] = defaultdict(int)
    for row in activity:
        queue = queues(row["queue"])
        if row["period"] == "current":
            queue.current.add(row)
            place = _place(row["time"], period)
            for name, values in queue.series.items():
                values[place] = row[name]
            continue
        depth_before[queue.name] += int(row["change"] or 0)
        if row["period"] == "previous":
            queue.previous.add(row)
    for name, queue in queues.known.items():
        depth = depth_before[name]
        queue.depth = [depth := depth + int(change or 0) for change in queue.series["change"]]
    return queues


def _place(time: datetime, period: Period) -> int:
    return (int(time.timestamp()) - period.buckets.start) // period.width


def _add_latency(queue: QueueFigures, row: Row) -> None:
    found = Latency(row["p50"], row["p95"], row["p99"])
    match row["kind"], row["period"]:
        case "wait", "current":
            queue.wait = found
        case "wait", _:
            queue.wait_before = found
        case "work", "current":
            queue.work = found


def _topics(rows: Sequence[Row], period: Period) -> list[TopicFigures]:
    topics: dict[str, TopicFigures] = {}
    for row in rows:
        if row["period"] == "earlier":
            continue
        name = row["topic"]
        if name not in topics:
            topics[name] = TopicFigures(name=name, series=[0.0] * len(period.buckets))
        topic = topics[name]
        if row["period"] == "previous":
            topic.messages_before += row["messages"]
            continue
        topic.messages += row["messages"]
        topic.bytes += row["bytes"]
        topic.series[_place(row["time"], period)] = row["messages"]
    return sorted(topics.values(), key=lambda topic: (-topic.messages, topic.name))


def _failures(rows: Sequence[Row]) -> list[Failure]:
    grouped: dict[str, list[Row]] = defaultdict(list)
    before: dict[str, int] = defaultdict(int)
    for row in rows:
        if row["period"] == "current":
            grouped[row["fingerprint"]].append(row)
        else:
            before[row["fingerprint"]] += row["count"]
    found = [_failure(name, group, before[name]) for name, group in grouped.items()]
    return sorted(found, key=lambda one: (-one.failed, -one.count, one.fingerprint))


def _failure(name: str, group: Sequence[Row], before: int) -> Failure:
    group = sorted(group, key=lambda row: (-row["failed"], -row["count"], row["queue"]))
    newest = max(group, key=lambda row: row["last"])
    return Failure(
        fingerprint=name,
        pattern=newest["pattern"],
        count=sum(row["count"] for row in group),
        failed=sum(row["failed"] for row in group),
        before=before,
        queues=[row["queue"] for row in group],
        first=min(row["first"] for row in group).timestamp(),
        last=newest["last"].timestamp(),
        example=newest["example"] or "",
        messages=sorted({number for row in group for number in row["messages"]})[:3],
    )


def _consumer(row: Row) -> Consumer:
    return Consumer(
        name=row["consumer"] or "(unknown)",
        queue=row["queue"],
        count=row["count"],
        not_acked=row["not_acked"],
        work=Latency(row["p50"], row["p95"], row["p99"]),
        longest=row["max"],
    )


def _sum(every: Iterable[Counts]) -> Counts:
    total = Counts()
    for counts in every:
        for name in COUNTED:
            setattr(total, name, getattr(total, name) + getattr(counts, name))
    return total


def _days(rows: Mapping[str, Sequence[Row]]) -> dict[int, dict[str, float]]:
    days: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def add(table: str, names: Sequence[str]) -> None:
        for row in rows[table]:
            second = int(row["time"].timestamp())
            day = days[second - second % DAY_S]
            for name in names:
                day[name] += row[name] or 0

    add("topics", ("messages", "bytes"))
    add("activity", ("acks", "failures"))
    return dict(sorted(days.items()))
