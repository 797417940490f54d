"""Waiting over HTTP: long polls, streams, hanging up, and stopping."""

from __future__ import annotations

import asyncio
import json

import pytest

from penstock.model.states import State
from penstock.server.access import Access, Keys
from penstock.server.service import ServiceLimits
from penstock.testing.laws import law
from tests.unit.server.conftest import Door, application

PUBLISH = "/v1/topics/orders/messages"
CLAIM = "/v1/queues/orders/claims"
SETTLE = "/v1/queues/orders/settlements"


async def waits(door: Door, count: int) -> None:
    """Until so many calls wait."""
    async with asyncio.timeout(60):
        while door.service.waits != count:  # noqa: ASYNC110  (a turn of the loop, no time)
            await asyncio.sleep(0)


@law("C5")
async def test_a_waiting_claim_is_woken_by_a_publish(door):
    await door.call("PUT", "/v1/queues/orders", {})
    claiming = asyncio.ensure_future(door.call("POST", CLAIM, {"wait_ms": 20_000}))
    await waits(door, 1)
    await door.call("POST", PUBLISH, b"x")
    async with asyncio.timeout(60):
        reply = await claiming
    assert len(reply.json()["deliveries"]) == 1
    assert door.service.waits == 0


async def test_a_caller_that_hangs_up_is_handed_nothing(door):
    await door.call("PUT", "/v1/queues/orders", {})
    leave = asyncio.Event()
    claiming = asyncio.ensure_future(door.call("POST", CLAIM, {"wait_ms": 20_000}, leave=leave))
    await waits(door, 1)
    leave.set()
    async with asyncio.timeout(60):
        reply = await claiming
    assert reply.status == 0
    await door.call("POST", PUBLISH, b"x")
    assert (await door.broker.stats("orders")).available == 1


async def test_a_stopping_server_sends_waiting_callers_home(door):
    await door.call("PUT", "/v1/queues/orders", {})
    claiming = asyncio.ensure_future(door.call("POST", CLAIM, {"wait_ms": 20_000}))
    await waits(door, 1)
    door.service.stopping.set()
    async with asyncio.timeout(60):
        reply = await claiming
    assert reply.json() == {"deliveries": []}
    refused = await door.call("POST", CLAIM, {"wait_ms": 20_000})
    assert refused.status == 503
    assert refused.headers["retry-after"] == "1"
    assert (await door.call("GET", "/readyz")).status == 503
    assert (await door.call("GET", "/healthz")).status == 200


async def test_waiting_calls_are_bounded(door):
    small = Door(
        application(
            door.broker,
            Access(door.clock, Keys(door.broker.engine, door.clock), enabled=False),
            ServiceLimits(waits=1),
        ),
        door.broker,
        door.clock,
    )
    await small.call("PUT", "/v1/queues/orders", {})
    first = asyncio.ensure_future(small.call("POST", CLAIM, {"wait_ms": 20_000}))
    await waits(small, 1)
    second = await small.call("POST", CLAIM, {"wait_ms": 20_000})
    assert second.status == 503
    assert second.json()["type"] == "urn:penstock:problem:busy"
    assert (await small.call("POST", CLAIM, {})).status == 200
    small.service.stopping.set()
    await first


async def test_a_result_is_waited_for(door):
    await door.call("POST", PUBLISH, b"x")
    [delivery] = (await door.call("POST", CLAIM, {})).json()["deliveries"]
    path = "/v1/messages/0/result?queue=orders"
    assert (await door.call("GET", path)).json() == {"result": None}
    asking = asyncio.ensure_future(door.call("GET", path + "&wait_ms=20000"))
    await waits(door, 1)
    ack = {"receipt": delivery["receipt"], "verb": "ack", "result": "b2s="}
    await door.call("POST", SETTLE, {"settlements": [ack]})
    async with asyncio.timeout(60):
        assert (await asking).json()["result"]["result"] == "b2s="


def events(chunks: list[bytes]) -> list[dict]:
    """The deliveries in what a stream has sent so far."""
    blocks = b"".join(chunks).decode().split("\n\n")
    found = []
    for block in blocks:
        if block.startswith("event: delivery"):
            data = [line[6:] for line in block.split("\n") if line.startswith("data: ")]
            found.append(json.loads("\n".join(data)))
    return found


