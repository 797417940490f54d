"""The table ``log`` in batch: what was published is what is read, however it is cut (L1, L2)."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

from penstock import NewMessage
from penstock.errors import OffsetsGone
from penstock.model.checksum import checksum
from penstock.pipeline.format.ranges import Range
from penstock.server import bulk
from tests.pipeline.hosted import Hosted
from tests.pipeline.reading import pieces, read, reader
from tests.unit.client.hosting import Fault


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_every_value_comes_as_it_was_published(server: Hosted) -> None:
    now = server.clock.now()
    server.publish(
        "orders",
        NewMessage(
            "naïve ☃ 😀".encode(),
            {
                "text": "naïve ☃ 😀",
                "empty": "",
                "least": -(2**63),
                "most": 2**63 - 1,
                "real": 0.1,
                "infinite": math.inf,
                "yes": True,
                "no": False,
                "größe": 1,
            },
            key="schlüssel",
            partition_key="p-1",
            priority=9,
            content_type="text/plain; charset=utf-8",
            deliver_at=now + 12_345,
            expires_at=253_402_300_799_999,
            max_attempts=65_535,
        ),
        NewMessage(b""),
        NewMessage(bytes(range(256)), priority=0),
    )
    first, empty, binary = read(server)
    first["headers"] = dict(first["headers"])

    payload = "naïve ☃ 😀".encode()
    assert first == {
        "offset": first["id"],
        "id": first["id"],
        "topic": "orders",
        "key": "p-1",
        "value": payload,
        "headers": {
            "text": {"s": "naïve ☃ 😀", "i": None, "d": None, "b": None},
            "empty": {"s": "", "i": None, "d": None, "b": None},
            "least": {"s": None, "i": -(2**63), "d": None, "b": None},
            "most": {"s": None, "i": 2**63 - 1, "d": None, "b": None},
            "real": {"s": None, "i": None, "d": 0.1, "b": None},
            "infinite": {"s": None, "i": None, "d": math.inf, "b": None},
            "yes": {"s": None, "i": None, "d": None, "b": True},
            "no": {"s": None, "i": None, "d": None, "b": False},
            "größe": {"s": None, "i": 1, "d": None, "b": None},
        },
        "timestamp": moment(now),
        "partition_key": "p-1",
        "priority": 9,
        "content_type": "text/plain; charset=utf-8",
        "deliver_at": moment(now + 12_345),
        "expires_at": datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC),
        "size": len(payload),
        "checksum": checksum(payload),
        "max_attempts": 65_535,
        "replace_key": "schlüssel",
    }
    assert (empty["value"], empty["size"], empty["priority"], empty["headers"]) == (b"", 0, 4, [])
    assert (empty["key"], empty["replace_key"], empty["content_type"]) == (None, None, None)
    assert empty["deliver_at"] == empty["timestamp"] == moment(now)
    assert (empty["expires_at"], empty["max_attempts"]) == (None, None)
    assert (binary["value"], binary["priority"]) == (bytes(range(256)), 0)


def test_a_keyed_replacement_is_an_entry_of_its_own(server: Hosted) -> None:
    (first,) = server.publish("orders", NewMessage(b"old", key="k"))
    (second,) = server.publish("orders", NewMessage(b"new", key="k"))
    assert second.replaced
    assert [(row["offset"], row["id"], row["value"]) for row in read(server)] == [
        (first.offset, first.id, b"old"),
        (second.offset, first.id, b"new"),
    ]


def test_partitions_have_every_entry_once(server: Hosted) -> None:
    for start in range(0, 100, 20):
        server.publish("t", *(str(number).encode() for number in range(start, start + 20)))
    found = pieces(server, entriesPerPartition=7)
    assert [piece.num_rows for piece in found] == [7] * 14 + [2]
    values = [value for piece in found for value in piece.column("value").to_pylist()]
    assert values == [str(number).encode() for number in range(100)]


def test_the_size_of_partitions_goes_by_that_of_payloads(server: Hosted) -> None:
    server.publish("t", *[bytes(100_000)] * 50)
    assert len(reader(server).partitions()) == 1
    server.publish("t", *[b""] * 1_500)
    # The first ones are 100 kB each, those in the middle nothing: the mean decides.
    assert len(reader(server).partitions()) == 2
    assert len(reader(server, payload=False).partitions()) == 1


def test_a_log_with_nothing_in_it_has_no_partitions(server: Hosted) -> None:
    assert pieces(server) == []
    # Spark makes one up then.
    assert list(reader(server).read(InputPartition(None))) == []


def test_without_payloads_the_rest_is_the_same(server: Hosted) -> None:
    server.publish("t", NewMessage(b"x" * 100, {"a": 1}), NewMessage(b"y", key="k"))
    whole = read(server)
    for row in whole:
        del row["value"]
    assert read(server, payload=False) == whole


def test_offsets_bound_the_read(server: Hosted) -> None:
    offsets = [one.offset for one in server.publish("t", *[b"x"] * 10)]

    def found(**options: object) -> list[int]:
        return [row["offset"] for row in read(server, **options)]

    assert found(startingOffsets=offsets[3], endingOffsets=offsets[7]) == offsets[3:7]
    assert found(startingOffsets="latest") == []
    assert found(startingOffsets="EARLIEST", endingOffsets=offsets[9] + 1_000) == offsets
    assert found(startingOffsets=offsets[9] + 500) == []
    assert found(startingOffsets=offsets[9] + 500, endingOffsets=offsets[9] + 600) == []


def test_what_comes_after_planning_is_not_read(server: Hosted) -> None:
    server.publish("t", b"before")
    planned = reader(server)
    (part,) = planned.partitions()
    server.publish("t", b"after")
    batches: list[Any] = list(planned.read(part))
    assert [batch.column("value").to_pylist() for batch in batches] == [[b"before"]]


@pytest.mark.parametrize("compression", ["none", "lz4", "ZSTD"])
def test_topic_and_where_choose(server: Hosted, compression: str) -> None:
    for topic in ("orders", "it-s", "billing"):
        server.publish(topic, *(NewMessage(b"x", {"amount": amount}) for amount in (1, 5, 9)))

    def found(**options: object) -> list[tuple[str, int]]:
        rows = read(server, compression=compression, **options)
        return [(row["topic"], dict(row["headers"])["amount"]["i"]) for row in rows]

    assert found(topic="orders") == [("orders", 1), ("orders", 5), ("orders", 9)]
    assert found(topic="orders, billing", where="amount > 5 OR amount = 1") == [
        ("orders", 1),
        ("orders", 9),
        ("billing", 1),
        ("billing", 9),
    ]
    assert found(where="topic LIKE '%-s' AND amount = 5") == [("it-s", 5)]
    assert found(where="nothing = 1") == []


def test_many_streams_make_one_partition(server: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server gives at once is bounded, and so is what waits for Spark."""
    monkeypatch.setattr(bulk, "STREAM_BYTES", 3 * 1024 * 1024)
    monkeypatch.setattr(bulk, "BATCH_BYTES", 1024 * 1024)
    payloads = [bytes([number]) * 400_000 for number in range(30)]
    for start in range(0, 30, 10):
        server.publish("t", *payloads[start : start + 10])
    (found,) = pieces(server, entriesPerPartition=100)
    assert found.column("value").to_pylist() == payloads
    asked = [seen for seen in server.host.requests if "format=arrow" in seen.path]
    assert len(asked) >= 4


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.LOSE, Fault.DROP])
def test_a_reply_that_is_lost_is_asked_for_again(server: Hosted, fault: Fault) -> None:
    offsets = [one.offset for one in server.publish("t", *[b"x"] * 20)]
    for path in ("/v1/log?", "/v1/log/start", "/v1/log/splits", "format=arrow"):
        server.host.fault(fault, path)
    assert [row["offset"] for row in read(server, entriesPerPartition=8)] == offsets


