"""A consuming stream that is killed or fails: each row reaches its sink once, or is a dead letter.

The streams run as Spark runs them, without Spark: ``Driver`` keeps the offset log and the commit
log of a query, and a sink that ignores a batch id that it has seen.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock import NewMessage
from penstock.model.delivery import Ack, Release
from penstock.pipeline.format import consumer
from penstock.pipeline.format.consumer import QueueStream, queue_stream
from penstock.pipeline.format.suspects import batch_limit
from penstock.testing.laws import law
from tests.pipeline.hosted import Hosted

LEASE_MS = 60_000
#: Where a query can be killed, in the order in which it gets there.
STEPS = ("claimed", "planned", "read", "sunk", "committed", "acked")


class Killed(Exception):
    """The query has reached the step at which it is killed."""


class Driver:
    """Micro-batches in the order of Spark's ``MicroBatchExecution``; its logs survive a kill."""

    def __init__(self, server: Hosted, **options: Any) -> None:
        self._server = server
        self._options = options
        self._limit = ReadMaxRows(int(options.get("maxOffsetsPerTrigger", 1_000)))
        self.offsets: list[dict[str, Any]] = []
        self.commits = -1
        self.sink: dict[int, list[bytes]] = {}
        self.poison: frozenset[bytes] = frozenset()

    def run(self, batches: int, kill: str | None = None) -> None:
        """Run a new process of the query for some batches; it is killed at the last of them."""
        stream = queue_stream(self._server.options(queue="q", **self._options))
        try:
            if not self.offsets:
                self._log(stream.initialOffset())
                self.commits = 0
            for left in reversed(range(batches)):
                if not self._batch(stream, kill if left == 0 else None):
                    break
        except Killed:
            # Its claims stay as they are.
            stream._planner().close()
            stream._claiming = stream._running = None
            stream.stop()
            return
        except ValueError:
            stream._is_ended = True
            stream.stop()
            raise
        stream.stop()

    def _batch(self, stream: QueueStream, kill: str | None) -> bool:
        def reach(step: str) -> None:
            if step == kill:
                raise Killed

        number = len(self.offsets) - 1
        if self.commits == number:
            end = stream.latestOffset(self.offsets[-1], self._limit)
            reach("claimed")
            if end == self.offsets[-1]:
                return False
            self._log(end)
            number += 1
        start, end = self.offsets[number - 1 : number + 1]
        parts = stream.partitions(start, end)
        reach("planned")
        rows = [
            row
            for part in parts
            for found in stream.read(part)
            for row in found.column("value").to_pylist()
        ]
        reach("read")
        if self.poison & set(rows):
            raise ValueError("poison")
        self.write(number, rows)
        reach("sunk")
        self.commits = number
        reach("committed")
        stream.commit(end)
        reach("acked")
        return True

    def write(self, number: int, values: list[bytes]) -> None:
        """The sink."""
        self.sink.setdefault(number, values)

    def _log(self, offset: dict[str, Any]) -> None:
        self.offsets.append(json.loads(json.dumps(offset)))

    @property
    def rows(self) -> Counter[bytes]:
        return Counter(row for batch in self.sink.values() for row in batch)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "_WAIT_MS", 0)


def fill(server: Hosted, count: int, **policy: Any) -> list[bytes]:
    server.ask(lambda q: q.create_queue("q", "topic = 't'", **policy))
    values = [b"%d" % n for n in range(count)]
    server.publish("t", *map(NewMessage, values))
    return values


def states(server: Hosted) -> tuple[int, int, int, int]:
    stats = server.ask(lambda q: q.stats("q"))
    return stats.available, stats.in_flight, stats.done, stats.failed


@law("C5")
@pytest.mark.parametrize("pause_ms", [0, LEASE_MS + 1])
@pytest.mark.parametrize("step", STEPS)
def test_a_query_that_is_killed_at_each_step(server: Hosted, step: str, pause_ms: int) -> None:
    values = fill(server, 30)
    driver = Driver(server, maxOffsetsPerTrigger=10, entriesPerPartition=4)
    for _ in range(3):
        # The second time it is killed in the batch that it runs again.
        driver.run(1, kill=step)
        server.advance(pause_ms)
    server.advance(LEASE_MS + 1)
    driver.run(100)
    assert driver.rows == Counter(values)
    assert states(server) == (0, 0, 30, 0)


@law("S2")
def test_claims_lost_while_the_query_was_down_are_acked_when_they_come_back(
    server: Hosted,
) -> None:
    """They may come back after several batches, and after another restart."""
    values = fill(server, 10)
    driver = Driver(server, maxOffsetsPerTrigger=10)
    driver.run(1, kill="committed")
    server.advance(LEASE_MS + 1)
    # Another consumer has them meanwhile.
    held = server.claim("q", 10)
    values += [b"later"]
    server.publish("t", b"later")
    driver.run(1, kill="acked")
    server.ask(lambda q: q.settle("q", [Release(one.receipt) for one in held]))
    driver.run(5)
    assert driver.rows == Counter(values)
    assert states(server) == (0, 0, 11, 0)


