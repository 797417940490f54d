"""Ordered queues: publish order inside a partition (C4), and stats by partition."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.model.delivery import Ack, ReplaySource
from penstock.model.message import MessageId
from penstock.model.queue import Ordering
from penstock.model.states import State
from penstock.testing.conformance.harness import TENANT, Conformance, Store, ids_of, msg
from penstock.testing.laws import law

__all__ = ["TestPartitionBatch", "TestPartitionOrder", "TestPartitionStats"]


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


class TestPartitionBatch(Conformance):
    """Several consecutive deliveries of a partition in one claim, in strict order (C4)."""

    async def batched(self, store: Store, batch: int = 3, **policy: Any) -> None:
        await store.queue(ordering=Ordering.PARTITION, partition_batch=batch, **policy)

    @law("C4")
    async def test_one_claim_takes_a_batch_of_each_partition(self, store: Store) -> None:
        await self.batched(store)
        ids = await fill(store, *"aabaaab")
        claimed = await store.claim(limit=9)
        assert ids_of(claimed) == sorted([*ids["a"][:3], *ids["b"]])
        assert await store.claim(limit=9) == []
        for delivery in claimed:
            await store.ack(delivery)
        assert ids_of(await store.claim(limit=9)) == ids["a"][3:]

    @law("C4")
    async def test_nothing_more_while_one_of_them_is_in_flight(self, store: Store) -> None:
        await self.batched(store)
        ids = (await fill(store, *"aaaa"))["a"]
        one, two = await store.claim(limit=2)
        assert await store.claim(limit=9) == []
        await store.ack(one)
        assert await store.claim(limit=9) == []
        await store.ack(two)
        assert ids_of(await store.claim(limit=9)) == ids[2:]

    @law("C4")
    async def test_a_nacked_first_one_waits_for_the_rest_and_then_precedes(
        self, store: Store
    ) -> None:
        await self.batched(store)
        ids = (await fill(store, *"aaaaaa"))["a"]
        one, two, three = await store.claim(limit=9)
        await store.nack(one, delay_ms=0)
        await store.ack(two)
        assert await store.claim(limit=9) == []
        await store.ack(three)
        again = await store.claim(limit=9)
        assert ids_of(again) == [ids[0], ids[3], ids[4]]
        assert [delivery.attempts for delivery in again] == [2, 1, 1]

    @law("C4")
    async def test_a_nack_with_a_delay_holds_back_all_behind_it(self, store: Store) -> None:
        await self.batched(store)
        ids = (await fill(store, *"aaaaa"))["a"]
        one, two, three = await store.claim(limit=9)
        await store.ack(one)
        await store.nack(two, delay_ms=100)
        await store.release(three)
        assert await store.claim(limit=9) == []
        store.clock.advance(100)
        assert ids_of(await store.claim(limit=9)) == ids[1:4]

    @law("C4")
    async def test_a_batch_ends_before_a_delayed_delivery(self, store: Store) -> None:
        await self.batched(store)
        due = store.clock.now() + 100
        ids = await store.publish(
            *(msg(partition_key="a", deliver_at=due if n == 1 else None) for n in range(4))
        )
        (first,) = await store.claim(limit=9)
        assert first.message.id == ids[0]
        store.clock.advance(100)
        assert await store.claim(limit=9) == []
        await store.ack(first)
        assert ids_of(await store.claim(limit=9)) == ids[1:]

    @law("C4")
    async def test_the_next_of_a_batch_competes_by_priority(self, store: Store) -> None:
        await self.batched(store)
        a1, a2, a3, b1 = await store.publish(
            msg(partition_key="a", priority=5),
            msg(partition_key="a", priority=9),
            msg(partition_key="a", priority=1),
            msg(partition_key="b", priority=4),
        )
        assert ids_of(await store.claim(limit=3)) == [a1, a2, b1]
        assert await store.claim(limit=3) == []
        assert a3 not in await store.ids("q", State.IN_FLIGHT)

    @law("C4")
    async def test_what_fails_or_expires_is_not_a_part_of_the_batch(self, store: Store) -> None:
        await self.batched(store, batch=4)
        soon = store.clock.now() + 100
        ids = await store.publish(
            *(msg(partition_key="a", expires_at=soon if n == 1 else None) for n in range(7))
        )
        claimed = await store.claim(limit=9)
        await store.release(claimed[0])
        await store.release(claimed[1])
        await store.nack(claimed[2], delay_ms=0)
        await store.release(claimed[3])
        await self.batched(store, batch=4, max_attempts=1)
        store.clock.advance(100)
        assert ids_of(await store.claim(limit=9)) == [ids[0], *ids[3:6]]
        assert await store.ids("q", State.FAILED) == [ids[2]]

    async def test_a_lapse_brings_the_batch_back(self, store: Store) -> None:
        await self.batched(store)
        ids = (await fill(store, *"aaaa"))["a"]
        await store.claim(limit=3, lease_ms=1000)
        store.clock.advance(1000)
        assert ids_of(await store.claim(limit=9)) == ids[:3]

    @law("O1")
    async def test_a_batch_comes_back_with_its_partition(self, store: Store) -> None:
        await self.batched(store)
        ids = (await fill(store, *"aaaa"))["a"]
        claimed = await store.claim(limit=9, consumer="x")
        await store.engine.leave(TENANT, "q", "x")
        assert ids_of(await store.claim(limit=9, consumer="y")) == ids[:3]
        assert not (await store.ack(claimed[1])).ok

    async def test_a_changed_batch_applies_to_the_next_claim(self, store: Store) -> None:
        await self.batched(store, batch=1)
        ids = (await fill(store, *"aaaaa"))["a"]
        first = await store.claim_one()
        await self.batched(store, batch=2)
        assert await store.claim(limit=9) == []
        await store.ack(first)
        two = await store.claim(limit=9)
        assert ids_of(two) == ids[1:3]
        await self.batched(store, batch=1)
        await store.ack(two[0])
        assert await store.claim(limit=9) == []
        await store.ack(two[1])
        assert ids_of(await store.claim(limit=9)) == ids[3:4]

    async def test_a_batch_stays_closed_after_a_restart(self, store: Store) -> None:
        await self.batched(store)
        ids = (await fill(store, *"aaaa"))["a"]
        one, two = await store.claim(limit=2)
        await store.ack(one)
        await store.reopen()
        assert await store.claim(limit=9) == []
        await store.ack(two)
        assert ids_of(await store.claim(limit=9)) == ids[2:]

    async def test_the_largest_batch(self, store: Store) -> None:
        await self.batched(store, batch=1000)
        ids = (await fill(store, *"a" * 1001))["a"]
        claimed = await store.claim(limit=1001)
        assert ids_of(claimed) == ids[:1000]
        await store.engine.settle(TENANT, "q", [Ack(one.receipt) for one in claimed])
        assert ids_of(await store.claim(limit=9)) == ids[1000:]


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
