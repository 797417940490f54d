"""Arrow streams of the log, of histories and of deliveries: whole, bounded, and resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from penstock import NewMessage
from penstock.model.delivery import Snapshot
from penstock.model.message import HeaderValue
from penstock.server import bulk
from penstock.testing.laws import law
from penstock.wire.arrow import (
    DELIVERY_SCHEMA,
    HISTORY_SCHEMA,
    LOG_SCHEMA,
    StreamWriter,
    delivery_batch,
    with_payloads,
)
from penstock.wire.codecs import ARROW_STREAM
from tests.unit.server.conftest import Door

LOG = "/v1/log?format=arrow"


async def stream(door: Door, target: str) -> list[tuple[pa.RecordBatch, dict[str, str]]]:
    """The batches of one stream, each with its custom metadata."""
    answer = await door.call("GET", target)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == ARROW_STREAM
    found: list[tuple[pa.RecordBatch, dict[str, str]]] = []
    with pa.ipc.open_stream(answer.body) as reader:
        while True:
            try:
                batch, mark = reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                return found
            found.append((batch, {name.decode(): text.decode() for name, text in mark.items()}))


async def whole(door: Door, target: str, end: int | None = None) -> pa.Table:
    """What one stream after the other gives, up to an offset or until there is no cursor."""
    batches: list[pa.RecordBatch] = []
    going_on = ""
    for _ in range(1000):
        found = await stream(door, target + going_on)
        batches += [batch for batch, _ in found]
        mark = found[-1][1]
        if end is None:
            if not mark["cursor"]:
                return pa.Table.from_batches(batches)
            going_on = f"&cursor={mark['cursor']}"
        else:
            position = int(mark["next_offset"])
            if position >= end:
                return pa.Table.from_batches(batches)
            going_on = f"&from={position}"
    raise AssertionError("the streams never end")


async def publish(door: Door, count: int, size: int = 3, **fields: Any) -> None:
    messages = [NewMessage(b"%03d" % n * (size // 3), {"n": n}, **fields) for n in range(count)]
    await door.broker.publish_batch("orders", messages)


@pytest.mark.parametrize("compression", ["", "&compression=none", "&compression=lz4"])
async def test_the_log_with_every_column(door: Door, compression: str) -> None:
    await publish(door, 3, key=None, partition_key="p", content_type="text/plain", priority=7)
    await door.broker.publish("stock", b"", ttl_ms=5, delay_ms=3, max_attempts=9)
    table = await whole(door, f"{LOG}&payloads=true{compression}", 4)
    assert table.schema.equals(LOG_SCHEMA)
    entries = (await door.broker.read_log(payloads=True)).entries
    rows = table.to_pylist()
    for row, entry in zip(rows, entries, strict=True):
        assert row.pop("payload") == entry.payload
        headers = {name: value["i"] for name, value in row.pop("headers")}
        assert headers == entry.message.headers
        assert row == {name: getattr(entry.message, name) for name in row}
    bare = await whole(door, LOG, 4)
    assert bare.column("payload").null_count == 4
    assert bare.drop_columns("payload").equals(table.drop_columns("payload"))


async def test_streams_are_bounded_and_the_next_goes_on(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "STREAM_BYTES", 5_000)
    monkeypatch.setattr(bulk, "BATCH_BYTES", 1_000)
    monkeypatch.setattr(bulk, "_BATCH", 7)
    await publish(door, 50, size=300)
    first = await stream(door, f"{LOG}&payloads=true")
    assert 5 <= sum(batch.num_rows for batch, _ in first) <= 20
    for (before, mark), (after, _) in pairwise(first):
        assert before.num_rows <= 4
        assert int(mark["next_offset"]) == after.column("offset")[0].as_py()
    table = await whole(door, f"{LOG}&payloads=true", 50)
    assert table.column("offset").to_pylist() == list(range(50))
    assert table.column("payload").to_pylist() == [b"%03d" % n * 100 for n in range(50)]


async def test_a_payload_that_is_larger_than_a_batch(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH_BYTES", 100)
    sizes = [300, 0, 50, 50, 1, 300]
    for size in sizes:
        await door.broker.publish("orders", b"x" * size)
    batches = [batch for batch, _ in await stream(door, f"{LOG}&payloads=true")]
    assert [batch.column("size").to_pylist() for batch in batches] == [
        [300],
        [0, 50, 50],
        [1],
        [300],
    ]


async def test_a_part_of_the_log(door: Door) -> None:
    await publish(door, 10)
    table = await whole(door, f"{LOG}&to=7", 7)
    assert table.column("offset").to_pylist() == list(range(7))
    ((batch, mark),) = await stream(door, f"{LOG}&from=3&to=5")
    assert batch.column("offset").to_pylist() == [3, 4]
    assert mark == {"next_offset": "5"}
    for beyond in ("&from=10", "&from=3&to=3", "&from=99&to=200"):
        ((batch, mark),) = await stream(door, LOG + beyond)
        assert batch.num_rows == 0
        assert mark == {"next_offset": beyond[6:].partition("&")[0]}


@law("R1")
async def test_only_what_a_filter_is_true_for(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_BATCH", 4)
    await publish(door, 20)
    where = "&payloads=true&where=n+IN+(2,13,14)"
    found = await stream(door, LOG + where)
    # Parts of the log without any are left out, but for the last, which says where to go on.
    assert [(batch.num_rows, mark["next_offset"]) for batch, mark in found] == [
        (1, "4"),
        (2, "16"),
        (0, "20"),
    ]
    table = pa.Table.from_batches([batch for batch, _ in found])
    assert table.column("payload").to_pylist() == [b"002", b"013", b"014"]
    monkeypatch.setattr(bulk, "_SCAN", 10)
    ((batch, mark),) = await stream(door, f"{LOG}&where=n+>+900")
    assert (batch.num_rows, mark["next_offset"]) == (0, "12")


@law("G1")
async def test_what_retention_takes_while_a_stream_is_made(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(door, 10)
    engine = door.broker.engine
    real, calls = engine.read_payloads, []

    async def gone(tenant: str, offsets: Any, *rest: Any) -> Any:
        calls.append(offsets[0])
        if len(calls) == 1:
            return None
        return await real(tenant, offsets, *rest)

    monkeypatch.setattr(engine, "read_payloads", gone)
    table = await whole(door, f"{LOG}&payloads=true", 10)
    assert calls == [0, 0]
    assert table.column("offset").to_pylist() == list(range(10))


async def test_a_server_that_stops_ends_its_streams(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_BATCH", 4)
    await publish(door, 20)
    door.service.stopping.set()
    ((batch, mark),) = await stream(door, LOG)
    assert (batch.num_rows, mark) == (4, {"next_offset": "4"})


async def test_others_have_their_turn_while_a_stream_is_made(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_BATCH", 10)
    await publish(door, 1000)
    reading = asyncio.ensure_future(stream(door, f"{LOG}&payloads=true"))
    turns = 0
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 100
    assert sum(batch.num_rows for batch, _ in await reading) == 1000


async def test_histories_of_all_queues_and_of_one(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_HISTORIES", 2)
    q = door.broker
    for name in ("a", "b"):
        await q.create_queue(name, max_attempts=1)
    await publish(door, 5)
    door.clock.advance(5)
    for delivery in await q.claim("b", limit=2, consumer="w"):
        await q.nack(delivery, error="broken")
    table = await whole(door, "/v1/history?format=arrow", 5)
    assert table.schema.equals(HISTORY_SCHEMA)
    rows = table.to_pylist()
    for number in range(5):
        own = [row for row in rows if row["message_id"] == number]
        events = await q.history(number)
        assert [(row["at"], row["queue"], row["transition"]) for row in own] == [
            (event.at, event.queue, event.transition) for event in events
        ]
        assert [row["error"] for row in own] == [event.error for event in events]
        assert [row["consumer"] for row in own] == [event.consumer for event in events]
        assert [row["state"] for row in own] == [event.state for event in events]
        for queue in ("a", "b"):
            numbers = [row["seq"] for row in own if row["queue"] == queue]
            assert numbers == list(range(len(numbers)))
    one = await whole(door, "/v1/queues/b/history?format=arrow&to=3", 3)
    assert one.to_pylist() == [r for r in rows if r["queue"] == "b" and r["message_id"] < 3]
    ((batch, mark),) = await stream(door, "/v1/history?from=5")
    assert (batch.num_rows, mark) == (0, {"next_offset": "5"})


async def test_deliveries_in_every_state(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MAX_PAGE", 3)
    q = door.broker
    await q.create_queue("a", max_attempts=2)
    await publish(door, 10, size=30)
    for delivery in await q.claim("a", limit=4, consumer="w"):
        await q.reject(delivery, error="broken")
    path = "/v1/queues/a/deliveries?format=arrow"
    table = await whole(door, f"{path}&state=failed&payloads=true")
    assert table.schema.equals(DELIVERY_SCHEMA)
    page = await q.peek("a", "failed", payloads=True)
    rows = table.to_pylist()
    names = ("attempts", "released", "at", "claimed_at", "lease_deadline", "consumer", "error")
    for row, item in zip(rows, page.items, strict=True):
        assert [row[name] for name in names] == [getattr(item, name) for name in names]
        assert (row["state"], row["payload"], row["id"]) == (
            "failed",
            item.payload,
            item.message.id,
        )
        assert row["deliver_at"] == item.message.deliver_at
    table = await whole(door, f"{path}&where=n+>+7")
    assert table.column("id").to_pylist() == [8, 9]
    assert table.column("payload").null_count == 2
    ((batch, mark),) = await stream(door, f"{path}&state=done")
    assert (batch.num_rows, mark) == (0, {"cursor": ""})


async def test_deliveries_with_payloads_are_bounded(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH_BYTES", 100)
    await door.broker.publish_batch("orders", [NewMessage(bytes(30))] * 10)
    path = "/v1/queues/orders/deliveries?format=arrow&payloads=true"
    batches = [batch for batch, _ in await stream(door, path)]
    assert [batch.num_rows for batch in batches] == [3, 3, 3, 1]


async def test_deliveries_with_many_headers_are_bounded(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH_BYTES", 4_000)
    monkeypatch.setattr(bulk, "_SLICE_HEADERS", 20)
    built: list[int] = []
    build = delivery_batch

    def counting(items: Sequence[Snapshot]) -> pa.RecordBatch:
        built.append(sum(len(item.message.headers) for item in items))
        return build(items)

    monkeypatch.setattr(bulk, "delivery_batch", counting)
    headers: dict[str, HeaderValue] = {f"h{number}": "v" * 48 for number in range(10)}
    await door.broker.publish_batch("orders", [NewMessage(b"", headers | {"n": 1})] * 5)
    path = "/v1/queues/orders/deliveries?format=arrow"
    batches = [batch for batch, _ in await stream(door, path)]
    # About 2,200 bytes each: a batch has one message. Their headers come back unchanged.
    assert [batch.num_rows for batch in batches] == [1] * 5
    assert max(built) <= 22
    monkeypatch.setattr(bulk, "BATCH_BYTES", 100_000)
    (whole,) = [batch for batch, _ in await stream(door, path)]
    assert len(built) == 5 + 5
    names = [dict(row)["h3"]["s"] for row in whole.column("headers").to_pylist()]
    assert names == ["v" * 48] * 5


@law("E1")
@pytest.mark.parametrize(
    "target, field",
    [
        (f"{LOG}&from=9&to=3", "to"),
        (f"{LOG}&where=n+>", "where"),
        (f"{LOG}&compression=gzip", "compression"),
        (f"{LOG}&from=-1", "start"),
        ("/v1/log?where=TRUE", "where"),
        ("/v1/history?format=json", "format"),
        ("/v1/history?from=-1", "start"),
        ("/v1/queues/orders/history?to=3", "to"),
        ("/v1/queues/orders/history?format=xml", "format"),
        ("/v1/queues/orders/deliveries?format=xml", "format"),
        ("/v1/queues/orders/deliveries?format=arrow&cursor=é", "query"),
        ("/v1/queues/orders/deliveries?format=arrow&cursor=x+y", "cursor"),
        ("/v1/log/splits?from=5&to=3&entries=1", "end"),
        ("/v1/log/splits?from=0&to=3&entries=0", "entries"),
    ],
)
async def test_what_is_refused(door: Door, target: str, field: str) -> None:
    await publish(door, 1)
    answer = await door.call("GET", target)
    assert (answer.status, answer.json().get("field")) == (400, field)


async def test_streams_of_a_queue_that_is_not_there(door: Door) -> None:
    for path in ("history", "deliveries"):
        answer = await door.call("GET", f"/v1/queues/nowhere/{path}?format=arrow")
        assert answer.status == 404


async def test_where_the_log_begins_and_how_it_is_cut(door: Door) -> None:
    await publish(door, 10)
    assert (await door.call("GET", "/v1/log/start")).json() == {"offset": 0}
    splits = await door.call("GET", "/v1/log/splits?from=2&to=99&entries=3")
    assert splits.json() == {"offsets": [2, 5, 8, 10]}


# -- writing ---------------------------------------------------------------------------


def test_payloads_go_into_the_stream_as_they_are() -> None:
    """Without a copy; and no part is empty, which would end a reply that comes in chunks."""
    schema = pa.schema([("size", pa.int64()), ("payload", pa.binary())])
    empty = pa.RecordBatch.from_arrays([pa.array([3, 7]), pa.nulls(2, pa.binary())], schema=schema)
    data = b"one" + b"another"
    writer = StreamWriter(schema, "none")
    parts = writer.write(with_payloads(empty, data), {}, data)
    assert [part for part in parts if part is data] == [data]
    parts += writer.write(empty, {}) + writer.finish()
    assert all(parts)
    table = pa.ipc.open_stream(b"".join(parts)).read_all()
    assert table.column("payload").to_pylist() == [b"one", b"another", None, None]