def test_a_replayed_delivery_is_not_taken_for_one_that_the_sink_has(server: Hosted) -> None:
    values = fill(server, 3)
    driver = Driver(server)
    driver.run(1, kill="committed")
    server.advance(LEASE_MS + 1)
    held = server.claim("q", 3)
    server.publish("t", b"later")
    driver.run(1)
    # The other consumer has done its work; later its deliveries are replayed.
    server.ask(lambda q: q.settle("q", [Ack(one.receipt) for one in held]))
    server.ask(lambda q: q.replay("q", "done"))
    driver.run(5)
    assert driver.rows == Counter([*values, *values, b"later", b"later"])


@law("D1")
@pytest.mark.parametrize("max_attempts", [1, 2, 3, 5, 7])
def test_a_poison_row_becomes_a_dead_letter_and_the_query_goes_on(
    server: Hosted, max_attempts: int
) -> None:
    values = fill(server, 250, max_attempts=max_attempts)
    driver = Driver(server, maxOffsetsPerTrigger=200)
    driver.poison = frozenset({values[120]})
    failures = 0
    while True:
        try:
            driver.run(1_000)
            break
        except ValueError:
            failures += 1
            assert failures <= max_attempts
    assert failures == max_attempts
    # With a single attempt there is none left to find out which row it was.
    innocent = [] if max_attempts > 1 else values[:200]
    assert driver.rows == Counter(values) - Counter({values[120], *innocent})
    failed = server.ask(lambda q: q.peek("q", "failed", limit=1_000)).items
    assert len(failed) == max(1, len(innocent))
    assert all("failed" in (one.error or "") for one in failed)


def test_a_query_that_is_killed_while_it_looks_for_a_poison_row(server: Hosted) -> None:
    values = fill(server, 150, max_attempts=4)
    driver = Driver(server, maxOffsetsPerTrigger=150)
    driver.poison = frozenset({values[40]})
    for turn in range(30):
        with suppress(ValueError):
            driver.run(1 + turn % 7, kill=STEPS[1 + turn % 5])
    driver.run(1_000)
    assert driver.rows == Counter(values) - Counter({values[40]})
    assert states(server) == (0, 0, 149, 1)


def test_a_settled_row_is_left_out_of_a_batch_that_is_run_again(server: Hosted) -> None:
    values = fill(server, 4)
    driver = Driver(server, entriesPerPartition=1)
    driver.run(1, kill="planned")
    server.advance(LEASE_MS + 1)
    (other,) = server.claim("q", 1)
    server.ask(lambda q: q.ack(other))
    driver.run(5)
    assert driver.rows == Counter(values[1:])


def test_few_rows_share_a_batch_at_their_last_attempts() -> None:
    assert [batch_limit(n, 5) for n in range(1, 7)] == [None, None, None, 100, 1, 1]
    assert [batch_limit(n, 2) for n in (1, 2)] == [None, 1]
    assert batch_limit(1, 1) is None
    assert batch_limit(9, None) is None


@law("C4")
def test_an_ordered_queue_gives_runs_of_its_partitions(server: Hosted) -> None:
    server.ask(
        lambda q: q.create_queue("q", "topic = 't'", ordering="partition", partition_batch=50)
    )
    sent = [NewMessage(b"%d" % n, partition_key=f"p{n % 3}") for n in range(300)]
    server.publish("t", *sent)
    driver = Driver(server, entriesPerPartition=60)
    driver.run(1, kill="sunk")
    driver.run(1, kill="committed")
    server.advance(LEASE_MS + 1)
    driver.run(100)
    assert len(driver.sink) <= 4
    for key in range(3):
        own = [int(row) for batch in driver.sink.values() for row in batch if int(row) % 3 == key]
        assert own == list(range(key, 300, 3))
    assert states(server) == (0, 0, 300, 0)


@law("C4")
def test_a_task_has_all_rows_of_its_partition_keys(server: Hosted) -> None:
    server.ask(
        lambda q: q.create_queue("q", "topic = 't'", ordering="partition", partition_batch=50)
    )
    server.publish("t", *(NewMessage(b"%d" % n, partition_key=f"p{n % 5}") for n in range(100)))
    stream = queue_stream(server.options(queue="q", entriesPerPartition=30))
    first = stream.initialOffset()
    stream._planner()._careful = False
    end = stream.latestOffset(first, ReadMaxRows(1_000))
    keys = [
        {key for found in stream.read(part) for key in found.column("partition_key").to_pylist()}
        for part in stream.partitions(first, end)
    ]
    stream.stop()
    assert sorted(key for own in keys for key in own) == [f"p{n}" for n in range(5)]
    assert len(keys) > 1