async def test_a_stream_pushes_no_more_than_its_credit_and_settling_gives_it_back(door):
    for _ in range(5):
        await door.call(
            "POST", PUBLISH, b'{\n  "spans": "lines"\n}', {"content-type": "application/json"}
        )
    seen: list[bytes] = []
    changed = asyncio.Event()

    def sent(chunks: list[bytes]) -> None:
        seen[:] = chunks
        changed.set()

    door.sent = sent
    leave = asyncio.Event()
    streaming = asyncio.ensure_future(
        door.call("GET", "/v1/queues/orders/stream?credit=2&consumer=w1", leave=leave)
    )
    async with asyncio.timeout(60):
        while len(events(seen)) < 2:
            changed.clear()
            await changed.wait()
        await waits(door, 1)
    first, second = events(seen)
    assert first["payload"] == {"spans": "lines"}
    assert (await door.broker.stats("orders")).in_flight_by_consumer == {"w1": 2}
    other = Door(door.app, door.broker, door.clock)
    ack = {"receipt": first["receipt"], "verb": "ack"}
    await other.call("POST", SETTLE, {"settlements": [ack]})
    async with asyncio.timeout(60):
        while len(events(seen)) < 3:
            changed.clear()
            await changed.wait()
        await waits(door, 1)
    assert len(events(seen)) == 3
    leave.set()
    async with asyncio.timeout(60):
        await streaming
    held = await door.broker.peek("orders", State.IN_FLIGHT)
    assert {item.message.id for item in held.items} == {1, 2}
    assert door.service.streams.held == {}
    assert second["message"]["id"] == 1


async def test_a_stream_of_nothing_is_refused_before_it_begins(door):
    assert (await door.call("GET", "/v1/queues/none/stream")).status == 404
    await door.call("PUT", "/v1/queues/orders", {})
    assert (await door.call("GET", "/v1/queues/orders/stream?credit=0")).status == 400


async def test_ready_means_that_a_commit_was_made(door):
    assert (await door.call("GET", "/readyz")).json()["status"] == "ready"
    assert await door.broker.engine.get_document("probe", "ready") is not None
    await door.broker.engine.close()
    door.clock.advance(1_000)
    refused = await door.call("GET", "/readyz")
    assert refused.status == 503
    assert refused.json()["type"] == "urn:penstock:problem:store-closed"


async def test_a_stream_whose_key_is_revoked_or_queue_deleted_ends_with_a_problem(door):
    keys = Keys(door.broker.engine, door.clock)
    guarded = Door(application(door.broker, Access(door.clock, keys)), door.broker, door.clock)
    await door.broker.create_queue("orders")
    made = await keys.create("default", ["consume:orders"])
    guarded.headers = {"authorization": f"Bearer {made.key}"}
    streaming = asyncio.ensure_future(guarded.call("GET", "/v1/queues/orders/stream"))
    await waits(guarded, 1)
    await keys.revoke("default", made.info.id)
    await door.broker.publish("orders", b"x")
    async with asyncio.timeout(60):
        reply = await streaming
    assert b"event: problem" in reply.body
    assert b"unauthenticated" in reply.body
    streaming = asyncio.ensure_future(door.call("GET", "/v1/queues/orders/stream?credit=1"))
    await waits(door, 1)
    await door.broker.delete_queue("orders")
    async with asyncio.timeout(60):
        reply = await streaming
    assert b"unknown-queue" in reply.body


async def test_a_stream_whose_reader_hangs_ends_and_uses_no_more_attempts(door):
    await door.broker.create_queue("orders", max_attempts=2)
    for _ in range(4):
        await door.broker.publish("orders", b"x")
    streaming = asyncio.ensure_future(
        door.call("GET", "/v1/queues/orders/stream?credit=2&lease_ms=1000")
    )
    await waits(door, 1)
    door.clock.advance(1_001)
    # The heartbeat would look in a while; credit that comes back makes it look now.
    [stream] = set(door.service.streams.held.values())
    async with asyncio.timeout(60):
        while not streaming.done():
            stream._given.set()
            await asyncio.sleep(0)
    reply = await streaming
    assert len(events([reply.body])) == 2
    assert b"urn:penstock:problem:conflict" in reply.body
    assert (await door.broker.stats("orders")).failed == 0


@law("E1")
@pytest.mark.parametrize(
    "query",
    [
        "lease_ms=0",
        "lease_ms=-1",
        "lease_ms=99999999999",
        "credit=0",
        "credit=1001",
        "consumer=a%20b",
        "consumer=",
    ],
)
async def test_a_stream_with_bad_parameters_is_refused_before_it_begins(
    door: Door, query: str
) -> None:
    await door.broker.create_queue("orders")
    answer = await door.call("GET", f"/v1/queues/orders/stream?{query}")
    assert (answer.status, answer.json()["field"]) == (400, query.partition("=")[0])
