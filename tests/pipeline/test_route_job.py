"""The router on Spark: the deliveries that the broker's own router would give (R1)."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql import SparkSession

from penstock import NewMessage
from penstock.errors import UnknownQueue
from penstock.pipeline.jobs import route as route_job
from penstock.pipeline.jobs.route import route
from penstock.testing.laws import law
from tests.pipeline.hosted import Hosted
from tests.pipeline.jobs import run

FILTERS = {
    "all": "TRUE",
    "none": "topic = 'nothing'",
    "german": "country = 'DE'",
    "large": "amount >= 50 AND topic LIKE 'o%'",
    "either": "country = 'AT' OR amount < 10",
}


def messages(count: int, first: int = 0) -> list[NewMessage]:
    return [
        NewMessage(
            b"%d" % n,
            headers={"country": ("DE", "AT", "CH")[n % 3], "amount": n % 100},
            key=f"k{n % 7}" if n % 11 == 0 else None,
            priority=n % 10,
        )
        for n in range(first, first + count)
    ]


def create(server: Hosted, name: str, text: str) -> None:
    server.ask(lambda q: q.create_queue(name, text, start="earliest"))


def cursor_after_routing(server: Hosted, name: str) -> int | None:
    return server.ask(lambda q: q.route(name)).cursor


def claimed(server: Hosted, queue: str) -> list[bytes]:
    return [delivery.payload for delivery in server.claim(queue, 1_000)]


def routed_by_the_broker(server: Hosted, queue: str) -> list[bytes]:
    """What a queue with the same filter gets from the broker's own router, in its order."""
    server.ask(lambda q: q.create_queue("twin", FILTERS[queue], start="earliest"))
    while server.ask(lambda q: q.route("twin")).cursor is not None:
        pass
    found = claimed(server, "twin")
    server.ask(lambda q: q.delete_queue("twin"))
    return found


@law("R1")
def test_queues_over_history_get_what_the_broker_would_give(
    server: Hosted, spark: SparkSession
) -> None:
    for first in range(0, 600, 200):
        server.publish("orders", *messages(200, first))
        server.publish("other", *messages(50, first))
    for name, text in FILTERS.items():
        create(server, name, text)
    summary = run(server, spark, route, step=300)
    assert summary["queues"] == len(FILTERS)
    assert summary["conflicts"] == 0
    for name in FILTERS:
        expected = routed_by_the_broker(server, name)
        # The last stretch is the broker's.
        assert cursor_after_routing(server, name) is None
        assert claimed(server, name) == expected
    again = run(server, spark, route, run="run-2")
    assert again["assigned"] == 0


@law("R1")
def test_publishes_and_the_brokers_router_go_on_meanwhile(
    server: Hosted, spark: SparkSession
) -> None:
    server.publish("orders", *messages(900))
    server.ask(lambda q: q.create_queue("all", "amount >= 0", start="earliest"))
    stop = threading.Event()
    published: list[bytes] = []

    def disturb() -> None:
        number = 900
        while not stop.is_set():
            batch = [
                NewMessage(b"%d" % n, headers={"amount": 1}) for n in range(number, number + 5)
            ]
            server.publish("orders", *batch)
            published.extend(one.payload for one in batch)
            server.ask(lambda q: q.route("all", 7))
            number += 5

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        run(server, spark, route, step=100)
    finally:
        stop.set()
        thread.join()
    while server.ask(lambda q: q.route("all")).cursor is not None:
        pass
    found: list[bytes] = []
    while some := claimed(server, "all"):
        found += some
    # Keyed messages replace one another while nobody has claimed them.
    expected = routed_by_the_broker_of_all(server)
    assert found == expected
    assert len(set(found)) == len(found)
    assert set(published) <= set(found)


def routed_by_the_broker_of_all(server: Hosted) -> list[bytes]:
    server.ask(lambda q: q.create_queue("twin", "amount >= 0", start="earliest"))
    while server.ask(lambda q: q.route("twin")).cursor is not None:
        pass
    found: list[bytes] = []
    while some := claimed(server, "twin"):
        found += some
    return found


def test_commits_of_a_bounded_size(
    server: Hosted, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_job, "_ASSIGNED_AT_ONCE", 10)
    server.publish("orders", *[b"%d" % n for n in range(95)])
    server.ask(lambda q: q.create_queue("all", start="earliest"))
    assert run(server, spark, route)["assigned"] == 95
    assert claimed(server, "all") == [b"%d" % n for n in range(95)]


def test_an_unknown_queue_is_refused_before_spark_is_started(server: Hosted) -> None:
    with pytest.raises(UnknownQueue, match="nobody"):
        run(server, None, route, queues=("nobody",))
    (record,) = server.ask(lambda q: q.runs())
    assert (record.job, record.state) == ("route", "failed")
    assert "nobody" in (record.error or "")


def test_only_the_queues_that_are_named(server: Hosted, spark: SparkSession) -> None:
    server.publish("orders", b"1")
    for name in ("one", "two"):
        create(server, name, "TRUE")
    assert run(server, spark, route, queues=("two",))["queues"] == 1
    assert server.ask(lambda q: q.queue("one")).cursor == 0


def test_a_run_beside_traffic_ends_when_the_broker_can_take_over(
    server: Hosted, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker leaves queues that are far behind to Spark, so a run must not end with one."""
    monkeypatch.setattr(route_job, "NEAR", 20)
    server.publish("orders", *messages(30))
    create(server, "all", "TRUE")
    catch_up, published = route_job.Routing.catch_up, [15, 15, 5]

    def beside_traffic(routing: route_job.Routing) -> None:
        catch_up(routing)
        if published:
            server.publish("orders", *messages(published.pop(0), 1_000))

    monkeypatch.setattr(route_job.Routing, "catch_up", beside_traffic)
    run(server, spark, route)
    assert published == []
    cursor = server.ask(lambda q: q.queue("all")).cursor
    assert cursor is None or cursor == 60
