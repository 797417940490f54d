"""A store in PostgreSQL: offsets with gaps between them, read and cut all the same (L1)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock import NewMessage
from tests.databases import store_url
from tests.pipeline.hosted import Hosted
from tests.pipeline.reading import pieces, read, stream
from tests.pipeline.test_source_stream import micro_batches


@pytest.fixture
def server() -> Iterator[Hosted]:
    hosted = Hosted(store_url("postgresql")).start()
    yield hosted
    hosted.stop()


def test_offsets_with_gaps_are_read_once_each(server: Hosted) -> None:
    offsets: list[int] = []
    for call, size in enumerate((1, 7, 2, 30, 1)):
        batch = [NewMessage(str(n).encode(), {"n": n}, key=f"{call}-{n}") for n in range(size)]
        offsets += [one.offset for one in server.publish("t", *batch)]
    assert offsets[-1] - offsets[0] > 10_000

    rows = read(server)
    assert [row["offset"] for row in rows] == offsets
    assert rows[3]["value"] == b"2"
    found = pieces(server, entriesPerPartition=5)
    assert len(found) > 2
    assert [offset for one in found for offset in one.column("offset").to_pylist()] == offsets
    chosen = read(server, where="n > 20", startingOffsets=offsets[12])
    assert [row["value"] for row in chosen] == [str(n).encode() for n in range(21, 30)]
    assert [row["id"] for row in read(server, table="deliveries", queue="t")] == offsets

    planned = stream(server)
    bounded = micro_batches(planned, ReadMaxRows(4))
    assert max(map(len, bounded)) == 4
    assert [offset for one in bounded for offset in one] == offsets
    assert micro_batches(planned, ReadAllAvailable()) == [offsets]
    planned.stop()


def test_options_count_entries_and_not_offsets(server: Hosted) -> None:
    """One commit of 30 entries is one segment, which the store does not split by itself."""
    for size in (1, 30, 4):
        server.publish("t", *[NewMessage(b"x", {"n": n}) for n in range(size)])
        server.advance(1_000)
    assert [one.num_rows for one in pieces(server, maxRecordsPerPartition=10)] == [10, 10, 10, 1, 4]
    assert len(pieces(server, minPartitions=3)) == 3
    now = server.clock.now()
    started = pieces(server, startingTimestamp=now - 2_000)
    assert sum(one.num_rows for one in started) == 34
    planned = stream(server, maxBytesPerTrigger=12)
    limit = planned.getDefaultReadLimit()
    assert list(map(len, micro_batches(planned, limit))) == [12, 12, 11]
    planned.stop()
