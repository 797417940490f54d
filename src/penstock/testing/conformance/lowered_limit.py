"""A lowered ``max_attempts`` applies to waiting deliveries when a claim reaches them (C2)."""

from __future__ import annotations

import pytest

from penstock.model.delivery import Nack, ReplaySource
from penstock.model.queue import Ordering
from penstock.model.states import State, Transition
from penstock.testing.conformance.harness import TENANT, Conformance, Store, ids_of, msg
from penstock.testing.laws import law

__all__ = ["TestLoweredLimit"]

LOWERED_TO_2 = "max_attempts was lowered to 2"


async def retry(store: Store, times: int, delay_ms: int = 0) -> None:
    """Claim the first delivery and nack it, ``times`` times."""
    for _ in range(times):
        outcome = await store.nack(await store.claim_one(), "broken", delay_ms)
        assert outcome.state is not State.FAILED


class TestLoweredLimit(Conformance):
    """A claim fails a delivery without attempts left instead of handing it out."""

    @law("C2")
    async def test_a_delivery_without_attempts_left_fails_at_the_claim(self, store: Store) -> None:
        await store.queue(max_attempts=5)
        first, second = await store.publish(b"1", b"2")
        await retry(store, 2)
        await store.queue(max_attempts=2)
        assert await store.ids("q", State.AVAILABLE) == [first, second]
        now = store.clock.advance(7)
        assert ids_of(await store.claim(limit=9)) == [second]
        (shown,) = await store.browse("q", State.FAILED)
        assert (shown.message.id, shown.attempts, shown.at) == (first, 2, now)
        assert shown.error == LOWERED_TO_2
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.grants, stats.nacks, stats.failures, stats.failed) == (3, 2, 1, 1)
        assert (stats.available, stats.in_flight) == (0, 1)

    async def test_the_history_says_why(self, store: Store) -> None:
        await store.queue()
        (first,) = await store.publish(b"1")
        await retry(store, 2)
        await store.queue(max_attempts=2)
        now = store.clock.advance(7)
        assert await store.claim() == []
        *_, before, last = await store.engine.history(TENANT, first)
        assert before.transition is Transition.NACK
        assert (last.transition, last.state) == (Transition.EXHAUST, State.FAILED)
        assert (last.at, last.queue, last.consumer) == (now, "q", None)
        assert last.error == LOWERED_TO_2

    @law("D1")
    async def test_it_can_be_claimed_from_the_dead_letters_and_replayed(self, store: Store) -> None:
        await store.queue()
        (first,) = await store.publish(b"1")
        await retry(store, 3)
        await store.queue(max_attempts=2)
        assert await store.claim() == []
        dead = await store.claim_one("q.dlq")
        assert (dead.message.id, dead.payload, dead.attempts) == (first, b"1", 4)
        await store.nack(dead)
        reply = await store.engine.replay(TENANT, "q", ReplaySource.FAILED, None, 9)
        assert reply.count == 1
        assert (await store.claim_one()).attempts == 1

    @law("S2")
    async def test_it_stays_failed_after_a_restart(self, store: Store) -> None:
        await store.queue()
        (first,) = await store.publish(b"1")
        await retry(store, 2)
        await store.queue(max_attempts=2)
        assert await store.claim() == []
        await store.reopen()
        assert await store.claim() == []
        (shown,) = await store.browse("q", State.FAILED)
        assert (shown.message.id, shown.error) == (first, LOWERED_TO_2)

    async def test_a_delayed_delivery_fails_when_it_is_due(self, store: Store) -> None:
        await store.queue()
        (first,) = await store.publish(b"1")
        await retry(store, 1)
        await retry(store, 1, delay_ms=100)
        await store.queue(max_attempts=2)
        assert await store.claim() == []
        assert await store.states(first) == {"q": State.DELAYED}
        store.clock.advance(100)
        assert await store.claim() == []
        assert await store.states(first) == {"q": State.FAILED}

    async def test_releases_do_not_count(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"1")
        for _ in range(3):
            await store.release(await store.claim_one())
        await retry(store, 1)
        await store.queue(max_attempts=2)
        last = await store.claim_one()
        assert last.attempts == 5
        await store.queue(max_attempts=1)
        await store.release(last)
        assert await store.claim() == []
        assert len(await store.browse("q", State.FAILED)) == 1

    async def test_a_claim_stops_when_it_has_enough(self, store: Store) -> None:
        await store.queue()
        ids = await store.publish(*[b"x"] * 5)
        for delivery in await store.claim(limit=5):
            if delivery.message.id in (ids[0], ids[1], ids[3]):
                await store.nack(delivery, delay_ms=0)
            else:
                await store.release(delivery)
        await store.queue(max_attempts=1)
        assert ids_of(await store.claim(limit=1)) == [ids[2]]
        assert await store.ids("q", State.FAILED) == ids[:2]
        assert await store.ids("q", State.AVAILABLE) == ids[3:]
        assert ids_of(await store.claim(limit=1)) == [ids[4]]
        assert await store.ids("q", State.FAILED) == [ids[0], ids[1], ids[3]]

    async def test_a_claim_of_one_gets_past_a_backlog(self, store: Store) -> None:
        await store.queue()
        ids = await store.publish(*[b"x"] * 100)
        held = await store.claim(limit=100)
        await store.engine.settle(TENANT, "q", [Nack(item.receipt, delay_ms=0) for item in held])
        (last,) = await store.publish(b"y")
        await store.queue(max_attempts=1)
        assert ids_of(await store.claim(limit=1)) == [last]
        assert await store.ids("q", State.FAILED) == ids

    async def test_a_limit_raised_again_before_a_claim_fails_nothing(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"1")
        await retry(store, 2)
        await store.queue(max_attempts=2)
        await store.sweep_all()
        await store.queue(max_attempts=3, paused=True)
        assert await store.claim() == []
        await store.queue(max_attempts=3)
        assert (await store.claim_one()).attempts == 3

    async def test_a_delivery_past_its_time_expires(self, store: Store) -> None:
        await store.queue()
        (first,) = await store.publish(msg(b"1", expires_at=store.clock.now() + 10))
        await retry(store, 2)
        await store.queue(max_attempts=2)
        store.clock.advance(10)
        assert await store.claim() == []
        assert await store.states(first) == {"q": State.EXPIRED}

    @pytest.mark.parametrize("concurrency", [1, 2])
    async def test_a_partition_continues_with_its_next_delivery(
        self, store: Store, concurrency: int
    ) -> None:
        async def put(most: int) -> None:
            await store.queue(
                ordering=Ordering.PARTITION, partition_concurrency=concurrency, max_attempts=most
            )

        await put(5)
        first, second, other = await store.publish(
            msg(b"1", partition_key="a"), msg(b"2", partition_key="a"), msg(b"3", partition_key="b")
        )
        await retry(store, 2)
        await put(2)
        assert ids_of(await store.claim(limit=2)) == [second, other]
        assert await store.ids("q", State.FAILED) == [first]
        await store.verify()

    @law("C4")
    async def test_a_successor_does_not_overtake_what_was_reached_before(
        self, store: Store
    ) -> None:
        """A claim of two hands out what two claims of one do."""
        await store.queue(ordering=Ordering.PARTITION)
        b1, a1, a2 = await store.publish(
            msg(b"b1", partition_key="b"),
            msg(b"a1", partition_key="a"),
            msg(b"a2", partition_key="a", priority=9),
        )
        first, second = await store.claim(limit=2)
        await store.release(first)
        await store.nack(second, delay_ms=0)
        await store.queue(ordering=Ordering.PARTITION, max_attempts=1)
        assert ids_of(await store.claim(limit=2)) == [b1, a2]
        assert await store.ids("q", State.FAILED) == [a1]

    @law("C4")
    async def test_a_claim_fails_only_what_it_reaches_in_partitions(self, store: Store) -> None:
        await store.queue(ordering=Ordering.PARTITION)
        a1, b1, c1, a2, b2, c2 = await store.publish(
            *(msg(partition_key=name) for name in "abcabc")
        )
        for delivery in await store.claim(limit=3):
            await store.nack(delivery, delay_ms=0)
        await store.queue(ordering=Ordering.PARTITION, max_attempts=1)
        assert ids_of(await store.claim(limit=1)) == [a2]
        assert await store.ids("q", State.FAILED) == [a1, b1, c1]
        assert ids_of(await store.claim(limit=1)) == [b2]
        assert ids_of(await store.claim(limit=1)) == [c2]

    async def test_the_last_of_a_partition_ends_it(self, store: Store) -> None:
        await store.queue(ordering=Ordering.PARTITION)
        await store.publish(msg(b"1", partition_key="a"))
        await retry(store, 2)
        await store.queue(ordering=Ordering.PARTITION, max_attempts=2)
        assert await store.claim() == []
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.partitions, stats.failed) == ((), 1)
