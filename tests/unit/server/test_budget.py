"""The memory budget: what callers make the server hold is counted, bounded and given back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from penstock.broker import Broker, BrokerOptions
from penstock.errors import Busy
from penstock.model.message import NewMessage
from penstock.server.access import Access, Keys
from penstock.server.budget import Budget, Hold
from penstock.server.http import Cut
from penstock.server.service import ServiceLimits
from penstock.storage.contract import EngineOptions
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.unit.server.conftest import Door, application

MB = 2**20
LIMITS = ServiceLimits(memory_bytes=8 * MB, reply_timeout_s=0.01)
CLAIM = "/v1/queues/orders/claims"
PUBLISH = "/v1/topics/orders/messages"


@asynccontextmanager
async def opened(*, auth: bool) -> AsyncIterator[Door]:
    clock = FakeClock()
    options = BrokerOptions(engine=EngineOptions(clock=clock))
    engine = await open_engine("memory://", options.engine)
    async with Broker(engine, options) as broker:
        access = Access(clock, Keys(engine, clock), enabled=auth)
        yield Door(application(broker, access, LIMITS), broker, clock)


@pytest.fixture
async def small() -> AsyncIterator[Door]:
    """A server that may hold 8 MiB."""
    async with opened(auth=False) as door:
        yield door


@pytest.fixture
async def keyed() -> AsyncIterator[Door]:
    """The same for callers with keys."""
    async with opened(auth=True) as door:
        yield door


class Reader:
    """A caller that takes so many parts of its reply, and then no more until it is let go."""

    def __init__(self, door: Door, takes: int) -> None:
        self._door = door
        self._takes = takes
        self.parts: list[bytes] = []
        self.status = 0
        self.stuck = asyncio.Event()
        self.go = asyncio.Event()

    def get(self, target: str) -> asyncio.Task[None]:
        return self._call("GET", target, b"")

    def post(self, target: str, body: object) -> asyncio.Task[None]:
        return self._call("POST", target, json.dumps(body).encode())

    def _call(self, method: str, target: str, body: bytes) -> asyncio.Task[None]:
        path, _, query = target.partition("?")
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        headers += [(name.encode(), text.encode()) for name, text in self._door.headers.items()]
        scope: dict[str, Any] = {"type": "http", "method": method, "path": path}
        scope |= {"query_string": query.encode(), "headers": headers}
        given = [body]

        async def receive() -> dict[str, Any]:
            if given:
                return {"type": "http.request", "body": given.pop(), "more_body": False}
            await asyncio.Event().wait()
            raise AssertionError

        async def send(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "http.response.start":
                self.status = event["status"]
                return
            if len(self.parts) >= self._takes:
                self.stuck.set()
                await self.go.wait()
            self.parts.append(event.get("body", b""))

        return asyncio.ensure_future(self._door.app(scope, receive, send))


# -- counting --------------------------------------------------------------------------------


def test_a_hold_is_counted_and_given_back() -> None:
    budget = Budget(10)
    one, other = Hold(budget), Hold(budget)
    one.take(6)
    with pytest.raises(Busy) as caught:
        other.take(5)
    assert (caught.value.limit, budget.held, budget.refused) == (10, 6, 1)
    other.take(4)
    one.add(3)
    assert budget.held == 13
    with pytest.raises(Busy):
        other.check()
    one.set(2)
    other.set(0)
    assert (budget.held, one.size) == (2, 2)


def test_a_tenant_leaves_some_of_the_budget_to_others() -> None:
    budget = Budget(100)
    loud, quiet = Hold(budget), Hold(budget)
    loud.belongs_to("loud")
    quiet.belongs_to("quiet")
    loud.take(60)
    again = Hold(budget)
    again.belongs_to("loud")
    again.take(20)
    for hold in (loud, again):
        with pytest.raises(Busy):
            hold.take(1)
    quiet.take(10)
    with pytest.raises(Busy):
        again.check()
    loud.set(0)
    again.take(40)
    assert (budget.held, budget.share("loud").held, budget.share("quiet").held) == (70, 60, 10)
    # A call alone may have all that is left.
    again.take(30)


async def test_a_tenant_that_reads_nothing_does_not_refuse_another(keyed: Door) -> None:
    """Every reply that the loud tenant asks for is as large as its part of the budget allows."""
    await _fill(keyed)
    assert keyed.keys is not None
    loud, quiet = [(await keyed.keys.create(name, ["admin:*"])).key for name in ("default", "b")]
    keyed.headers = {"authorization": f"Bearer {loud}"}
    readers = [Reader(keyed, 1) for _ in range(8)]
    calls = [reader.get("/v1/log?payloads=true&limit=1") for reader in readers]
    while not all(reader.status for reader in readers):  # noqa: ASYNC110  (they have no event)
        await asyncio.sleep(0)
    # 1 MiB each, for as many as fit four fifths of 8 MiB.
    assert {reader.status for reader in readers} == {200, 503}
    keyed.headers = {"authorization": f"Bearer {quiet}"}
    assert (await keyed.call("POST", PUBLISH, b"x" * 500_000)).status == 201
    await asyncio.gather(*calls, return_exceptions=True)
    assert keyed.service.budget.held == 0


async def test_nothing_is_held_when_calls_are_over(small: Door) -> None:
    await small.call("POST", PUBLISH, b"x" * MB)
    await small.call("POST", PUBLISH, b"x" * (20 * MB))
    batch = {"messages": [{"payload_text": "x" * 300} for _ in range(1_000)]}
    kind = {"content-type": "application/vnd.penstock.batch+json"}
    assert (await small.call("POST", PUBLISH, json.dumps(batch), kind)).status == 201
    await small.call("POST", CLAIM, {"limit": 1000})
    await small.call("GET", "/v1/log?payloads=true")
    await small.call("GET", "/v1/log?payloads=true&format=arrow")
    await small.call("GET", "/v1/nothing")
    assert small.service.budget.held == 0


async def test_a_body_counts_until_its_verb_has_answered(
    small: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six bodies of 1 MiB wait for their commits; a seventh of 3 MiB has no room beside them."""
    go = asyncio.Event()
    publish = Broker.publish

    async def slowly(self: Broker, *args: Any, **options: Any) -> Any:
        await go.wait()
        return await publish(self, *args, **options)

    monkeypatch.setattr(Broker, "publish", slowly)
    calls = [asyncio.ensure_future(small.call("POST", PUBLISH, b"x" * (MB - 1))) for _ in range(6)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert small.service.budget.held == 6 * (MB - 1)
    refused = await small.call(
        "POST", PUBLISH, parts=[b"x" * MB] * 3, headers={"content-type": "a/b"}
    )
    assert (refused.status, refused.json()["field"]) == (503, "body")
    assert int(refused.headers["retry-after"]) > 0
    go.set()
    assert [(await call).status for call in calls] == [201] * 6
    assert small.service.budget.held == 0


# -- replies that are not read -----------------------------------------------------------------


async def _fill(door: Door, count: int = 20, size: int = MB - 1) -> None:
    await door.broker.create_queue("orders")
    for _ in range(count):
        await door.broker.publish_batch("orders", [NewMessage(bytes(size))])


async def test_a_reply_that_is_not_read_is_held_and_then_cut(small: Door) -> None:
    await _fill(small)
    reader = Reader(small, 2)
    call = reader.post(CLAIM, {"limit": 4})
    await reader.stuck.wait()
    # Base64 of 4 MiB, of which two parts are taken.
    assert 4 * MB < small.service.budget.held < 6 * MB
    other = await small.call("POST", CLAIM, {"limit": 4})
    assert other.status == 503
    # The deliveries of the refused claim went back.
    assert (await small.broker.stats("orders")).in_flight == 4
    with pytest.raises(Cut):
        await call
    assert small.service.budget.held == 0
    again = await small.call("POST", CLAIM, {"limit": 3})
    assert len(again.json()["deliveries"]) == 3


@pytest.mark.parametrize("path", ["/v1/log?payloads=true&format=arrow", "/v1/queues/orders/stream"])
async def test_a_stream_that_is_not_read_is_cut(small: Door, path: str) -> None:
    await _fill(small, 30, 300_000)
    reader = Reader(small, 3)
    call = reader.get(path)
    await reader.stuck.wait()
    assert 0 < small.service.budget.held <= 8 * MB
    with pytest.raises(Cut):
        await call
    assert small.service.budget.held == 0
    text = (await small.call("GET", "/metrics")).body.decode()
    assert "penstock_replies_cut_total 1.0" in text
    assert "penstock_memory_held_bytes 0.0" in text


async def test_reads_are_refused_above_the_budget(small: Door) -> None:
    await _fill(small)
    hold = Hold(small.service.budget)
    hold.take(8 * MB - 100)
    for path in ("/v1/log?payloads=true", "/v1/log?payloads=true&format=arrow"):
        assert (await small.call("GET", path)).status == 503
    assert (await small.call("POST", CLAIM, {"limit": 5})).status == 503
    hold.add(100)
    assert (await small.call("POST", CLAIM, {"limit": 5})).status == 503
    # What is small is answered as before.
    assert (await small.call("GET", "/v1/queues/orders/stats")).status == 200
    hold.set(0)
    assert (await small.call("GET", "/v1/log?payloads=true&limit=5")).status == 200


async def test_a_settle_is_answered_although_the_claim_after_it_does_not_fit(small: Door) -> None:
    """Its outcomes are the only sign that it took effect: a nack cannot be repeated."""
    await _fill(small)
    claimed = (await small.call("POST", CLAIM, {"limit": 1})).json()["deliveries"]
    hold = Hold(small.service.budget)
    hold.take(8 * MB - 1000)
    nack = {"verb": "nack", "receipt": claimed[0]["receipt"], "error": "bad", "delay_ms": 0}
    body = {"settlements": [nack], "claim": {"limit": 1, "wait_ms": 10}}
    reply = await small.call("POST", "/v1/queues/orders/settlements", body)
    assert reply.status == 200
    assert reply.json()["outcomes"][0]["state"] == "available"
    assert reply.json()["deliveries"] == []
    assert (await small.broker.stats("orders")).in_flight == 0


async def test_a_page_of_payloads_is_bounded_before_they_are_read(
    small: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.server.native.deliveries.PAGE_BYTES", 3 * MB)
    await _fill(small)
    path = "/v1/queues/orders/deliveries?payloads=true"
    page = (await small.call("GET", path)).json()
    assert len(page["items"]) == 3
    following = (await small.call("GET", f"{path}&cursor={page['cursor']}")).json()
    assert following["items"][0]["message"]["id"] == 3
    hold = Hold(small.service.budget)
    hold.take(6 * MB)
    looks: list[bool] = []
    peek = Broker.peek

    async def looked(self: Broker, *args: Any, **options: Any) -> Any:
        looks.append(options["payloads"])
        return await peek(self, *args, **options)

    monkeypatch.setattr(Broker, "peek", looked)
    assert (await small.call("GET", path)).status == 503
    assert looks == [False]


async def test_replies_without_payloads_count_too(small: Door) -> None:
    """Headers of 16 KiB each: a page of them is as large as one of payloads."""
    await small.broker.create_queue("orders")
    headers = {f"h{number}": "x" * 1_000 for number in range(16)}
    for _ in range(4):
        await small.broker.publish_batch("orders", [NewMessage(b"", headers)] * 100)
    paths = ("/v1/log", "/v1/queues/orders/deliveries?limit=1000")
    for path in paths:
        assert (await small.call("GET", f"{path}")).status == 200
    hold = Hold(small.service.budget)
    hold.take(5 * MB)
    for path in paths:
        refused = await small.call("GET", path)
        assert (refused.status, refused.json()["type"]) == (503, "urn:penstock:problem:busy")
    assert small.service.budget.held == 5 * MB
    # What is small is answered, however much is held.
    hold.add(5 * MB)
    for path in ("/healthz", "/v1/queues/orders/stats", "/v1/log/end"):
        assert (await small.call("GET", path)).status == 200


# -- replies in parts --------------------------------------------------------------------------


@law("P3")
@pytest.mark.parametrize("as_msgpack", [False, True])
async def test_a_large_reply_is_what_a_small_one_is(door: Door, as_msgpack: bool) -> None:
    await door.broker.create_queue("orders")
    sent = [bytes([n]) * 100_000 if n % 3 else b'{"n": [%d]}' % n for n in range(1, 31)]
    for payload in sent:
        kind = None if payload[:1] != b"{" else "application/json"
        await door.broker.publish("orders", payload, content_type=kind)
    accept = {"accept": "application/msgpack"} if as_msgpack else {}

    def read(answer: Any) -> Any:
        return msgspec.msgpack.decode(answer.body) if as_msgpack else answer.json()

    for path, name in (
        ("/v1/log?payloads=true", "entries"),
        ("/v1/queues/orders/deliveries?payloads=true", "items"),
    ):
        whole = read(await door.call("GET", path, headers=accept))
        first = "" if name == "items" else "&from=0"
        single = read(await door.call("GET", f"{path}&limit=1{first}", headers=accept))
        assert len(whole[name]) == 30
        assert whole[name][0] == single[name][0]
        assert whole.keys() == single.keys()
    claimed = read(await door.call("POST", CLAIM, {"limit": 30}, accept))
    assert len(claimed["deliveries"]) == 30
