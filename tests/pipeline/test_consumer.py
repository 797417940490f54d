"""``readStream.option("queue", …)``: claimed, read, acked when the sink has it; never lost."""

from __future__ import annotations

import json
import os
import signal
import threading
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock import NewMessage
from penstock.errors import BadInput, OffsetsGone, OtherStore
from penstock.model.delivery import Receipt, Release
from penstock.model.identity import StoreIdentity
from penstock.pipeline.format import claimed_slices, claiming, consumer, leases
from penstock.pipeline.format.batch import Batch
from penstock.pipeline.format.claimed_slices import Slice
from penstock.pipeline.format.claims import Claim, claim_of, consumer_schema, cut
from penstock.pipeline.format.consumer import QueueStream, queue_stream
from penstock.pipeline.format.read_back import runs
from penstock.testing.laws import law
from tests.pipeline.hosted import Hosted

ALL = ReadMaxRows(1_000)


@pytest.fixture
def opened(server: Hosted, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[QueueStream]]:
    """Streams that are stopped when the test is over."""
    # Time stands still: whoever waits for a message waits for ever.
    monkeypatch.setattr(consumer, "_WAIT_MS", 0)
    streams: list[QueueStream] = []
    yield streams
    for stream in streams:
        stream.stop()


def stream_of(server: Hosted, opened: list[QueueStream], **options: Any) -> QueueStream:
    """As Spark's process beside the driver has it."""
    stream = queue_stream(server.options(queue="q", **options))
    opened.append(stream)
    return stream


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(offset))
    return copy


