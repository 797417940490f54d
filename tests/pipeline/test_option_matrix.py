"""Every option of the tables in docs/pipeline.md does what its row says.

A row without a test here fails, and so does an option of the code without a row.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock import NewMessage
from penstock.errors import BadInput, OffsetsGone, Unauthenticated, Unreachable
from penstock.model.delivery import Reject
from penstock.model.message import HeaderValue
from penstock.pipeline.format.log_stream import LogStream
from penstock.pipeline.format.read_options import READ_OPTIONS, source_options
from penstock.pipeline.format.sink import STREAM_OPTIONS, WRITE_OPTIONS
from penstock.testing.clock import FakeClock
from tests.pipeline.hosted import Hosted
from tests.pipeline.reading import pieces, read, stream
from tests.pipeline.test_source_log import lose

DOCS: Final = Path(__file__).parents[2] / "docs" / "pipeline.md"
_SPARKS: Final = {"checkpointLocation", "queryName"}


def documented() -> dict[str, str]:
    """Options and what they are for, of every table of options."""
    found: dict[str, str] = {}
    for table in re.findall(
        r"\| option \| for \| means \|\n\|---.*\n((?:\|.*\n)+)", DOCS.read_text()
    ):
        for line in table.splitlines():
            name, whose = (cell.strip().strip("`") for cell in line.split("|")[1:3])
            found[name] = f"{found[name]}, {whose}" if name in found else whose
    return found


def offsets(server: Hosted, **options: Any) -> list[int]:
    return [row["offset"] for row in read(server, **options)]


def published(server: Hosted) -> None:
    """Offsets 0 to 4: topics a, b, a, ab, b, ten seconds apart."""
    for topic in ("a", "b", "a", "ab", "b"):
        headers: dict[str, HeaderValue] = {"n": 1, "s": "x"}
        server.publish(topic, NewMessage(b"payload", headers, partition_key="k"))
        server.advance(10_000)


def ends(planned: LogStream) -> list[int]:
    """Where micro-batches end, until there is nothing more."""
    at, found = planned.initialOffset(), []
    limit = planned.getDefaultReadLimit()
    while (end := planned.latestOffset(at, limit)) != at:
        found.append(end["offset"])
        at = end
    planned.stop()
    return found


# -- the server --------------------------------------------------------------------------


def url(server: Hosted) -> None:
    assert offsets(server) == [0, 1, 2, 3, 4]
    with pytest.raises(BadInput, match="url is missing"):
        source_options({"url": ""})


def path(server: Hosted) -> None:
    assert source_options({"path": server.url}).server.url == server.url


def credential(_: Hosted) -> None:
    guarded = Hosted("memory://", auth=True).start()
    try:
        assert offsets(guarded, credential=guarded.key("admin:*")) == []
        with pytest.raises(Unauthenticated):
            offsets(guarded)
    finally:
        guarded.stop()


def ca(server: Hosted) -> None:
    with pytest.raises((BadInput, Unreachable), match="nowhere"):
        offsets(server, url=server.url.replace("http:", "https:"), ca="/nowhere.pem")


def cert(server: Hosted) -> None:
    with pytest.raises((BadInput, Unreachable), match="nowhere"):
        offsets(server, url=server.url.replace("http:", "https:"), cert="/nowhere.pem")


def cert_key(server: Hosted) -> None:
    with pytest.raises(BadInput, match="key of cert"):
        offsets(server, url=server.url.replace("http:", "https:"), certKey="/nowhere.pem")


# -- what is read ------------------------------------------------------------------------


def table(server: Hosted) -> None:
    assert {row["transition"] for row in read(server, table="history")} == {"publish"}


def compression(server: Hosted) -> None:
    for name in ("zstd", "lz4", "none"):
        assert offsets(server, compression=name) == [0, 1, 2, 3, 4]


def topic(server: Hosted) -> None:
    assert offsets(server, topic="a, ab") == [0, 2, 3]


def subscribe(server: Hosted) -> None:
    assert offsets(server, subscribe="a,ab") == [0, 2, 3]


def subscribe_pattern(server: Hosted) -> None:
    assert offsets(server, subscribePattern="a.*") == [0, 2, 3]
    assert offsets(server, subscribePattern="a.") == [3]
    assert offsets(server, subscribePattern="b|ab") == [1, 3, 4]
    assert offsets(server, subscribePattern="ab?", where="n = 1") == [0, 2, 3]


def where(server: Hosted) -> None:
    assert offsets(server, where="topic = 'b' AND s = 'x'") == [1, 4]


def payload(server: Hosted) -> None:
    assert "value" not in read(server, payload=False)[0]
    assert read(server)[0]["value"] == b"payload"


def include_headers(server: Hosted) -> None:
    shaped = [{"key": "n", "value": b"1"}, {"key": "s", "value": b"x"}]
    assert read(server, includeHeaders=True)[0]["headers"] == shaped
    assert "headers" not in read(server, includeHeaders=False)[0]


def key_type(server: Hosted) -> None:
    assert read(server, keyType="binary")[0]["key"] == b"k"
    assert read(server, keyType="string")[0]["key"] == "k"


def queue(server: Hosted) -> None:
    assert {row["queue"] for row in read(server, table="deliveries", queue="b")} == {"b"}
    (delivery,) = server.claim("b")
    server.ask(lambda q: q.settle("b", [Reject(delivery.receipt, "broken")]))
    assert [row["offset"] for row in read(server, table="failed", queue="b")] == [1]
    assert {row["queue"] for row in read(server, table="history", queue="b")} == {"b"}


# -- positions ---------------------------------------------------------------------------


def starting_offsets(server: Hosted) -> None:
    assert offsets(server, startingOffsets="earliest") == [0, 1, 2, 3, 4]
    assert offsets(server, startingOffsets="latest") == []
    assert offsets(server, startingOffsets=3) == [3, 4]
    by_topic = {"subscribe": "a,b", "startingOffsets": '{"a": 1, "b": {"0": 2, "1": 2}}'}
    assert offsets(server, **by_topic) == [2, 4]
    both = {"subscribe": "a,b", "startingOffsets": '{"a": -2, "b": -1}'}
    assert offsets(server, **both) == [0, 2]
    # A stream remembers where single topics begin until it is past all of them.
    planned = stream(server, maxOffsetsPerTrigger=1, **by_topic)
    at = planned.initialOffset()
    found: list[int] = []
    while (end := planned.latestOffset(at, planned.getDefaultReadLimit())) != at:
        # As after a restart: where the first micro-batch began is looked up again.
        first = planned.initialOffset() if not found else at
        for part in planned.partitions(first, end):
            found += [row["offset"] for batch in planned.read(part) for row in batch.to_pylist()]
        at = end
    planned.stop()
    assert found == [2, 4]
    assert "topics" not in at


def starting_timestamp(server: Hosted) -> None:
    start = server.clock.now() - 30_000
    assert offsets(server, startingTimestamp=start) == [2, 3, 4]
    assert offsets(server, startingTimestamp=start + 1, startingOffsets=0) == [3, 4]
    assert offsets(server, startingTimestamp=0) == [0, 1, 2, 3, 4]
    planned = stream(server, startingTimestamp=start)
    assert planned.initialOffset()["offset"] == 2
    planned.stop()


def by_timestamp_strategy(server: Hosted) -> None:
    later = server.clock.now() + 1
    with pytest.raises(BadInput, match="startingOffsetsByTimestampStrategy to latest"):
        offsets(server, startingTimestamp=later)
    given = {"startingTimestamp": later, "startingOffsetsByTimestampStrategy": "latest"}
    assert offsets(server, **given) == []


def starting_by_timestamp(server: Hosted) -> None:
    now = server.clock.now()
    times = json.dumps({"a": now - 45_000, "b": {"0": now - 10_000}})
    assert offsets(server, subscribe="a,b", startingOffsetsByTimestamp=times) == [2, 4]


def ending_offsets(server: Hosted) -> None:
    assert offsets(server, endingOffsets=2) == [0, 1]
    assert offsets(server, endingOffsets="latest") == [0, 1, 2, 3, 4]
    assert offsets(server, endingOffsets="earliest") == []
    assert offsets(server, subscribe="a,b", endingOffsets='{"a": 1, "b": -1}') == [0, 1, 4]


def ending_timestamp(server: Hosted) -> None:
    now = server.clock.now()
    assert offsets(server, endingTimestamp=now - 30_000) == [0, 1]
    assert offsets(server, endingTimestamp=now + 1) == [0, 1, 2, 3, 4]


def ending_by_timestamp(server: Hosted) -> None:
    now = server.clock.now()
    times = json.dumps({"a": now - 30_000, "b": now})
    assert offsets(server, subscribe="a,b", endingOffsetsByTimestamp=times) == [0, 1, 4]


# -- partitions --------------------------------------------------------------------------


def entries_per_partition(server: Hosted) -> None:
    assert [piece.num_rows for piece in pieces(server, entriesPerPartition=2)] == [2, 2, 1]


def max_records_per_partition(server: Hosted) -> None:
    assert [piece.num_rows for piece in pieces(server, maxRecordsPerPartition=2)] == [2, 2, 1]
    both = {"entriesPerPartition": 4, "maxRecordsPerPartition": 3}
    assert max(piece.num_rows for piece in pieces(server, **both)) == 3


def min_partitions(server: Hosted) -> None:
    assert len(pieces(server)) == 1
    assert len(pieces(server, minPartitions=3)) >= 3
    assert len(pieces(server, minPartitions=50)) == 5


def fail_on_data_loss(server: Hosted) -> None:
    for name in ("a", "ab", "b"):
        server.ask(lambda q, name=name: q.delete_queue(name))  # type: ignore[misc]
    lost = lose(server)
    with pytest.raises(OffsetsGone):
        offsets(server, startingOffsets=lost[0])
    assert not set(offsets(server, startingOffsets=lost[0], failOnDataLoss=False)) & set(lost)


# -- triggers ----------------------------------------------------------------------------


def max_offsets(server: Hosted) -> None:
    assert ends(stream(server, maxOffsetsPerTrigger=2)) == [2, 4, 5]


def max_bytes(server: Hosted) -> None:
    assert ends(stream(server, maxBytesPerTrigger="14b")) == [2, 4, 5]
    # One entry at least, and the lower of two limits.
    assert ends(stream(server, maxBytesPerTrigger=1)) == [1, 2, 3, 4, 5]
    assert ends(stream(server, maxBytesPerTrigger="1m", maxOffsetsPerTrigger=3)) == [3, 5]
    assert ends(stream(server, maxBytesPerTrigger=14, maxOffsetsPerTrigger=3)) == [2, 4, 5]
    assert ends(stream(server, maxBytesPerTrigger=14, topic="a")) == [5]


def min_offsets(server: Hosted) -> None:
    clock = FakeClock()
    planned = stream(server, minOffsetsPerTrigger=3, maxTriggerDelay="1m")
    planned = LogStream(planned._options, planned._schema, clock)
    everything = ReadAllAvailable()
    # As in Kafka's source, the first micro-batch does not wait.
    first = planned.latestOffset(planned.initialOffset(), everything)
    assert first["offset"] == 5
    server.publish("a", b"1", b"2")
    assert planned.latestOffset(first, everything) == first
    clock.advance(59_999)
    assert planned.latestOffset(first, everything) == first
    clock.advance(1)
    second = planned.latestOffset(first, everything)
    assert second["offset"] == 7
    server.publish("a", b"1", b"2")
    assert planned.latestOffset(second, everything) == second
    server.publish("a", b"3")
    assert planned.latestOffset(second, everything)["offset"] == 10
    # A query that ends with what is there does not wait.
    server.publish("a", b"1")
    planned.prepareForTriggerAvailableNow()
    assert planned.latestOffset(second, everything)["offset"] == 11
    planned.stop()


SCENARIOS: Final[dict[str, Callable[[Hosted], None]]] = {
    "url": url,
    "path": path,
    "credential": credential,
    "ca": ca,
    "cert": cert,
    "certKey": cert_key,
    "table": table,
    "compression": compression,
    "topic": topic,
    "subscribe": subscribe,
    "subscribePattern": subscribe_pattern,
    "where": where,
    "payload": payload,
    "includeHeaders": include_headers,
    "keyType": key_type,
    "queue": queue,
    "startingOffsets": starting_offsets,
    "startingTimestamp": starting_timestamp,
    "startingOffsetsByTimestamp": starting_by_timestamp,
    "startingOffsetsByTimestampStrategy": by_timestamp_strategy,
    "endingOffsets": ending_offsets,
    "endingTimestamp": ending_timestamp,
    "endingOffsetsByTimestamp": ending_by_timestamp,
    "entriesPerPartition": entries_per_partition,
    "maxRecordsPerPartition": max_records_per_partition,
    "minPartitions": min_partitions,
    "failOnDataLoss": fail_on_data_loss,
    "maxOffsetsPerTrigger": max_offsets,
    "maxBytesPerTrigger": max_bytes,
    "minOffsetsPerTrigger": min_offsets,
    "maxTriggerDelay": min_offsets,
}
Write: TypeAlias = Callable[[Hosted, Callable[..., None]], None]


# -- writing -----------------------------------------------------------------------------


def usual_topic(server: Hosted, write: Callable[..., None]) -> None:
    write(1, topic="t")
    assert server.payloads("t") == Counter([b"0"])


def write_id(server: Hosted, write: Callable[..., None]) -> None:
    write(4, topic="t", writeId="nightly")
    write(4, topic="t", writeId="nightly")
    assert server.payloads("t").total() == 4


def same_partitions(server: Hosted, write: Callable[..., None]) -> None:
    with pytest.raises(PySparkException, match="samePartitions"):
        write(1, topic="t", writeId="nightly", grows=True)
    write(1, topic="t", writeId="nightly", samePartitions=True)
    assert server.payloads("t").total() == 1


def grows(server: Hosted, write: Callable[..., None]) -> None:
    for rows in (2, 3):
        write(rows, topic="t", writeId="nightly", samePartitions=True, grows=True)
    assert server.payloads("t") == Counter([b"0", b"1", b"2"])


WRITES: Final[dict[str, Write]] = {
    "topic": usual_topic,
    "writeId": write_id,
    "samePartitions": same_partitions,
    "grows": grows,
}


def test_every_option_is_documented() -> None:
    known = {name for names in READ_OPTIONS.values() for name in names}
    assert set(documented()) == known | set(WRITE_OPTIONS) | set(STREAM_OPTIONS) - _SPARKS
    for name, whose in documented().items():
        tables = {table for table, names in READ_OPTIONS.items() if name in names}
        if "all" not in whose and "read" not in whose:
            assert tables == {one for one in READ_OPTIONS if re.search(rf"\b{one}\b", whose)}


@pytest.mark.parametrize(
    "option", [name for name, whose in documented().items() if name in SCENARIOS or "log" in whose]
)
def test_an_option_of_the_source(option: str, server: Hosted) -> None:
    published(server)
    SCENARIOS[option](server)


@pytest.mark.parametrize(
    "option", [name for name, whose in documented().items() if re.search("write|batch$", whose)]
)
def test_an_option_of_the_sink(option: str, server: Hosted, spark: SparkSession) -> None:
    def write(rows: int, **options: Any) -> None:
        frame = spark.range(0, rows, 1, 1).selectExpr("cast(id AS string) AS value")
        given = server.options(**options)
        frame.write.format("penstock").options(**given).mode("append").save()

    WRITES[option](server, write)
