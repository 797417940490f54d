"""The tables ``deliveries``, ``failed`` and ``history``: where messages stand, and since when."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock import Ack, NewMessage
from penstock.errors import UnknownQueue
from penstock.model.delivery import Event, Reject
from tests.pipeline.hosted import Hosted
from tests.pipeline.reading import pieces, read, reader
from tests.pipeline.test_source_log import moment


@pytest.fixture
def busy(server: Hosted) -> Hosted:
    """Two queues with deliveries in every state."""
    server.ask(lambda q: q.create_queue("all", "TRUE", max_attempts=1))
    server.ask(lambda q: q.create_queue("rich", "amount > 5"))
    server.publish(
        "orders", *(NewMessage(str(n).encode(), {"amount": n}, priority=9) for n in range(10))
    )
    server.publish("orders", NewMessage(b"expires", ttl_ms=1_000), NewMessage(b"later", delay_ms=9))
    claimed = server.claim("all", 4)
    done, failed, lost, _ = (one.receipt for one in claimed)
    server.ask(
        lambda q: q.settle("all", [Ack(done), Reject(failed, "boom ☃"), Reject(lost, error=None)])
    )
    return server


def test_deliveries_are_told_with_their_states(busy: Hosted) -> None:
    now = busy.clock.now()
    rows = read(busy, table="deliveries", queue="all")
    assert Counter(row["state"] for row in rows) == {
        "done": 1,
        "failed": 2,
        "in_flight": 1,
        "available": 7,
        "delayed": 1,
    }
    assert len({row["id"] for row in rows}) == len(rows)
    (flying,) = (row for row in rows if row["state"] == "in_flight")
    assert (flying["queue"], flying["consumer"], flying["attempts"]) == ("all", "tester", 1)
    assert flying["claimed_at"] == moment(now)
    assert flying["lease_deadline"] == moment(now + 30_000)
    assert dict(flying["headers"])["amount"]["i"] == 3
    (delayed,) = (row for row in rows if row["state"] == "delayed")
    assert delayed["at"] == delayed["deliver_at"] == moment(now + 9)
    assert "value" not in delayed


def test_all_queues_are_told_each_with_its_own(busy: Hosted) -> None:
    rows = read(busy, table="deliveries")
    assert Counter(row["queue"] for row in rows) == {"all": 12, "rich": 4}
    # Tasks are queues and states that have something.
    assert len(pieces(busy, table="deliveries")) == 6


def test_deliveries_may_be_chosen_and_have_payloads(busy: Hosted) -> None:
    rows = read(busy, table="deliveries", where="amount >= 8", payload=True)
    assert sorted((row["queue"], row["value"]) for row in rows) == [
        ("all", b"8"),
        ("all", b"9"),
        ("rich", b"8"),
        ("rich", b"9"),
    ]
    assert read(busy, table="deliveries", topic="nothing") == []


def test_failed_are_the_failed_ones(busy: Hosted) -> None:
    now = busy.clock.now()
    rows = read(busy, table="failed", payload=True)
    assert sorted((row["value"], row["error"], row["state"]) for row in rows) == [
        (b"1", "boom ☃", "failed"),
        (b"2", None, "failed"),
    ]
    assert {row["at"] for row in rows} == {moment(now)}
    assert read(busy, table="failed", queue="rich") == []


def test_many_deliveries_of_one_state_come_in_pages(server: Hosted) -> None:
    server.ask(lambda q: q.create_queue("all", "TRUE"))
    offsets = [one.offset for one in server.publish("t", *[b"x"] * 2_500)]
    (found,) = pieces(server, table="deliveries", payload=True)
    assert sorted(found.column("offset").to_pylist()) == offsets


def history_of(server: Hosted, message: int) -> tuple[Event, ...]:
    return server.ask(lambda q: q.history(message))


def test_history_has_every_transition(busy: Hosted) -> None:
    rows = read(busy, table="history", entriesPerPartition=5)
    by_message: dict[tuple[int, str], list[dict[str, object]]] = {}
    for row in rows:
        by_message.setdefault((row["id"], row["queue"]), []).append(row)
    assert len(by_message) == 16
    for (message, queue), found in by_message.items():
        assert [row["seq"] for row in found] == list(range(len(found)))
        events = [one for one in history_of(busy, message) if one.queue == queue]
        assert [
            (row["at"], row["transition"], row["state"], row["consumer"], row["error"])
            for row in found
        ] == [
            (moment(one.at), one.transition, one.state, one.consumer, one.error) for one in events
        ]


def test_history_of_one_queue_and_of_a_part_of_the_log(busy: Hosted) -> None:
    rows = read(busy, table="history", queue="rich")
    assert {row["queue"] for row in rows} == {"rich"}
    assert {row["id"] for row in rows} == {6, 7, 8, 9}
    rows = read(busy, table="history", queue="rich", startingOffsets=7, endingOffsets=9)
    assert {row["id"] for row in rows} == {7, 8}


@pytest.mark.parametrize("table", ["deliveries", "failed", "history"])
def test_a_queue_that_is_not_there_is_told_when_planning(server: Hosted, table: str) -> None:
    with pytest.raises(UnknownQueue, match="nobody"):
        reader(server, table=table, queue="nobody").partitions()


@pytest.mark.parametrize("table", ["deliveries", "failed", "history"])
def test_nothing_is_a_table_without_partitions(server: Hosted, table: str) -> None:
    assert pieces(server, table=table) == []
