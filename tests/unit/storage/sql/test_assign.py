"""Assign while others publish, route and change the queue: R1, L2, C5, on both dialects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from penstock.errors import Conflict
from penstock.filters import parse
from penstock.model.delivery import Ack, RouteReply
from penstock.model.message import MessageId, NewMessage, Offset
from penstock.model.queue import Ordering, QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.contract import Engine
from penstock.storage.sql import route as assign_module
from penstock.storage.sql.log import end_of_log
from penstock.testing.laws import law
from tests.unit.storage.sql.callers import Caller, caller
from tests.unit.storage.sql.pairs import NAME, ROUNDS, TENANT, Pair

EARLIEST = Start(at=Start.EARLIEST)
ALL = QueuePolicy()
#: What is wrong if it takes longer.
PATIENCE_S = 60
#: Time for whoever has to wait to begin with that, or to show that it does not.
SETTLE_S = 0.2


@pytest.fixture
async def own(dialect: str, pair: Pair) -> AsyncIterator[Caller]:
    found = await caller(dialect, NAME)
    try:
        yield found
    finally:
        await found.close()


async def publish(engine: Engine, *payloads: bytes, own: Caller | None = None) -> list[Offset]:
    messages = [NewMessage(payload, partition_key=payload.decode()) for payload in payloads]
    if own is None:
        reply = await engine.publish(TENANT, "t", messages)
    else:
        reply = await engine.publish_within(own.connection, TENANT, "t", messages)
    return [one.offset for one in reply.messages]


async def assign(engine: Engine, queue: str, start: int, limit: int = 1_000) -> RouteReply:
    """Read a stretch of the log, and assign what the queue takes of it."""
    condition = (await engine.get_queue(TENANT, queue)).policy.filter
    page = await engine.read_log(TENANT, Offset(start), limit)
    takes = parse(condition).matches
    return await engine.assign(
        TENANT,
        queue,
        filter=condition,
        start=Offset(start),
        end=page.next_offset,
        offsets=[e.message.offset for e in page.entries if takes(e.message)],
    )


async def joined(engine: Engine) -> Offset:
    """Make a queue that takes part in publishes, and is not caught up: one is open."""
    await engine.put_queue(TENANT, "q", ALL, EARLIEST)
    cursor = (await engine.route(TENANT, "q", 100)).cursor
    assert cursor is not None
    return cursor


async def contents(engine: Engine, queue: str) -> list[bytes]:
    """What the queue has, in whatever state, by publish order."""
    found: dict[MessageId, bytes] = {}
    for state in State:
        page = await engine.peek(TENANT, queue, state, None, 10_000, payloads=True)
        assert page.cursor is None
        assert not found.keys() & {one.message.id for one in page.items}
        found |= {one.message.id: one.payload or b"" for one in page.items}
    return [found[message] for message in sorted(found)]


@law("L2")
async def test_nothing_is_assigned_beyond_what_is_settled(pair: Pair, own: Caller) -> None:
    await publish(pair.a, b"1")
    await own.begin()
    await publish(pair.a, b"held", own=own)
    (offset,) = await publish(pair.b, b"2")
    await pair.b.put_queue(TENANT, "new", ALL, EARLIEST)
    for engine in (pair.a, pair.b):
        with pytest.raises(Conflict) as caught:
            await engine.assign(
                TENANT,
                "new",
                filter="TRUE",
                start=Offset(0),
                end=Offset(offset + 1),
                offsets=[offset],
            )
        assert caught.value.field == "end"
    await own.commit()
    assert (await assign(pair.b, "new", 0)).cursor == Offset(offset + 1)
    assert await contents(pair.a, "new") == [b"0", b"1", b"held", b"2"]


@law("R1")
async def test_a_queue_that_has_joined(pair: Pair, own: Caller) -> None:
    """Publishes put their messages there themselves; those are left alone."""
    await own.begin()
    await publish(pair.a, b"held", own=own)
    cursor = await joined(pair.a)
    await publish(pair.b, b"1", b"2")
    (first,) = await pair.b.claim(TENANT, "q", "c", 1, None)
    await pair.b.settle(TENANT, "q", [Ack(first.receipt)])
    before = await contents(pair.a, "q")
    await own.commit()
    reply = await assign(pair.b, "q", cursor)
    assert (reply.scanned, reply.assigned) == (3, 1)
    assert reply.cursor is not None
    assert await contents(pair.a, "q") == [b"0", b"held", *before[1:]]
    # It takes part as before, also for those who have just read that.
    await pair.a.put_queue(TENANT, "other", QueuePolicy(filter="FALSE"), Start())
    await publish(pair.b, b"3")
    assert (await contents(pair.a, "q"))[-1] == b"3"
    assert (await pair.a.route(TENANT, "q", 100)).assigned == 0
    assert (await pair.b.get_queue(TENANT, "q")).cursor is None
    assert (await pair.a.stats(TENANT, "q")).done == 1


@law("C5")
async def test_a_queue_that_joined_and_became_ordered(pair: Pair, own: Caller) -> None:
    """What came without a partition gets one, though the router outside does not name it."""
    await own.begin()
    await publish(pair.a, b"first", own=own)
    cursor = await joined(pair.a)
    await pair.a.purge(TENANT, "q", State.AVAILABLE, None, 100)
    await own.commit()
    await own.begin()
    await publish(pair.a, b"stray", own=own)
    ordered = QueuePolicy(filter="topic = 'other'", ordering=Ordering.PARTITION)
    await pair.b.put_queue(TENANT, "q", ordered, Start())
    await own.commit()
    assert await contents(pair.a, "q") == [b"stray"]
    assert (await assign(pair.b, "q", cursor)).scanned == 0
    (delivery,) = await pair.a.claim(TENANT, "q", "c", 9, None)
    assert delivery.payload == b"stray"


@law("R1")
@pytest.mark.parametrize("by", ["assign", "route"])
async def test_one_routes_a_queue_at_a_time(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The second waits for the first, and goes on from where that has come to."""
    await publish(pair.a, b"1", b"2")
    await pair.a.put_queue(TENANT, "q", ALL, EARLIEST)
    reached, over = asyncio.Event(), asyncio.Event()

    async def slowly(*arguments: Any) -> Offset:
        if not reached.is_set():
            reached.set()
            await over.wait()
        return await end_of_log(*arguments)

    monkeypatch.setattr(assign_module, "end_of_log", slowly)
    first = asyncio.create_task(assign(pair.a, "q", 0))
    await reached.wait()
    call = assign(pair.b, "q", 0) if by == "assign" else pair.b.route(TENANT, "q", 100)
    second = asyncio.create_task(call)
    await asyncio.wait({second}, timeout=SETTLE_S)
    over.set()
    assert ((await first).assigned, (await second).assigned) == (3, 0)
    assert await contents(pair.a, "q") == [b"0", b"1", b"2"]


