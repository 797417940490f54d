"""Ordered queues: join, heartbeat, leave, and what becomes of a partition that moves on."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest

from penstock.errors import Conflict, Unreachable
from penstock.model.limits import CONSUMER_LEASE_MS
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.unit.consume.conftest import pass_time, turns

if TYPE_CHECKING:
    from penstock.consume import Consumption, Lease
    from tests.unit.consume.conftest import Consume, Spy


@pytest.fixture(autouse=True)
async def ordered(q: Spy) -> None:
    await q.create_queue("ordered", ordering="partition", max_attempts=3)


async def fill(q: Spy, partitions: str, rounds: int) -> None:
    for number in range(rounds):
        for partition in partitions:
            await q.publish("t", b"%d" % number, partition_key=partition)


async def owners(q: Spy) -> dict[str, str | None]:
    return {item.partition: item.owner for item in (await q.stats("ordered")).partitions}


async def take(leases: Consumption) -> Lease:
    return await asyncio.wait_for(anext(leases), 60)


@law("C4")
async def test_two_consumers_keep_the_order_of_every_partition(
    q: Spy, consume: Consume, clock: FakeClock
) -> None:
    await fill(q, "abcdefgh", 20)
    seen: dict[str, list[int]] = defaultdict(list)
    workers: dict[str, set[str]] = defaultdict(set)
    busy: Counter[str] = Counter()
    most = 0
    total = 8 * 20

    async def work(leases: Consumption) -> None:
        nonlocal most
        async for lease in leases:
            async with lease:
                partition = lease.message.partition_key or ""
                busy[partition] += 1
                most = max(most, busy[partition])
                await asyncio.sleep(0)
                busy[partition] -= 1
                seen[partition].append(int(lease.payload))
                workers[partition].add(leases.consumer)
            if sum(map(len, seen.values())) == total:
                for each in (x, y):
                    each.stop()

    x = consume("ordered", consumer="x", max_in_flight=5)
    y = consume("ordered", consumer="y", max_in_flight=5)
    readers = asyncio.gather(*(work(leases) for leases in (x, x, x, y, y, y)))
    async with asyncio.timeout(60):
        while not readers.done():
            await pass_time(clock, 5_000)
        await readers
    assert seen == {partition: list(range(20)) for partition in "abcdefgh"}
    assert set().union(*workers.values()) == {"x", "y"}
    # At most one of a partition was worked on at a time, whoever did it.
    assert most == 1


@law("O1")
async def test_partitions_stay_while_a_slow_consumer_claims_nothing(
    q: Spy, consume: Consume, clock: FakeClock
) -> None:
    await fill(q, "ab", 1)
    leases = consume("ordered", consumer="slow", max_in_flight=2)
    first, second = await take(leases), await take(leases)
    claims = len(q.claims)
    await pass_time(clock, 5 * CONSUMER_LEASE_MS)
    assert len(q.claims) == claims
    assert await owners(q) == {"a": "slow", "b": "slow"}
    assert (await first.ack()).ok
    assert (await second.ack()).ok


async def test_missed_heartbeats_are_made_up_for(
    q: Spy, consume: Consume, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(q, "a", 1)
    lease = await take(consume("ordered", consumer="x", max_in_flight=1))
    join, failures = q.join, [Unreachable("down") for _ in range(15)]

    async def failing(queue: str, consumer: str) -> object:
        if failures:
            raise failures.pop()
        return await join(queue, consumer)

    monkeypatch.setattr(q, "join", failing)
    await pass_time(clock, 3 * CONSUMER_LEASE_MS)
    assert not failures
    assert await owners(q) == {"a": "x"}
    assert (await lease.ack()).ok


async def test_leaving_gives_the_partitions_away_at_once(
    q: Spy, consume: Consume, clock: FakeClock
) -> None:
    await fill(q, "ab", 2)
    async with consume("ordered", consumer="x") as leases:
        async with await take(leases):
            pass
        assert set((await owners(q)).values()) == {"x"}
    assert set((await owners(q)).values()) == {None}
    # Nobody has to wait for a lease to lapse: the clock stands still.
    other = await take(consume("ordered", consumer="y"))
    assert other.attempts in (1, 2)
    assert (await other.ack()).ok


async def test_stop_leaves_when_what_is_held_is_settled(
    q: Spy, consume: Consume, clock: FakeClock
) -> None:
    await fill(q, "a", 2)
    leases = consume("ordered", consumer="x")
    held = await take(leases)
    leases.stop()
    await pass_time(clock, 2 * CONSUMER_LEASE_MS)
    assert await owners(q) == {"a": "x"}
    assert (await held.ack()).ok
    await turns()
    assert await owners(q) == {"a": None}


@law("O1")
async def test_a_partition_that_moves_on_cuts_the_work_off(
    q: Spy, consume: Consume, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(q, "ab", 1)
    # So long a lease is not extended soon: it is the heartbeat that finds out.
    x = consume("ordered", consumer="x", max_in_flight=2, lease_ms=600_000)
    held = [await take(x), await take(x)]
    ended: list[str] = []

    async def work(lease: Lease) -> None:
        partition = lease.message.partition_key or ""
        async with lease:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append(partition)
                raise

    tasks = [asyncio.create_task(work(lease)) for lease in held]
    await turns()
    # A second consumer has a right to one of the two; the next heartbeat gives it up.
    y = consume("ordered", consumer="y")
    taking = asyncio.ensure_future(anext(y))
    await pass_time(clock, CONSUMER_LEASE_MS // 3)
    assert len(ended) == 1
    moved = await asyncio.wait_for(taking, 60)
    assert moved.message.partition_key == ended[0]
    assert (await moved.ack()).ok
    (lost,) = [lease for lease in held if lease.lost]
    assert lost.message.partition_key == ended[0]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_queue_that_is_no_longer_ordered_is_told(
    q: Spy, consume: Consume, clock: FakeClock
) -> None:
    waiting = asyncio.ensure_future(anext(consume("ordered")))
    await turns()
    await q.update_queue("ordered", ordering="none")
    await pass_time(clock, CONSUMER_LEASE_MS)
    with pytest.raises(Conflict):
        await asyncio.wait_for(waiting, 60)
