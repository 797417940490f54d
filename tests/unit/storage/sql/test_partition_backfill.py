"""A queue becomes ordered, or no longer is, while publishes are open: C5, O1, S2, on both dialects.

Whoever publishes inside a transaction of its own may commit long after the change that it did not
know of. What it brings is handed out all the same, in its partitions, and nothing else is moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.errors import QueueNotEmpty
from penstock.model.delivery import Ack
from penstock.model.message import NewMessage
from penstock.model.queue import Ordering, QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.contract import Engine
from penstock.storage.sql import queues
from penstock.storage.sql.catalog import encode_policy
from penstock.storage.sql.work import Work
from penstock.testing.laws import law
from tests.unit.storage.sql.callers import Caller, caller
from tests.unit.storage.sql.pairs import (
    LATEST,
    NAME,
    TENANT,
    Pair,
    claim,
    payloads,
    settled,
)

PLAIN = QueuePolicy(filter="topic = 'old'")
ORDERED = QueuePolicy(filter="topic = 'old'", ordering=Ordering.PARTITION)
EARLIEST = Start(at=Start.EARLIEST)


@pytest.fixture
async def own(dialect: str, pair: Pair) -> AsyncIterator[Caller]:
    """A caller's connection. The queue is empty, and both servers know it."""
    (held,) = await claim(pair.a, "old")
    await settled(pair.a, "old", Ack(held.receipt))
    found = await caller(dialect, NAME)
    try:
        yield found
    finally:
        await found.close()


async def publish(
    engine: Engine, *messages: tuple[bytes, str | None], own: Caller | None = None
) -> None:
    """Publish payloads with their partition keys."""
    new = [NewMessage(payload, partition_key=key) for payload, key in messages]
    if own is None:
        await engine.publish(TENANT, "old", new)
    else:
        await engine.publish_within(own.connection, TENANT, "old", new)


async def order(engine: Engine, policy: QueuePolicy, queue: str = "old") -> None:
    await engine.put_queue(TENANT, queue, policy, LATEST)


async def catch_up(engine: Engine) -> None:
    """As the keepers do."""
    for tenant, queue in await engine.behind():
        await engine.route(tenant, queue, 100)


async def partitions(engine: Engine, queue: str = "old") -> dict[str, int]:
    """How much there is in every partition."""
    stats = await engine.stats(TENANT, queue)
    return {one.partition: one.unsettled for one in stats.partitions}


@law("C5")
async def test_a_queue_that_becomes_ordered_while_a_publish_is_open(
    pair: Pair, own: Caller
) -> None:
    await own.begin()
    await publish(pair.a, (b"held", None), own=own)
    await order(pair.b, ORDERED)
    await own.commit()
    await catch_up(pair.a)
    assert payloads(await claim(pair.a, "old")) == [b"held"]
    assert await pair.b.behind() == ()


@law("C4")
async def test_what_came_is_sorted_into_partitions(pair: Pair, own: Caller) -> None:
    await own.begin()
    keys = ("x", None, "y", "x", "y", "x")
    await publish(pair.a, *((b"%d" % n, key) for n, key in enumerate(keys)), own=own)
    await order(pair.b, ORDERED)
    await publish(pair.b, (b"new", "x"))
    await own.commit()
    await catch_up(pair.b)
    assert await partitions(pair.a) == {"": 1, "x": 4, "y": 2}
    assert payloads(await claim(pair.a, "old")) == [b"0", b"1", b"2"]
    assert (await pair.a.stats(TENANT, "old")).available == 4


@law("C5")
async def test_what_is_there_by_then_does_not_wait_for_what_is_open(
    dialect: str, pair: Pair, own: Caller
) -> None:
    """Between the change and the first look another publish is committed."""
    other = await caller(dialect, NAME)
    try:
        await own.begin()
        await publish(pair.a, (b"open", "x"), own=own)
        await other.begin()
        await publish(pair.a, (b"there", "y"), own=other)
        await _change_only(pair.b, ORDERED)
        await other.commit()
        await catch_up(pair.a)
        assert await partitions(pair.a) == {"y": 1}
        assert await pair.a.behind() == ((TENANT, "old"),)
        await own.commit()
        await catch_up(pair.a)
    finally:
        await other.close()
    assert payloads(await claim(pair.a, "old")) == [b"open", b"there"]


async def _change_only(engine: Any, policy: QueuePolicy) -> None:
    """Change the queue, and end before anything else is done."""
    core = engine._core
    before = (await core.stable()).settled

    async def act(work: Work) -> None:
        await queues._change(work, work.tenant.queues["old"], policy, before)

    await core.transact(TENANT, act)


async def test_the_ordering_does_not_change_under_whoever_adds_to_the_queue(
    pair: Pair, own: Caller
) -> None:
    """A replay, say, has the queue locked, and what it adds is there when the lock is free."""
    await own.begin()
    await own.run("SELECT number FROM penstock_queue FOR UPDATE")
    change = asyncio.create_task(order(pair.a, ORDERED))
    await asyncio.wait([change], timeout=0.2)
    await publish(pair.b, (b"added", "x"))
    await own.roll_back()
    with pytest.raises(QueueNotEmpty):
        await change
    assert payloads(await claim(pair.a, "old")) == [b"added"]


@law("S2")
async def test_what_was_removed_does_not_come_again(pair: Pair, own: Caller) -> None:
    """It lies behind the open publish in the log, where the queue is looked through."""
    await own.begin()
    await publish(pair.a, (b"held", "x"), own=own)
    await publish(pair.b, (b"1", "x"), (b"2", "y"))
    await settled(pair.a, "old", *(Ack(one.receipt) for one in await claim(pair.a, "old")))
    await pair.a.purge(TENANT, "old", State.DONE, None, 100)
    await order(pair.b, ORDERED)
    await own.commit()
    await catch_up(pair.a)
    assert payloads(await claim(pair.b, "old")) == [b"held"]
    assert await partitions(pair.a) == {"x": 1}


