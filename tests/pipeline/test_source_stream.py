"""The log as a stream, planned without Spark: where micro-batches begin and end (L2)."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
)

from penstock.errors import BadInput, OffsetsGone
from penstock.model.delivery import Reject
from penstock.pipeline.format.log_stream import LogStream
from penstock.pipeline.format.ranges import Range
from penstock.testing.laws import law
from tests.pipeline.hosted import HOUR_MS, Hosted
from tests.pipeline.reading import source, stream
from tests.pipeline.test_source_log import lose


def offsets(planned: LogStream, start: int, end: int) -> list[int]:
    """What the workers read of a micro-batch."""
    parts = planned.partitions({"offset": start}, {"offset": end})
    worker = pickle.loads(pickle.dumps(LogStream(planned._options, planned._schema)))
    return [
        offset
        for part in parts
        for batch in worker.read(part)
        for offset in batch.column("offset").to_pylist()
    ]


def micro_batches(planned: LogStream, limit: ReadLimit) -> list[list[int]]:
    """All micro-batches until there is nothing more."""
    at = planned.initialOffset()
    found = []
    while (end := planned.latestOffset(at, limit)) != at:
        found.append(offsets(planned, at["offset"], end["offset"]))
        planned.commit(end)
        at = end
    return found


def test_a_stream_reads_what_comes(server: Hosted) -> None:
    planned = stream(server)
    start = planned.initialOffset()
    assert planned.latestOffset(start, ReadAllAvailable()) == start
    assert planned.partitions(start, start) == []
    published = [one.offset for one in server.publish("t", *[b"x"] * 5)]
    end = planned.latestOffset(start, ReadAllAvailable())
    assert end["began"] == start["offset"]
    assert end["offset"] == published[-1] + 1
    assert offsets(planned, start["offset"], end["offset"]) == published
    assert planned.latestOffset(end, ReadAllAvailable()) == end
    planned.stop()
    planned.stop()


def test_a_limit_bounds_micro_batches(server: Hosted) -> None:
    published = [one.offset for one in server.publish("t", *[b"x"] * 10)]
    planned = stream(server, maxOffsetsPerTrigger=4, entriesPerPartition=3)
    limit = planned.getDefaultReadLimit()
    assert limit == ReadMaxRows(4)
    found = micro_batches(planned, limit)
    assert list(map(len, found)) == [4, 4, 2]
    assert [offset for one in found for offset in one] == published
    # Spark may want everything whatever the options say.
    assert micro_batches(planned, ReadAllAvailable()) == [published]
    planned.stop()


def test_a_limit_of_one_is_kept_however_much_there_is(server: Hosted) -> None:
    """The server cuts a part of the log into so many pieces only, and makes them larger then."""
    for _ in range(3):
        server.publish("t", *[b""] * 5_000)
    planned = stream(server, payload=False)
    end = planned.latestOffset({"offset": 0}, ReadMaxRows(1))
    assert offsets(planned, 0, end["offset"]) == [0]
    planned.stop()


def test_a_micro_batch_may_wait_until_there_is_enough(server: Hosted) -> None:
    server.publish("t", *[b"x"] * 10)
    planned = stream(server)
    assert planned.latestOffset({"offset": 0}, ReadMinRows(11))["offset"] == 0
    start = planned.initialOffset()
    assert planned.latestOffset(start, ReadMinRows(11)) == start
    assert planned.latestOffset({"offset": 0}, ReadMinRows(5))["offset"] == 10
    planned.stop()


def test_what_is_there_now_is_the_end_of_an_available_now_query(server: Hosted) -> None:
    published = [one.offset for one in server.publish("t", *[b"x"] * 5)]
    planned = stream(server)
    planned.prepareForTriggerAvailableNow()
    server.publish("t", b"later")
    assert micro_batches(planned, ReadMaxRows(3)) == [published[:3], published[3:]]
    # A query that was further already has nothing to do.
    beyond = {**planned.initialOffset(), "offset": published[-1] + 2}
    assert planned.latestOffset(beyond, ReadAllAvailable()) == beyond
    planned.stop()


@pytest.mark.parametrize("start", ["earliest", "latest", "3"])
def test_where_a_new_query_begins(server: Hosted, start: str) -> None:
    server.publish("t", *[b"x"] * 5)
    planned = stream(server, startingOffsets=start)
    assert planned.initialOffset()["offset"] == {"earliest": 0, "latest": 5, "3": 3}[start]
    planned.stop()


def test_a_stream_reports_how_far_it_is_behind(server: Hosted) -> None:
    server.publish("t", *[b"12345"] * 2_500)
    server.advance(7_000)
    given = stream(server, maxOffsetsPerTrigger=500)
    planned = LogStream(given._options, given._schema, server.clock)
    assert planned.reportLatestOffset()["lag"] == {"entries": 0, "bytes": 0, "oldest_ms": 0}
    at = planned.latestOffset(planned.initialOffset(), planned.getDefaultReadLimit())
    reported = planned.reportLatestOffset()
    assert reported["lag"] == {"entries": 2_000, "bytes": 10_000, "oldest_ms": 7_000}
    assert reported["offset"] == 2_500
    # The checkpoint has none of it.
    assert "lag" not in at
    planned.latestOffset(at, ReadAllAvailable())
    assert planned.reportLatestOffset()["lag"]["entries"] == 0
    planned.stop()


@law("L2")
def test_the_first_micro_batch_is_the_same_after_a_restart(server: Hosted) -> None:
    """Spark stores where it ends, but not where it began: ``latest`` is another offset by then."""
    server.publish("t", *[b"x"] * 5)
    planned = stream(server, startingOffsets="latest")
    start = planned.initialOffset()
    server.publish("t", *[b"x"] * 3)
    end = planned.latestOffset(start, ReadAllAvailable())
    server.publish("t", b"later")
    planned.stop()
    # The query was killed in its first micro-batch.
    again = stream(server, startingOffsets="latest")
    parts = again.partitions(again.initialOffset(), end)
    assert [(one.start, one.end) for one in parts if isinstance(one, Range)] == [(5, 8)]
    again.stop()


def test_a_stream_is_filtered_by_its_options(server: Hosted) -> None:
    for topic in ("a", "b", "a"):
        server.publish(topic, b"x")
    planned = stream(server, where="topic = 'a'")
    assert offsets(planned, 0, 3) == [0, 2]
    planned.stop()


# -- what retention removed --------------------------------------------------------------


def test_lost_offsets_fail_before_a_job_starts(server: Hosted) -> None:
    lost = lose(server)
    planned = stream(server)
    for ask in (
        lambda: planned.latestOffset({"offset": lost[0]}, ReadAllAvailable()),
        # A micro-batch that was planned before the query died.
        lambda: planned.partitions({"offset": lost[0]}, {"offset": lost[0] + 1}),
    ):
        with pytest.raises(OffsetsGone, match="retention has removed"):
            ask()
    planned.stop()


def pinned_and_lost(server: Hosted) -> list[int]:
    """Let retention remove entries behind an older one that has failed; their offsets."""
    (delivery,) = server.claim("pinned")
    server.ask(lambda q: q.settle("pinned", [Reject(delivery.receipt, "broken")]))
    server.advance(2 * HOUR_MS)
    lost = [int(one.offset) for one in server.publish("lost", b"1", b"2", b"3")]
    server.ask(lambda q: q.delete_queue("lost"))
    server.forget()
    assert server.ask(lambda q: q.log_start()) == 0
    return lost


@law("L2")
def test_offsets_that_are_lost_behind_an_older_entry_fail(server: Hosted) -> None:
    """The log still begins below the checkpoint: one failed delivery keeps its entry for weeks."""
    server.publish("pinned", b"x")
    planned = stream(server)
    first = planned.initialOffset()
    at = planned.latestOffset(first, ReadAllAvailable())
    (part,) = planned.partitions(first, at)
    lost = pinned_and_lost(server)
    for ask in (
        lambda: planned.latestOffset(at, ReadAllAvailable()),
        lambda: planned.partitions(at, {"offset": lost[-1] + 1}),
        lambda: list(planned.read(part)),
    ):
        with pytest.raises(OffsetsGone, match=f"removed entries up to {lost[-1]}"):
            ask()
    planned.stop()
    # Asked to go on, it does not go back to where the log begins.
    lenient = stream(server, failOnDataLoss=False)
    end = lenient.latestOffset(at, ReadAllAvailable())
    assert offsets(lenient, at["offset"], end["offset"]) == [lost[-1] + 1]
    lenient.stop()


def test_what_was_lost_before_a_query_began_does_not_fail_it(server: Hosted) -> None:
    server.publish("pinned", b"x")
    lost = pinned_and_lost(server)
    planned = stream(server)
    found = micro_batches(planned, ReadMaxRows(1))
    assert [batch for batch in found if batch] == [[0], [lost[-1] + 1]]
    planned.stop()


def test_lost_offsets_may_be_passed_over(server: Hosted, caplog: pytest.LogCaptureFixture) -> None:
    lost = lose(server)
    kept = server.publish("t", b"kept")[0].offset
    planned = stream(server, failOnDataLoss=False)
    start = {"offset": lost[0]}
    end = planned.latestOffset(start, ReadAllAvailable())
    found = offsets(planned, lost[0], end["offset"])
    assert found[-1] == kept
    assert not set(found) & set(lost)
    assert "retention has removed" in caplog.text
    assert offsets(planned, lost[0], lost[-1]) == []
    # The first micro-batch is of what is left, and not of what is not.
    end = planned.latestOffset(start, ReadMaxRows(1))
    assert len(offsets(planned, lost[0], end["offset"])) == 1
    planned.stop()


def test_a_target_that_is_lost_is_passed(server: Hosted) -> None:
    (first,) = server.publish("t", b"x")
    planned = stream(server, failOnDataLoss=False)
    planned.prepareForTriggerAvailableNow()
    lose(server)
    end = planned.latestOffset({"offset": first.offset}, ReadAllAvailable())
    assert planned.latestOffset(end, ReadAllAvailable()) == end
    planned.stop()


# -- what is no stream -------------------------------------------------------------------


@pytest.mark.parametrize("table", ["deliveries", "failed", "history"])
def test_other_tables_are_no_streams(server: Hosted, table: str) -> None:
    given = source(server, table=table)
    with pytest.raises(BadInput, match=f"The table {table} is for read"):
        given.streamReader(given.schema())


def test_a_stream_has_no_end(server: Hosted) -> None:
    given = source(server, endingOffsets=5)
    with pytest.raises(BadInput, match="are for read; a stream ends"):
        given.streamReader(given.schema())
