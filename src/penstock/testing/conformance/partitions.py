"""Ordered queues: publish order inside a partition (C4), and stats by partition."""

from __future__ import annotations

import pytest

from penstock.model.delivery import ReplaySource
from penstock.model.message import MessageId
from penstock.model.queue import Ordering
from penstock.model.states import State
from penstock.testing.conformance.harness import TENANT, Conformance, Store, ids_of, msg
from penstock.testing.laws import law

__all__ = ["TestPartitionOrder", "TestPartitionStats"]


async def ordered(store: Store, *, concurrency: int = 1, max_attempts: int = 5) -> None:
    """Put the ordered queue ``q``."""
    await store.queue(
        ordering=Ordering.PARTITION, partition_concurrency=concurrency, max_attempts=max_attempts
    )


async def fill(store: Store, *partitions: str) -> dict[str, list[MessageId]]:
    """Publish one message per name, in order. Returns the ids by partition."""
    ids = await store.publish(*(msg(p.encode(), partition_key=p) for p in partitions))
    filled: dict[str, list[MessageId]] = {}
    for partition, message_id in zip(partitions, ids, strict=True):
        filled.setdefault(partition, []).append(message_id)
    return filled


async def joined(store: Store, consumer: str) -> list[str]:
    """The names of the consumer's partitions after a heartbeat."""
    return sorted((await store.engine.join(TENANT, "q", consumer)).partitions)


class TestPartitionOrder(Conformance):
    """C4 inside a partition: strictly publish order."""

    @law("C4")
    async def test_one_at_a_time_in_publish_order(self, store: Store) -> None:
        await ordered(store)
        ids = (await fill(store, "a", "a", "a"))["a"]
        for message_id in ids:
            claimed = await store.claim(limit=9)
            assert ids_of(claimed) == [message_id]
            assert await store.claim(limit=9) == []
            await store.ack(claimed[0])
        assert await store.claim(limit=9) == []

    @law("C4")
    async def test_priority_does_not_overtake_inside_a_partition(self, store: Store) -> None:
        await ordered(store)
        low, high = await store.publish(
            msg(partition_key="a", priority=0), msg(partition_key="a", priority=9)
        )
        first = await store.claim_one()
        assert first.message.id == low
        await store.ack(first)
        assert ids_of(await store.claim()) == [high]

    @law("C4")
    async def test_partitions_compete_with_their_next_delivery(self, store: Store) -> None:
        await ordered(store)
        a1, _, b1, c1 = await store.publish(
            msg(partition_key="a", priority=1),
            msg(partition_key="a", priority=9),
            msg(partition_key="b", priority=5),
            msg(partition_key="c", priority=5),
        )
        assert ids_of(await store.claim(limit=9)) == [b1, c1, a1]

    @law("C4")
    async def test_a_retry_holds_its_successors_back(self, store: Store) -> None:
        await ordered(store)
        ids = await fill(store, "a", "a", "b")
        first = await store.claim_one()
        await store.nack(first, delay_ms=1000)
        assert ids_of(await store.claim(limit=9)) == ids["b"]
        store.clock.advance(1000)
        again = await store.claim(limit=9)
        assert ids_of(again) == ids["a"][:1]
        await store.ack(again[0])
        assert ids_of(await store.claim(limit=9)) == ids["a"][1:]

    @law("C4")
    async def test_a_postponed_delivery_holds_its_successors_back(self, store: Store) -> None:
        await ordered(store)
        ids = await fill(store, "a", "a", "b")
        await store.release(await store.claim_one(), delay_ms=1000)
        assert ids_of(await store.claim(limit=9)) == ids["b"]
        store.clock.advance(1000)
        again = await store.claim_one()
        assert (again.message.id, again.attempts) == (ids["a"][0], 2)
        await store.ack(again)
        assert ids_of(await store.claim(limit=9)) == ids["a"][1:]

    @law("C4")
    async def test_a_delayed_message_holds_its_successors_back(self, store: Store) -> None:
        await ordered(store)
        due = store.clock.now() + 100
        first, second = await store.publish(
            msg(partition_key="a", deliver_at=due), msg(partition_key="a")
        )
        assert await store.claim(limit=9) == []
        store.clock.advance(100)
        delivery = await store.claim_one()
        assert delivery.message.id == first
        await store.ack(delivery)
        assert ids_of(await store.claim()) == [second]

    @law("C5")
    @pytest.mark.parametrize("way", ["reject", "expire", "purge"])
    async def test_whatever_leaves_no_longer_blocks(self, store: Store, way: str) -> None:
        """A stuck first delivery must not starve its partition."""
        await ordered(store)
        soon = store.clock.now() + 100
        first, second = await store.publish(
            msg(partition_key="a", expires_at=soon), msg(partition_key="a")
        )
        if way == "reject":
            await store.fail_one()
        elif way == "expire":
            store.clock.advance(100)
        else:
            await store.engine.purge(TENANT, "q", State.AVAILABLE, None, 1)
        assert ids_of(await store.claim(limit=9)) == [second]
        assert first != second

    async def test_a_lapse_brings_the_same_one_back(self, store: Store) -> None:
        await ordered(store)
        ids = (await fill(store, "a", "a"))["a"]
        await store.claim_one(lease_ms=1000)
        store.clock.advance(1000)
        again = await store.claim(limit=9)
        assert ids_of(again) == ids[:1]
        assert again[0].attempts == 2

    async def test_concurrency_bounds_what_is_in_flight(self, store: Store) -> None:
        await ordered(store, concurrency=2)
        ids = await fill(store, *"aaaab")
        claimed = await store.claim(limit=9)
        assert ids_of(claimed) == [*ids["a"][:2], *ids["b"]]
        assert await store.claim(limit=9) == []
        await store.ack(claimed[0])
        assert ids_of(await store.claim(limit=9)) == [ids["a"][2]]

    async def test_with_concurrency_a_retry_is_passed(self, store: Store) -> None:
        await ordered(store, concurrency=2)
        ids = (await fill(store, *"aaa"))["a"]
        first = await store.claim_one()
        await store.nack(first, delay_ms=1000)
        assert ids_of(await store.claim(limit=9)) == ids[1:]

    async def test_messages_without_a_key_share_a_partition(self, store: Store) -> None:
        await ordered(store)
        first, second = await store.publish(b"1", b"2")
        delivery = await store.claim_one()
        assert delivery.message.id == first
        assert await store.claim() == []
        await store.ack(delivery)
        assert ids_of(await store.claim()) == [second]

    async def test_a_replayed_message_goes_back_to_its_place(self, store: Store) -> None:
        await ordered(store)
        ids = (await fill(store, *"aaa"))["a"]
        await store.fail_one()
        second = await store.claim_one()
        await store.engine.replay(TENANT, "q", ReplaySource.FAILED, None, 9)
        assert await store.claim(limit=9) == []
        await store.ack(second)
        got = []
        while claimed := await store.claim(limit=9):
            got += ids_of(claimed)
            await store.ack(claimed[0])
        assert got == [ids[0], ids[2]]

    async def test_dead_letters_are_not_ordered(self, store: Store) -> None:
        await ordered(store)
        ids = (await fill(store, *"aaa"))["a"]
        for _ in ids:
            await store.fail_one()
        assert ids_of(await store.claim("q.dlq", 9)) == ids

    async def test_a_paused_queue_gives_none(self, store: Store) -> None:
        await ordered(store)
        await fill(store, "a")
        await store.engine.pause(TENANT, "q", True)
        assert await store.claim() == []