@law("R1")
async def test_a_queue_that_is_joining_becomes_ordered(pair: Pair, own: Caller) -> None:
    """The open publish may bring it something or not; the router sees to both."""
    await own.begin()
    await publish(pair.a, (b"before", "x"), own=own)
    plain = QueuePolicy(filter="topic = 'old' AND priority = 4")
    await pair.a.put_queue(TENANT, "late", plain, EARLIEST)
    await catch_up(pair.a)
    (first,) = await claim(pair.a, "late")
    assert await settled(pair.a, "late", Ack(first.receipt)) == ["ok"]
    await publish(pair.b, (b"joined", "y"), own=own)
    await order(pair.b, QueuePolicy(filter=plain.filter, ordering=Ordering.PARTITION), "late")
    await catch_up(pair.a)
    assert await partitions(pair.a, "late") == {}
    await own.commit()
    await catch_up(pair.b)
    assert await pair.a.behind() == ()
    assert await partitions(pair.a, "late") == {"x": 1, "y": 1}
    assert payloads(await claim(pair.a, "late")) == [b"before", b"joined"]


@law("R1")
async def test_a_queue_that_is_joining_begins_anew_when_it_becomes_ordered(
    dialect: str, pair: Pair, own: Caller
) -> None:
    """It waits for one publish more before it is caught up, and there is another by then."""
    second, third = await caller(dialect, NAME), await caller(dialect, NAME)
    try:
        await own.begin()
        await publish(pair.a, (b"1", "x"), own=own)
        await pair.a.put_queue(TENANT, "late", PLAIN, EARLIEST)
        await catch_up(pair.a)
        await publish(pair.a, (b"2", "x"))
        await second.begin()
        await publish(pair.a, (b"3", "x"), own=second)
        await own.commit()
        await catch_up(pair.a)
        held = await claim(pair.a, "late")
        assert payloads(held) == [b"0", b"1", b"2"]
        await settled(pair.a, "late", *(Ack(one.receipt) for one in held))
        await third.begin()
        await publish(pair.a, (b"4", "y"), own=third)
        await order(pair.b, ORDERED, "late")
        await second.commit()
        await catch_up(pair.a)
        await third.commit()
        await catch_up(pair.a)
    finally:
        await second.close()
        await third.close()
    assert await partitions(pair.a, "late") == {"x": 1, "y": 1}
    assert payloads(await claim(pair.b, "late")) == [b"3", b"4"]


@law("O1")
async def test_what_was_handed_out_without_a_partition_comes_back(pair: Pair, own: Caller) -> None:
    """A claim that did not know of the change either."""
    await own.begin()
    await publish(pair.a, (b"1", "x"), (b"2", "y"), own=own)
    await order(pair.b, ORDERED)
    await own.commit()
    await _rewrite(pair.a, PLAIN)
    held = await claim(pair.a, "old")
    assert payloads(held) == [b"1", b"2"]
    await _rewrite(pair.a, ORDERED)
    await catch_up(pair.b)
    assert await settled(pair.a, "old", *(Ack(one.receipt) for one in held)) == ["stale"] * 2
    again = await claim(pair.b, "old")
    assert payloads(again) == [b"1", b"2"]
    assert [one.attempts for one in again] == [2, 2]
    assert await settled(pair.b, "old", *(Ack(one.receipt) for one in again)) == ["ok"] * 2


async def _rewrite(engine: Any, policy: QueuePolicy) -> None:
    """Have the queue another policy, whatever it holds."""

    async def act(work: Work) -> None:
        queue = work.tenant.queues["old"]
        await work.session.run(
            "change_queue",
            queue=queue.number,
            policy=encode_policy(policy),
            filter_version=queue.filter_version,
        )
        work.raised += await work.session.run("raise_version", tenant=work.tenant.number)

    await engine._core.transact(TENANT, act)


@law("C5")
async def test_a_queue_that_is_no_longer_ordered_while_a_publish_is_open(
    pair: Pair, own: Caller
) -> None:
    await order(pair.a, ORDERED)
    await own.begin()
    await publish(pair.a, (b"1", "x"), (b"2", "x"), own=own)
    await order(pair.b, PLAIN)
    await own.commit()
    # Nothing has to be done: one consumer is handed both at once, without owning anything.
    assert await pair.a.behind() == ()
    held = await claim(pair.a, "old")
    assert payloads(held) == [b"1", b"2"]
    with pytest.raises(QueueNotEmpty):
        await order(pair.b, ORDERED)
    assert await settled(pair.a, "old", *(Ack(one.receipt) for one in held)) == ["ok"] * 2
    # And back again: what is left of the partitions does no harm.
    await order(pair.b, ORDERED)
    assert await partitions(pair.a) == {}
    await publish(pair.a, (b"3", "x"), (b"4", "x"))
    assert payloads(await claim(pair.b, "old")) == [b"3"]


@law("C5")
async def test_to_and_fro_while_a_publish_is_open(pair: Pair, own: Caller) -> None:
    await own.begin()
    await publish(pair.a, (b"1", "x"), own=own)
    for policy in (ORDERED, PLAIN, ORDERED):
        await order(pair.b, policy)
    await publish(pair.b, (b"2", "x"), own=own)
    await own.commit()
    await catch_up(pair.a)
    assert await pair.b.behind() == ()
    assert await partitions(pair.a) == {"x": 2}
    assert payloads(await claim(pair.a, "old")) == [b"1"]
