"""Ordered queues on two servers that share a database: who owns what (O1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from penstock.model.delivery import Verdict
from penstock.model.limits import CONSUMER_LEASE_MS
from penstock.storage.listener import Listener
from penstock.storage.sql.deliveries import Phase
from penstock.storage.sql.work import Work
from penstock.testing.conformance.harness import TENANT, ids_of
from penstock.testing.laws import law
from tests.unit.storage.sql.ordered import Pair, core_of, fill, joined, opened_pair, ordered


class Ear(Listener):
    """Hears whether a queue is ready."""

    def __init__(self) -> None:
        self.told = asyncio.Event()

    def ready(self, tenant: str, queue: str) -> None:
        if (tenant, queue) == (TENANT, "q"):
            self.told.set()


@pytest.fixture(params=["postgresql", "mysql"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async with opened_pair(request.param) as pair:
        yield pair


@law("O1")
async def test_consumers_of_two_servers_share_fairly(pair: Pair) -> None:
    await ordered(pair.first)
    await fill(pair.first, *"abcdefgh")
    assert await joined(pair.first, "x") == "abcdefgh"
    assert await joined(pair.second, "y") == ""
    assert await joined(pair.first, "x") == "abcd"
    assert await joined(pair.second, "y") == "efgh"
    assert await joined(pair.second, "w") == ""
    assert await joined(pair.first, "x") == "abc"
    assert await joined(pair.second, "y") == "ef"
    assert await joined(pair.second, "w") == "dgh"
    # It is one consumer, whichever server it talks to.
    assert await joined(pair.second, "x") == "abc"


@law("O1")
async def test_no_epoch_is_given_twice(pair: Pair) -> None:
    await ordered(pair.first)
    await fill(pair.first, *"abcdef")
    seen: set[int] = set()
    for turn in range(6):
        own = [await one.engine.join(TENANT, "q", f"c{turn}") for one in (pair.first, pair.second)]
        assert own[0] == own[1]
        epochs = set(own[0].partitions.values())
        assert len(epochs) == 6
        assert not epochs & seen
        seen |= epochs
        await pair.second.engine.leave(TENANT, "q", f"c{turn}")


@law("O1")
async def test_a_dead_consumer_loses_its_partitions_to_another_server(pair: Pair) -> None:
    await ordered(pair.first)
    ids = await fill(pair.first, *"ab")
    dead = await pair.first.claim(limit=9, consumer="dead", lease_ms=10 * CONSUMER_LEASE_MS)
    pair.clock.advance(CONSUMER_LEASE_MS - 1)
    assert await pair.second.claim(limit=9, consumer="y") == []
    pair.clock.advance(1)
    taken = await pair.second.claim(limit=9, consumer="y")
    assert ids_of(taken) == [*ids["a"], *ids["b"]]
    for delivery in dead:
        assert (await pair.first.ack(delivery)).verdict is Verdict.STALE
    for delivery in taken:
        assert (await pair.first.ack(delivery)).ok


@law("O1")
async def test_receipts_are_stale_once_the_partition_changed_hands(pair: Pair) -> None:
    await ordered(pair.first)
    ids = await fill(pair.first, *"aabb")
    of_a, of_b = await pair.first.claim(limit=9, consumer="x")
    assert await joined(pair.second, "y") == ""
    assert await joined(pair.first, "x") == "a"
    (again,) = await pair.second.claim(limit=9, consumer="y")
    assert again.message.id == ids["b"][0]
    assert (await pair.first.ack(of_b)).verdict is Verdict.STALE
    assert (await pair.first.extend(of_b, 1000)).verdict is Verdict.STALE
    assert (await pair.second.ack(of_a)).ok
    assert (await pair.second.ack(again)).ok


@law("C5")
async def test_the_other_server_hears_of_a_freed_partition(pair: Pair) -> None:
    await ordered(pair.first)
    await fill(pair.first, "a")
    await pair.first.claim_one(consumer="x")
    assert await pair.second.claim(consumer="y") == []
    ear = pair.second.engine.listener = Ear()
    await pair.first.engine.leave(TENANT, "q", "x")
    await asyncio.wait_for(ear.told.wait(), 60)
    assert len(await pair.second.claim(consumer="y")) == 1


@law("O1")
@pytest.mark.parametrize("moving", [slice(1), slice(1, 2), slice(2)])
async def test_what_a_settle_moves_meanwhile_comes_back_too(pair: Pair, moving: slice) -> None:
    """It is not at its new place yet when the partition is given up, and then no longer at the old.

    A settle that extends some of a run moves them.
    """
    await ordered(pair.first, concurrency=2)
    await fill(pair.first, *"aa")
    claimed = await pair.first.claim(limit=9, consumer="x")
    core, moved, go_on = core_of(pair.first), asyncio.Event(), asyncio.Event()

    async def move(work: Work) -> None:
        queue, _ = work.tenant.find("q")
        rows = await work.session.fetch(
            "partitions_in_flight", queue=queue.number, partitions=[b"a"]
        )
        ((_, _, rank, place),) = rows
        (run,) = work.hold_all(
            await work.session.fetch(
                "lock_groups", queue=queue.number, phase=3, rank=rank, row_keys=[place]
            )
        )
        for index in run.members[moving]:
            record = replace(run.record, row_key=core.leases.next(work.now))
            work.move(run, [index], Phase.IN_FLIGHT, record)
        await work.write()
        moved.set()
        await go_on.wait()

    settling = asyncio.create_task(core.transact(TENANT, move))
    await moved.wait()
    leaving = asyncio.create_task(pair.second.engine.leave(TENANT, "q", "x"))
    _, waiting = await asyncio.wait([leaving], timeout=0.3)
    assert waiting, "it has to wait for the settle"
    go_on.set()
    await asyncio.gather(settling, leaving)
    assert (await pair.first.engine.stats(TENANT, "q")).in_flight == 0
    for delivery in claimed:
        assert (await pair.first.ack(delivery)).verdict is Verdict.STALE
    assert ids_of(await pair.second.claim(limit=9, consumer="y")) == ids_of(claimed)


@law("O1")
async def test_whoever_takes_a_partition_takes_back_what_others_hold(pair: Pair) -> None:
    """A settle has just forgotten the owner, and a publish and a claim came before its commit."""
    await ordered(pair.first)
    ids = await fill(pair.first, *"ab")
    of_a, of_b = await pair.first.claim(limit=9, consumer="x")
    await pair.second.engine.join(TENANT, "q", "y")
    pair.sql("DELETE FROM penstock_owner WHERE partition_key = 'a'")
    taken = await pair.second.claim(limit=9, consumer="y")
    assert ids_of(taken) == ids["a"]
    assert (await pair.first.ack(of_a)).verdict is Verdict.STALE
    assert (await pair.first.ack(of_b)).ok
    # What is one's own stays in flight.
    pair.sql("DELETE FROM penstock_owner WHERE partition_key = 'a'")
    assert await joined(pair.second, "y") == "a"
    assert (await pair.second.ack(taken[0])).ok


async def test_an_owner_that_was_left_over_does_not_count(pair: Pair) -> None:
    """Two settles that end a partition together may each believe that the other has not."""
    await ordered(pair.first)
    await fill(pair.first, *"bc")
    await pair.first.engine.join(TENANT, "q", "x")
    await pair.second.engine.join(TENANT, "q", "y")
    pair.sql("INSERT INTO penstock_owner SELECT queue, 'a', 'x', 99 FROM penstock_owner LIMIT 1")
    assert await joined(pair.first, "x") == "b"
    assert await joined(pair.second, "y") == "c"
    assert len((await pair.first.engine.stats(TENANT, "q")).partitions) == 2
    await pair.second.engine.leave(TENANT, "q", "x")
    assert await joined(pair.second, "y") == "bc"
    await fill(pair.first, "a")
    assert await joined(pair.second, "y") == "abc"


@law("O1")
async def test_a_deleted_queue_has_no_owners(pair: Pair) -> None:
    await ordered(pair.first)
    await fill(pair.first, "a")
    await pair.first.claim_one(consumer="x")
    await pair.second.engine.delete_queue(TENANT, "q")
    await ordered(pair.first)
    await fill(pair.first, "a")
    own = await pair.second.engine.join(TENANT, "q", "y")
    assert own.partitions == {"a": 1}