class TestPartitionStats(Conformance):
    """Watermark and lag by partition."""

    async def test_each_partition_in_numbers(self, store: Store) -> None:
        await ordered(store)
        ids = await fill(store, *"babc")
        own = await store.engine.join(TENANT, "q", "x")
        await store.ack(await store.claim_one(consumer="x"))
        await store.claim_one(consumer="x")
        stats = await store.engine.stats(TENANT, "q")
        assert [
            (p.partition, p.owner, p.epoch, p.unsettled, p.in_flight, p.watermark)
            for p in stats.partitions
        ] == [
            ("a", "x", own.partitions["a"], 1, 1, ids["a"][0] - 1),
            ("b", "x", own.partitions["b"], 1, 0, ids["b"][1] - 1),
            ("c", "x", own.partitions["c"], 1, 0, ids["c"][0] - 1),
        ]
        assert stats.watermark == ids["a"][0] - 1
        assert stats.lag == 3

    async def test_a_partition_that_nobody_owns(self, store: Store) -> None:
        await ordered(store)
        await fill(store, "a")
        (shown,) = (await store.engine.stats(TENANT, "q")).partitions
        assert (shown.partition, shown.owner, shown.unsettled) == ("a", None, 1)

    async def test_an_unordered_queue_has_none(self, store: Store) -> None:
        await store.queue()
        await fill(store, "a")
        assert (await store.engine.stats(TENANT, "q")).partitions == ()