@law("R1")
async def test_a_filter_that_changes_meanwhile(pair: Pair) -> None:
    """Before or after the change, never with what was found for another filter."""
    offsets = await publish(pair.a, b"0", b"1")
    outcomes = set()
    for n in range(ROUNDS):
        queue = f"q{n}"
        await pair.a.put_queue(TENANT, queue, ALL, EARLIEST)
        call = pair.a.assign(
            TENANT,
            queue,
            filter="TRUE",
            start=Offset(0),
            end=Offset(offsets[-1] + 1),
            offsets=offsets,
        )
        change = pair.b.put_queue(TENANT, queue, QueuePolicy(filter="FALSE"), Start())
        calls = (call, change) if n % 2 else (change, call)
        found = await asyncio.gather(*calls, return_exceptions=True)
        reply = found[1 - n % 2]
        outcomes.add(type(reply))
        if isinstance(reply, RouteReply):
            assert await contents(pair.a, queue) == [b"0", b"1"]
        else:
            assert isinstance(reply, Conflict)
            assert await contents(pair.a, queue) == []
            assert (await pair.b.get_queue(TENANT, queue)).cursor is not None
    assert outcomes <= {RouteReply, Conflict}


@law("R1")
async def test_many_lots_are_one_transaction(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.storage.sql.route._MAX_ASSIGNED_SEGMENTS", 2)
    monkeypatch.setattr("penstock.storage.sql.route._MAX_ENTRIES", 3)
    offsets = [o for n in range(5) for o in await publish(pair.a, *[b"%d" % n] * (1 + 4 * (n % 2)))]
    keyed = [NewMessage(b"k", key="k")]
    for _ in range(4):
        offsets += [o.offset for o in (await pair.a.publish(TENANT, "t", keyed)).messages]
    await pair.a.put_queue(TENANT, "q", ALL, EARLIEST)
    end = Offset(offsets[-1] + 1)
    missing = [*offsets[:-1], Offset(offsets[-1] - 1), offsets[-1]]
    with pytest.raises(Conflict):
        await pair.a.assign(TENANT, "q", filter="TRUE", start=Offset(0), end=end, offsets=missing)
    assert await contents(pair.b, "q") == []
    reply = await pair.a.assign(
        TENANT, "q", filter="TRUE", start=Offset(0), end=end, offsets=offsets
    )
    assert (reply.scanned, reply.assigned, reply.cursor) == (17, 14, end)
    assert len(await contents(pair.b, "q")) == 14


@law("R1")
async def test_routers_of_two_servers(dialect: str, pair: Pair, own: Caller) -> None:
    """Publishes on both, some of them open for long; keepers and other routers on both."""
    random = Random(11)
    engines = (pair.a, pair.b)
    queues: list[str] = []
    finished = asyncio.Event()
    stretches: list[int] = []

    async def publishing(engine: Engine, name: str) -> None:
        for n in range(20):
            await publish(engine, *[f"{name}{n}".encode()] * random.randint(1, 3))

    async def calling() -> None:
        for n in range(6):
            await own.begin()
            await publish(random.choice(engines), b"own%d" % n, own=own)
            await asyncio.sleep(0.05)
            await (own.commit() if n % 3 else own.roll_back())

    async def keeping(engine: Engine) -> None:
        while not finished.is_set() or await engine.behind():
            for tenant, queue in await engine.behind():
                if finished.is_set() or random.random() < 0.5:
                    await engine.route(tenant, queue, random.choice((1, 5, 100)))
            await asyncio.sleep(0.005)

    async def routing(engine: Engine) -> None:
        while not finished.is_set():
            for queue in queues:
                cursor = (await engine.get_queue(TENANT, queue)).cursor
                if cursor is not None:
                    reply = await assign(engine, queue, cursor, random.choice((2, 10)))
                    stretches.append(reply.assigned)
            await asyncio.sleep(0.005)

    async def consuming(engine: Engine) -> None:
        while not finished.is_set():
            for queue in queues[::2]:
                held = await engine.claim(TENANT, queue, "c", 20, None)
                if held:
                    await engine.settle(TENANT, queue, [Ack(d.receipt) for d in held])
            await asyncio.sleep(0.01)

    async def creating() -> None:
        for n in range(5):
            await random.choice(engines).put_queue(TENANT, f"q{n}", ALL, EARLIEST)
            queues.append(f"q{n}")
            await asyncio.sleep(0.05)

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for engine in engines:
            for duty in (keeping, routing, consuming):
                group.create_task(duty(engine))
        await asyncio.gather(
            publishing(pair.a, "a"), publishing(pair.b, "b"), calling(), creating()
        )
        finished.set()
    page = await pair.a.read_log(TENANT, Offset(0), 10_000, payloads=True)
    everything = [entry.payload for entry in page.entries]
    assert sum(stretches) > 0
    for queue in queues:
        assert (await pair.a.get_queue(TENANT, queue)).cursor is None
        assert await contents(pair.b, queue) == everything, queue
