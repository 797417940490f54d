"""Notifications of ordered queues: when a claim may return more than before (C5)."""

from __future__ import annotations

from penstock.model.message import MessageId
from penstock.model.queue import Ordering
from penstock.model.states import State
from penstock.testing.conformance.harness import (
    TENANT,
    Conformance,
    Store,
    ids_of,
    msg,
)
from penstock.testing.conformance.ready import listen
from penstock.testing.laws import law

__all__ = ["TestReadyPartitions"]


class TestReadyPartitions(Conformance):
    """In an ordered queue, consumers wait for deliveries to be settled, removed or released."""

    @law("C5")
    async def test_a_partition_that_is_taken_leaves_the_next_to_others(self, store: Store) -> None:
        await store.queue(ordering=Ordering.PARTITION)
        for consumer in ("c2", "c3"):
            await store.engine.join(TENANT, "q", consumer)
        later = store.clock.now() + 60_000
        await store.publish(msg(partition_key="a", deliver_at=later), msg(partition_key="b"))
        ear = listen(store)
        # Until now c3 would have taken a, the first free partition, and received nothing.
        await store.engine.join(TENANT, "q", "c2")
        assert "q" in ear.heard()
        assert len(await store.claim(consumer="c3")) == 1

    @law("C5")
    async def test_a_settled_delivery_frees_its_partition(self, store: Store) -> None:
        await store.queue(ordering=Ordering.PARTITION)
        ids = await store.publish(*[msg(partition_key="a")] * 3)
        delivery = await store.claim_one()
        ear = listen(store)
        await store.ack(delivery)
        assert ear.heard() == {"q"}
        delivery = await store.claim_one()
        ear.heard()
        await store.reject(delivery)
        assert ear.heard() == {"q", "q.dlq"}
        assert ids_of(await store.claim()) == ids[2:]

    @law("C5")
    async def test_leaving_frees_partitions(self, store: Store) -> None:
        await store.queue(ordering=Ordering.PARTITION)
        ids = await store.publish(msg(partition_key="a"), msg(partition_key="b"))
        await store.claim(consumer="x", limit=1)
        assert await store.claim(consumer="y", limit=9) == []
        ear = listen(store)
        await store.engine.leave(TENANT, "q", "x")
        assert ear.heard() == {"q"}
        assert ids_of(await store.claim(consumer="y", limit=9)) == ids

    @law("C5")
    async def test_a_consumer_that_gives_up_its_excess_is_told(self, store: Store) -> None:
        await store.queue(ordering=Ordering.PARTITION)
        await store.publish(msg(partition_key="a"), msg(partition_key="b"))
        await store.engine.join(TENANT, "q", "x")
        assert await store.claim(consumer="y", limit=9) == []
        ear = listen(store)
        await store.engine.join(TENANT, "q", "x")
        assert ear.heard() == {"q"}
        assert len(await store.claim(consumer="y", limit=9)) == 1

    @law("C5")
    async def test_a_purge_of_the_first_lets_its_successor_go(self, store: Store) -> None:
        await store.queue(ordering=Ordering.PARTITION)
        deliver_at = store.clock.now() + 10**6
        first = msg(partition_key="a", deliver_at=deliver_at)
        _, second = await store.publish(first, msg(partition_key="a"))
        assert await store.claim() == []
        ear = listen(store)
        await store.engine.purge(TENANT, "q", State.DELAYED, None, 9)
        assert ear.heard() == {"q"}
        assert ids_of(await store.claim()) == [second]

    @law("C5")
    async def test_a_replacement_that_leaves_lets_its_successor_go(self, store: Store) -> None:
        await store.queue(filter="color = 'red'", ordering=Ordering.PARTITION)
        deliver_at = store.clock.now() + 10**6
        first = msg(partition_key="a", key="k", color="red", deliver_at=deliver_at)
        _, second = await store.publish(first, msg(partition_key="a", color="red"))
        assert await store.claim() == []
        ear = listen(store)
        await store.publish(msg(key="k", color="blue"))
        assert ear.heard() == {"q"}
        assert ids_of(await store.claim()) == [second]

    @law("C5")
    async def test_more_concurrency_is_told(self, store: Store) -> None:
        await store.queue(ordering=Ordering.PARTITION)
        await store.publish(*[msg(partition_key="a")] * 2)
        assert len(await store.claim(limit=9)) == 1
        ear = listen(store)
        await store.queue(ordering=Ordering.PARTITION, partition_concurrency=2)
        assert ear.heard() == {"q"}
        assert len(await store.claim(limit=9)) == 1

    @law("C5")
    async def test_a_nack_with_a_long_delay_makes_room_for_another(self, store: Store) -> None:
        await store.queue(ordering=Ordering.PARTITION, partition_concurrency=2)
        soon = msg(partition_key="b", deliver_at=store.clock.now() + 1)
        *_, third, _ = await store.publish(*[msg(partition_key="a")] * 3, soon)
        first, _ = await store.claim(limit=9)
        ear = listen(store)
        await store.nack(first, delay_ms=10**6)
        assert ear.heard() == {"q"}
        assert ids_of(await store.claim(limit=9)) == [third]

    @law("C5")
    async def test_one_consumer_less_leaves_more_for_the_others(self, store: Store) -> None:
        waiting = await self._share_of_one(store)
        ear = listen(store)
        await store.engine.leave(TENANT, "q", "y")
        assert ear.heard() == {"q"}
        assert ids_of(await store.claim(limit=9, consumer="x")) == [waiting]

    @law("C5")
    async def test_one_partition_more_makes_the_shares_larger(self, store: Store) -> None:
        """Even one without available deliveries."""
        waiting = await self._share_of_one(store)
        now = store.clock.now()
        await store.publish(msg(partition_key="a", deliver_at=now + 1))
        ear = listen(store)
        await store.publish(msg(partition_key="c", deliver_at=now + 10**6))
        assert ear.heard() == {"q"}
        assert ids_of(await store.claim(limit=9, consumer="x")) == [waiting]

    @law("C5")
    async def test_a_replacement_that_expires_sooner_is_told(self, store: Store) -> None:
        await store.queue(ordering=Ordering.PARTITION)
        now = store.clock.now()
        first = msg(partition_key="a", key="k", deliver_at=now + 10**6)
        _, second = await store.publish(first, msg(partition_key="a"))
        assert await store.claim() == []
        ear = listen(store)
        await store.publish(msg(key="k", expires_at=now + 400))
        assert ear.heard() == {"q"}
        assert await store.engine.next_due(TENANT, "q") == now + 400
        store.clock.advance(400)
        assert ids_of(await store.claim()) == [second]

    @staticmethod
    async def _share_of_one(store: Store) -> MessageId:
        """x and y have a share of one; y has nothing, and b has no owner. Returns b's id."""
        await store.queue(ordering=Ordering.PARTITION)
        await store.publish(msg(partition_key="a"))
        await store.claim_one(consumer="x")
        await store.engine.join(TENANT, "q", "y")
        (waiting,) = await store.publish(msg(partition_key="b"))
        assert await store.claim(limit=9, consumer="x") == []
        return waiting
