"""Bodies that are large: no call takes its turn for long, and each is refused at its bound."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.model.limits import MAX_ASSIGN, MAX_BATCH
from penstock.testing.laws import law
from tests.unit.server.conftest import Door

PUBLISH = "/v1/topics/orders/messages"
BATCH_JSON = {"content-type": "application/vnd.penstock.batch+json"}
BATCH_MSGPACK = {"content-type": "application/vnd.penstock.batch+msgpack"}
MSGPACK = {"content-type": "application/msgpack"}


class Turns:
    """Counts the turns that others have while something is awaited."""

    def __init__(self) -> None:
        self.count = 0

    async def during(self, awaited: Any) -> Any:
        counting = asyncio.ensure_future(self._count())
        try:
            return await awaited
        finally:
            counting.cancel()

    async def _count(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)


def batch(count: int) -> dict[str, Any]:
    return {"messages": [{"payload": {"order": n, "text": "x" * 80}} for n in range(count)]}


@law("P3")
@pytest.mark.parametrize("count", [3, 5_000])
async def test_a_large_batch_is_what_a_small_one_is(door: Door, count: int) -> None:
    turns = Turns()
    given = batch(count)
    body = json.dumps(given).encode()
    reply = await turns.during(door.call("POST", PUBLISH, body, BATCH_JSON))
    assert reply.status == 201
    assert len(reply.json()["messages"]) == count
    packed = {
        "messages": [{"payload": json.dumps(one["payload"]).encode()} for one in given["messages"]]
    }
    reply = await door.call("POST", PUBLISH, msgspec.msgpack.encode(packed), BATCH_MSGPACK)
    assert reply.status == 201
    page = await door.broker.read_log(2 * count - 1, payloads=True)
    assert json.loads(page.entries[0].payload or b"") == given["messages"][-1]["payload"]
    # In pieces of 64 KiB, scanned in steps before.
    if count > 3:
        assert turns.count > len(body) // (64 * 1024)


@law("E1")
async def test_more_messages_than_a_batch_may_have(door: Door) -> None:
    body = b'{"messages":[' + b'{"payload":1},' * 100_000 + b'{"payload":1}]}'
    reply = await door.call("POST", PUBLISH, body, BATCH_JSON)
    assert (reply.status, reply.json()["limit"]) == (413, MAX_BATCH)
    packed = msgspec.msgpack.encode({"messages": [{"payload": b""}] * 100_000})
    reply = await door.call("POST", PUBLISH, packed, BATCH_MSGPACK)
    assert (reply.status, reply.json()["limit"]) == (413, MAX_BATCH)
    assert await door.broker.log_end() == 0


@law("E1")
@pytest.mark.parametrize(
    "method, path, body",
    [
        ("PUT", "/v1/queues/orders", b'{"description":"' + b"x" * 2**20 + b'"}'),
        ("PUT", "/v1/topics/orders", b'{"schema":"' + b"x" * 2**20 + b'"}'),
        ("POST", "/v1/keys", b'{"grants":[' + b'"",' * 2**19 + b'""]}'),
        ("POST", "/v1/queues/orders/claims", b'{"consumer":"' + b"x" * 2**20 + b'"}'),
    ],
)
async def test_a_call_without_long_lists_has_a_small_body(
    door: Door, method: str, path: str, body: bytes
) -> None:
    reply = await door.call(method, path, body, {"content-type": "application/json"})
    assert (reply.status, reply.json()["field"]) == (413, "body")


@law("E1")
@pytest.mark.parametrize(
    "path, name", [("replays", "ids"), ("assignments", "offsets")], ids=["replay", "assign"]
)
async def test_more_numbers_than_a_call_may_name(door: Door, path: str, name: str) -> None:
    await door.broker.create_queue("orders")
    fields = {"filter": "TRUE", "start": 0, "end": 0} if name == "offsets" else {}
    path = f"/v1/queues/orders/{path}"
    within = {**fields, name: list(range(MAX_ASSIGN))}
    beyond = {**fields, name: list(range(MAX_ASSIGN + 1))}
    for body, status in ((within, 413), (beyond, 413)):
        reply = await door.call("POST", path, body)
        packed = await door.call("POST", path, msgspec.msgpack.encode(body), MSGPACK)
        if body is within:
            # As many as are allowed come through to the verb.
            assert reply.status != status
            assert packed.json() | {"request_id": ""} == reply.json() | {"request_id": ""}
        else:
            assert (reply.status, reply.json()["limit"]) == (status, MAX_ASSIGN)
            assert (packed.status, packed.json()["limit"]) == (status, MAX_ASSIGN)


async def test_a_large_settle_that_publishes(door: Door) -> None:
    await door.broker.publish("orders", b"x")
    (delivery,) = await door.broker.claim("orders")
    messages = [{"payload": {"n": n, "text": "x" * 50}} for n in range(2_000)]
    body = {
        "settlements": [{"verb": "ack", "receipt": delivery.receipt}],
        "publish": [{"topic": "a", "messages": messages}, {"topic": "b", "messages": messages}],
    }
    reply = await door.call("POST", "/v1/queues/orders/settlements", body)
    assert reply.status == 200, reply.json()
    assert await door.broker.log_end() == 4_001
    packed = {
        "settlements": [{"verb": "ack", "receipt": delivery.receipt}],
        "publish": [{"topic": "a", "messages": [{"payload": b"x" * 99}] * 20_000}],
    }
    content = msgspec.msgpack.encode(packed)
    reply = await door.call("POST", "/v1/queues/orders/settlements", content, MSGPACK)
    assert (reply.status, reply.json()["field"]) == (413, "messages")


async def test_a_body_of_many_megabytes_is_read_like_a_small_one(door: Door) -> None:
    """Above 4 MiB it is put together step by step, in memory that is no bytes object."""
    text = "x" * 500_000
    given = {"messages": [{"payload_text": text, "id": str(n)} for n in range(12)]}
    for kind, body in (
        (BATCH_JSON, json.dumps(given).encode()),
        (
            BATCH_MSGPACK,
            msgspec.msgpack.encode({"messages": [{"payload": text.encode()}] * 12}),
        ),
    ):
        parts = [body[begin : begin + 300_000] for begin in range(0, len(body), 300_000)]
        turns = Turns()
        reply = await turns.during(door.call("POST", PUBLISH, parts=parts, headers=kind))
        assert (reply.status, len(reply.json()["messages"])) == (201, 12)
        assert turns.count > 12
    raw = {"content-type": "application/octet-stream"}
    reply = await door.call("POST", PUBLISH, parts=[b"x" * 2**20] * 6, headers=raw)
    assert (reply.status, reply.json()["field"]) == (413, "payload")
    sink = io.BytesIO()
    batch = pa.record_batch({"payload": [bytes([n]) * 600_000 for n in range(10)]})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write(batch)
    arrow = sink.getvalue()
    parts = [arrow[:3_000_000], arrow[3_000_000:]]
    kind = {"content-type": "application/vnd.apache.arrow.stream"}
    reply = await door.call("POST", PUBLISH, parts=parts, headers=kind)
    assert (reply.status, len(reply.json()["messages"])) == (201, 10)
    page = await door.broker.read_log(33, payloads=True)
    assert page.entries[0].payload == bytes([9]) * 600_000