def of_messages(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows without the columns of their claims."""
    return batch.drop_columns(["attempts", "receipt"]).to_pylist()


def rows(stream: QueueStream, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for partition in stream.partitions(start, end):
        for batch in stream.read(partition):
            found += batch.to_pylist()
    return found


def fill(server: Hosted, count: int = 10, **policy: Any) -> None:
    server.ask(lambda q: q.create_queue("q", "topic = 't'", **policy))
    if count:
        server.publish("t", *(NewMessage(b"%d" % n, {"n": n}) for n in range(count)))


def states(server: Hosted) -> tuple[int, int, int]:
    stats = server.ask(lambda q: q.stats("q"))
    return stats.available, stats.in_flight, stats.done


def test_a_batch_is_claimed_read_and_acked(server: Hosted, opened: list[QueueStream]) -> None:
    fill(server)
    stream = stream_of(server, opened)
    first = stream.initialOffset()
    end = through_json(stream.latestOffset(first, ReadMaxRows(6)))
    assert states(server) == (4, 6, 0)
    found = rows(stream, first, end)
    assert [row["value"] for row in found] == [b"%d" % n for n in range(6)]
    assert [row["attempts"] for row in found] == [1] * 6
    assert dict(found[3]["headers"])["n"]["i"] == 3
    assert states(server) == (4, 6, 0)
    stream.commit(end)
    assert states(server) == (4, 0, 6)
    end = stream.latestOffset(end, ALL)
    stream.commit(end)
    assert states(server) == (0, 0, 10)


@law("A1")
def test_a_checkpoint_of_another_epoch(server: Hosted, opened: list[QueueStream]) -> None:
    """After a restore the offsets of the batch may be those of other messages."""
    fill(server)
    stream = stream_of(server, opened)
    first = stream.initialOffset()
    end = through_json(stream.latestOffset(first, ReadMaxRows(6)))
    server.ask(lambda q: q.engine.new_epoch())
    again = stream_of(server, opened)
    calls: list[Callable[[], object]] = [
        lambda: again.partitions(first, end),
        lambda: again.commit(end),
        lambda: again.latestOffset(end, ALL),
    ]
    for call in calls:
        with pytest.raises(OtherStore, match="The checkpoint, at batch 1, belongs to"):
            call()
    assert states(server) == (4, 6, 0)
    # Asked to go on whatever is lost, it leaves the batch out and acks nothing of it.
    lenient = stream_of(server, opened, failOnDataLoss=False)
    assert lenient.partitions(first, end) == []
    following = lenient.latestOffset(end, ALL)
    assert len(rows(lenient, end, following)) == 4
    lenient.commit(following)
    assert states(server) == (0, 6, 4)


def test_a_checkpoint_of_an_older_penstock_goes_on(
    server: Hosted, opened: list[QueueStream]
) -> None:
    """It does not say which store it is of."""
    fill(server)
    stream = stream_of(server, opened)
    first = stream.initialOffset()
    end = through_json(stream.latestOffset(first, ReadMaxRows(6)))
    for offset in (first, end):
        del offset["store"], offset["epoch"]
    again = stream_of(server, opened)
    assert len(rows(again, first, end)) == 6
    following = again.latestOffset(end, ALL)
    assert states(server) == (0, 4, 6)
    assert following["store"] == server.ask(lambda q: q.identity()).store


def test_nothing_to_claim_is_no_batch(server: Hosted, opened: list[QueueStream]) -> None:
    fill(server, 1)
    server.claim("q")
    stream = stream_of(server, opened)
    first = stream.initialOffset()
    assert stream.latestOffset(first, ALL) == first
    assert stream.partitions(first, first) == []


def test_a_batch_is_the_same_after_a_restart(server: Hosted, opened: list[QueueStream]) -> None:
    fill(server)
    stream = stream_of(server, opened, entriesPerPartition=4)
    first = stream.initialOffset()
    end = through_json(stream.latestOffset(first, ReadMaxRows(9)))
    before = [
        [row for batch in stream.read(part) for row in of_messages(batch)]
        for part in stream.partitions(first, end)
    ]
    assert [len(part) for part in before] == [4, 4, 1]
    # The other process has other options and nothing in its memory.
    again = stream_of(server, opened, entriesPerPartition=100)
    after = [
        [row for batch in again.read(part) for row in of_messages(batch)]
        for part in again.partitions(first, end)
    ]
    assert after == before
    again.commit(end)
    assert states(server) == (1, 0, 9)


def test_rows_that_another_consumer_has_claimed_are_run_and_not_acked(
    server: Hosted, opened: list[QueueStream]
) -> None:
    fill(server, 3)
    stream = stream_of(server, opened)
    first = stream.initialOffset()
    end = stream.latestOffset(first, ALL)
    stream.stop()
    # Stopped before it was planned: the claims are given back, and are somebody else's.
    assert states(server) == (3, 0, 0)
    other = server.claim("q", 2)
    again = stream_of(server, opened)
    assert len(rows(again, first, end)) == 3
    again.commit(end)
    assert states(server) == (0, 2, 1)
    # A release does not count as an attempt that was used up, and is one all the same (C2).
    assert {one.attempts for one in other} == {2}
    # They come back, and the sink has them.
    server.ask(lambda q: q.settle("q", [Release(one.receipt) for one in other]))
    assert again.latestOffset(end, ALL) == end
    assert states(server) == (0, 0, 3)


def test_the_signal_that_spark_ends_the_process_with_lets_it_give_claims_back(
    server: Hosted, opened: list[QueueStream]
) -> None:
    fill(server, 3)
    stream = stream_of(server, opened)
    stream.latestOffset(stream.initialOffset(), ALL)
    with pytest.raises(SystemExit):
        os.kill(os.getpid(), signal.SIGTERM)
    # Spark may send it again.
    os.kill(os.getpid(), signal.SIGTERM)
    # Spark's own loop around a reader does that in the end.
    stream.stop()
    assert states(server) == (3, 0, 0)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_was_planned_stays_claimed_when_the_query_stops(
    server: Hosted, opened: list[QueueStream]
) -> None:
    fill(server, 3)
    stream = stream_of(server, opened)
    first = stream.initialOffset()
    end = stream.latestOffset(first, ALL)
    stream.partitions(first, end)
    stream.stop()
    assert states(server) == (0, 3, 0)


def test_a_committed_batch_is_acked_by_whoever_asks_for_the_next(
    server: Hosted, opened: list[QueueStream]
) -> None:
    fill(server, 3)
    stream = stream_of(server, opened)
    first = stream.initialOffset()
    end = stream.latestOffset(first, ReadMaxRows(2))
    stream.partitions(first, end)
    stream.stop()
    again = stream_of(server, opened)
    after = again.latestOffset(end, ALL)
    assert states(server) == (0, 1, 2)
    assert [row["value"] for row in rows(again, end, after)] == [b"2"]


def test_leases_are_extended_while_a_batch_runs(
    server: Hosted, opened: list[QueueStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server, 2)
    monkeypatch.setattr("penstock.pipeline.format.leases.Leases._pause_s", 0.01)
    stream = stream_of(server, opened, leaseMs=1_000)
    end = stream.latestOffset(stream.initialOffset(), ALL)
    stream.partitions(stream.initialOffset(), end)
    for _ in range(5):
        server.advance(900)
        deadline = server.clock.now() + 1_000
        while any(
            item.lease_deadline != deadline
            for item in server.ask(lambda q: q.peek("q", "in_flight")).items
        ):
            pass
    assert server.claim("q") == []
    stream.commit(end)
    assert stream._planner().held == []


def test_claims_that_are_extended_while_they_are_acked_are_not_lost(
    server: Hosted,
    opened: list[QueueStream],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The acks of a large micro-batch take as long as an extension: they overlap."""
    acked, extended = threading.Event(), threading.Event()
    original = leases.settle

    async def acking(*arguments: Any) -> list[Receipt]:
        stale = await original(*arguments)
        acked.set()
        assert extended.wait(30)
        return stale

    after_acks = 0

    async def extending(*arguments: Any) -> list[Receipt]:
        nonlocal after_acks
        if after_acks:
            extended.set()  # The extension before this one has ended.
        after_acks += acked.is_set()
        return await original(*arguments)

    fill(server, 2)
    monkeypatch.setattr(leases.Leases, "_pause_s", 0.01)
    stream = stream_of(server, opened)
    end = stream.latestOffset(stream.initialOffset(), ALL)
    stream.partitions(stream.initialOffset(), end)
    monkeypatch.setattr(claiming, "settle", acking)
    monkeypatch.setattr(leases, "settle", extending)
    stream.commit(end)
    assert extended.is_set()
    assert "are lost" not in caplog.text
    assert stream._planner().held == []
    assert states(server) == (0, 0, 2)


def test_a_large_slice_is_read_by_its_task(
    server: Hosted, opened: list[QueueStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimed_slices, "_INLINE_BYTES", 20)
    fill(server, 0)
    # Between the queue's messages lie others, and some of them far apart.
    for size in (5, 5, 30, 5):
        server.publish("t", b"x" * size)
        server.publish("other", *[b""] * size)
    stream = stream_of(server, opened, entriesPerPartition=2)
    first = stream.initialOffset()
    end = stream.latestOffset(first, ALL)
    parts = stream.partitions(first, end)
    assert [isinstance(part, Slice) and part.rows is None for part in parts] == [False, True]
    found = [row for part in parts for batch in stream.read(part) for row in batch.to_pylist()]
    assert [len(row["value"]) for row in found] == [5, 5, 30, 5]


@law("A1")
def test_a_slice_is_not_read_from_another_store(
    server: Hosted, opened: list[QueueStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may have another store by the time that a task reads its slice."""
    monkeypatch.setattr(claimed_slices, "_INLINE_BYTES", 0)
    fill(server)
    stream = stream_of(server, opened)
    first = stream.initialOffset()
    (part,) = stream.partitions(first, stream.latestOffset(first, ALL))
    server.ask(lambda q: q.engine.new_epoch())
    with pytest.raises(OtherStore, match="The batch that is read"):
        list(stream.read(part))


def test_what_retention_has_removed_is_said(server: Hosted, opened: list[QueueStream]) -> None:
    fill(server, 3)
    stream = stream_of(server, opened)
    first = stream.initialOffset()
    end = stream.latestOffset(first, ALL)
    stream.partitions(first, end)
    stream.stop()
    server.ask(lambda q: q.delete_queue("q"))
    server.forget()
    server.ask(lambda q: q.create_queue("q", "topic = 't'"))
    with pytest.raises(OffsetsGone, match="3 messages"):
        rows(stream_of(server, opened), first, end)
    assert rows(stream_of(server, opened, failOnDataLoss=False), first, end) == []


def test_an_ordered_queue_is_consumed_in_order(server: Hosted, opened: list[QueueStream]) -> None:
    fill(server, 0, ordering="partition")
    server.publish("t", *(NewMessage(b"%d" % n, partition_key=f"p{n % 2}") for n in range(6)))
    stream = stream_of(server, opened)
    end = stream.initialOffset()
    found: list[bytes] = []
    for _ in range(3):
        start, end = end, stream.latestOffset(end, ALL)
        found += [row["value"] for row in rows(stream, start, end)]
        stream.commit(end)
    assert sorted(found[:2]) == [b"0", b"1"]
    assert sorted(found[2:4]) == [b"2", b"3"]


def test_available_now_takes_what_is_there(server: Hosted, opened: list[QueueStream]) -> None:
    fill(server, 5)
    stream = stream_of(server, opened)
    stream.prepareForTriggerAvailableNow()
    end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(3))
    server.publish("t", b"later", b"later")
    end = stream.latestOffset(end, ReadMaxRows(3))
    assert len(Batch.from_offset(end).claims) == 2
    assert stream.latestOffset(end, ALL) == end


def test_offsets_are_small_and_checked() -> None:
    """Spark repeats them in every progress event."""
    claims = [Claim(10**9 + n, 10**9 + n, 1, None) for n in range(10_000)]
    claims[7] = Claim(10**9 + 77_777, claims[7].message_id, 3, None)
    slices = cut([1] * 10_000, 4_000, 100_000)
    store = StoreIdentity("a" * 32, "b" * 32)
    batch = Batch(7, claims, slices, store, "abcdefgh", 10**12, {5: 10**12, 3: 10**11})
    offset = through_json(batch.to_offset())
    assert Batch.from_offset(offset) == batch
    assert [len(part) for part in batch.parts()] == [4_000, 4_000, 2_000]
    assert len(json.dumps(offset)) < 500
    for bad in ({}, {"batch": 1, "claims": "?"}, {"offset": 3}, {"batch": 1, "claims": "AAAA"}):
        with pytest.raises(BadInput, match="checkpoint"):
            Batch.from_offset(bad)


def with_receipts(offset: dict[str, Any], deliveries: list[Any]) -> dict[str, Any]:
    """The offset as version 1.0 wrote it."""
    content = [[one.offset, one.attempts, one.receipt] for one in deliveries], [len(deliveries)]
    packed = b64encode(zlib.compress(msgspec.msgpack.encode(content), 1)).decode()
    store = {name: offset[name] for name in ("store", "epoch")}
    return {"batch": offset["batch"], "claims": packed, **store}


def test_a_checkpoint_with_receipts_goes_on(server: Hosted, opened: list[QueueStream]) -> None:
    """Version 1.0 kept them in its offsets."""
    fill(server, 10)
    claims = [claim_of(one) for one in server.claim("q", 6, consumer="spark")]
    stream = stream_of(server, opened)
    first = stream.initialOffset()
    old = with_receipts(Batch(1, claims, [6], stream._store()).to_offset(), claims)
    assert len(rows(stream, first, old)) == 6
    following = stream.latestOffset(old, ALL)
    assert states(server) == (0, 4, 6)
    assert "claims" not in following


def test_slices_are_bounded_in_bytes_too() -> None:
    assert cut([4, 4, 4, 30, 1, 1, 1, 1], 3, 10) == [2, 1, 1, 3, 1]
    assert cut([], 3, 10) == []


def test_offsets_that_are_near_are_one_run() -> None:
    assert runs([1, 2, 5, 40, 41, 90], gap=3) == [(1, 5), (40, 41), (90, 90)]
    assert runs([]) == []


@law("E1")
@pytest.mark.parametrize(
    "options, complaint",
    [
        ({"queue": "a b"}, "a b"),
        ({"leaseMs": "1"}, "leaseMs"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"startingOffsets": "earliest"}, "startingoffsets"),
        ({"consumer": "a b"}, "consumer"),
    ],
)
def test_options_are_checked(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(BadInput) as refused:
        queue_stream({"url": "http://nowhere", "queue": "q", **options})
    assert complaint in f"{refused.value.detail} {refused.value.field}"


# -- with Spark ----------------------------------------------------------------------------


def run(frame: DataFrame, server: Hosted, checkpoint: Path, topic: str) -> None:
    query = (
        frame.writeStream.format("penstock")
        .options(
            **server.options(topic=topic, checkpointLocation=str(checkpoint), samePartitions="true")
        )
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def published(server: Hosted, topic: str) -> Counter[bytes | None]:
    page = server.ask(lambda q: q.read_log(0, limit=1_000, payloads=True))
    return Counter(entry.payload for entry in page.entries if entry.message.topic == topic)


def test_from_a_queue_to_a_topic_once_each_though_the_query_fails_on_the_way(
    spark: SparkSession, server: Hosted, tmp_path: Path
) -> None:
    fill(server, 40)
    marker = tmp_path / "failed"

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not marker.exists():
            marker.touch()
            raise RuntimeError("injected")

    options = server.options(queue="q", maxOffsetsPerTrigger=25, entriesPerPartition=10)
    frame = spark.readStream.format("penstock").options(**options).load()
    assert frame.schema.names == consumer_schema(payload=True).names
    changed = frame.selectExpr("concat('<', cast(value AS string), '>') AS value")
    changed = changed.mapInArrow(fail_once, "value string")
    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(StreamingQueryException, match="injected"):
        run(changed, server, checkpoint, "out")
    # The claims were given back, and the batch is run again with the same rows.
    assert states(server) == (40, 0, 0)
    run(changed, server, checkpoint, "out")
    # The last batch too: Spark tells the source before it looks for another.
    assert states(server) == (0, 0, 40)
    assert published(server, "out") == Counter(b"<%d>" % n for n in range(40))