# -- retention -------------------------------------------------------------------------


def lose(server: Hosted) -> list[int]:
    """Publish three entries, and let them be forgotten; those that were before go with them."""
    server.ask(lambda q: q.create_queue("sink", "TRUE"))
    offsets: list[int] = [one.offset for one in server.publish("t", *[b"lost"] * 3)]
    server.ask(lambda q: q.delete_queue("sink"))
    server.forget()
    return offsets


def test_offsets_that_are_gone_are_told_before_anything_is_read(server: Hosted) -> None:
    lost = lose(server)
    kept = server.publish("t", b"kept")[0].offset
    first = server.ask(lambda q: q.log_start())
    assert lost[-1] < first <= kept
    with pytest.raises(
        OffsetsGone, match=f"offset {lost[0]}, but .* up to {lost[-1]}; .* failOnDataLoss=false"
    ):
        reader(server, startingOffsets=lost[0]).partitions()
    # Nobody asked for them here.
    assert kept in [row["offset"] for row in read(server)]
    assert kept in [row["offset"] for row in read(server, startingOffsets=first)]


def test_offsets_that_were_left_out_are_not_gone(tmp_path: Path) -> None:
    store = f"rocksdb://{tmp_path}/store"
    before = Hosted(store).start()
    before.publish("t", *[b"lost"] * 3)
    end = before.ask(lambda q: q.log_end())
    before.stop()
    # A store that is opened again leaves offsets out, so that the log soon begins far above.
    server = Hosted(store).start()
    try:
        server.ask(lambda q: q.delete_queue("t"))
        server.forget()
        assert server.ask(lambda q: q.log_start()) > end
        assert server.ask(lambda q: q.log_trimmed()) == end
        assert [row["topic"] for row in read(server, startingOffsets=end)] == ["after-forgetting"]
        with pytest.raises(OffsetsGone):
            read(server, startingOffsets=end - 1)
    finally:
        server.stop()


def test_offsets_that_are_gone_may_be_passed_over(
    server: Hosted, caplog: pytest.LogCaptureFixture
) -> None:
    lost = lose(server)
    kept = server.publish("t", b"kept")[0].offset
    found = read(server, startingOffsets=lost[0], failOnDataLoss=False)
    assert found[-1]["offset"] == kept
    assert all(row["value"] != b"lost" for row in found)
    assert f"starts at offset {lost[0]}," in caplog.text
    # There is nothing left of this part.
    assert read(server, startingOffsets=lost[0], endingOffsets=lost[2], failOnDataLoss=False) == []


def test_entries_that_go_while_they_are_read_are_missed(server: Hosted) -> None:
    lost = lose(server)
    part = Range(lost[0], lost[-1] + 1)
    with pytest.raises(OffsetsGone):
        list(reader(server).read(part))
    assert list(reader(server, failOnDataLoss=False).read(part)) == []
