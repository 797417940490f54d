"""stats: counts that equal a full scan (Q2), ages, counters, watermark and lag."""

from __future__ import annotations

from penstock.model.counts import QueueCounts
from penstock.model.delivery import ReplaySource
from penstock.model.message import Offset
from penstock.model.states import State
from penstock.testing.conformance.harness import TENANT, Conformance, Store, msg
from penstock.testing.laws import law

__all__ = ["TestStats"]


class TestStats(Conformance):
    """``Store.verify`` compares counts with a scan after every test; this tests the rest."""

    async def test_an_empty_queue(self, store: Store) -> None:
        await store.queue()
        stats = await store.engine.stats(TENANT, "q")
        assert stats.depth == 0
        assert stats.oldest_available_ms is None
        assert stats.in_flight_by_consumer == {}
        assert (stats.watermark, stats.lag, stats.partitions) == (-1, 0, ())

    @law("Q2")
    async def test_every_count(self, store: Store) -> None:
        await store.queue(max_attempts=2)
        now = store.clock.now()
        await store.publish(*[b"x"] * 10)
        await store.publish(*[msg(deliver_at=now + 5000)] * 2, *[msg(expires_at=now + 50)] * 3)
        a = await store.claim(limit=6, consumer="a")
        b = await store.claim(limit=3, consumer="b")
        await store.ack(a[0])
        await store.ack(a[1])
        await store.nack(a[2])
        await store.reject(a[3])
        await store.release(b[0])
        store.clock.advance(50)
        await store.claim(limit=0)
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.delayed, stats.available, stats.in_flight) == (2, 3, 4)
        assert (stats.done, stats.failed, stats.expired) == (2, 1, 3)
        assert stats.in_flight_by_consumer == {"a": 2, "b": 2}
        assert (stats.grants, stats.acks, stats.nacks, stats.failures) == (9, 2, 1, 1)
        assert stats.depth == 9
        assert stats.lag == 9

    @law("Q2")
    async def test_the_counts_of_several_queues_are_those_of_stats(self, store: Store) -> None:
        await store.queue(max_attempts=2)
        await store.queue("paused", paused=True)
        now = store.clock.now()
        await store.publish(*[b"x"] * 6, *[msg(deliver_at=now + 5000)] * 2)
        a = await store.claim(limit=4, consumer="a")
        await store.ack(a[0])
        await store.nack(a[1])
        await store.reject(a[2])
        names = ("q", "none", "paused")
        counts = await store.engine.counts(TENANT, names)
        assert counts[1] is None
        for name, found in zip(names[::2], counts[::2], strict=True):
            info = await store.engine.get_queue(TENANT, name)
            stats = await store.engine.stats(TENANT, name)
            assert found == QueueCounts.of(info, stats, store.clock.now())

    async def test_the_age_of_the_oldest_available(self, store: Store) -> None:
        await store.queue()
        await store.publish(msg(b"old", priority=0))
        store.clock.advance(100)
        await store.publish(msg(b"new", priority=9))
        store.clock.advance(10)
        assert (await store.engine.stats(TENANT, "q")).oldest_available_ms == 110
        await store.ack(await store.claim_one())
        assert (await store.engine.stats(TENANT, "q")).oldest_available_ms == 110
        old = await store.claim_one()
        assert (await store.engine.stats(TENANT, "q")).oldest_available_ms is None
        await store.release(old)
        store.clock.advance(5)
        assert (await store.engine.stats(TENANT, "q")).oldest_available_ms == 115

    async def test_the_watermark_follows_the_first_unsettled(self, store: Store) -> None:
        await store.queue()
        ids = await store.publish(*[b"x"] * 4)
        first, second, third, fourth = await store.claim(limit=4)
        for delivery, watermark, lag in [
            (second, ids[0] - 1, 3),
            (first, ids[2] - 1, 2),
            (fourth, ids[2] - 1, 1),
        ]:
            await store.ack(delivery)
            stats = await store.engine.stats(TENANT, "q")
            assert (stats.watermark, stats.lag) == (watermark, lag)
        await store.reject(third)
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.watermark, stats.lag) == (await store.engine.log_end(TENANT) - 1, 0)

    async def test_the_watermark_passes_what_is_not_the_queues(self, store: Store) -> None:
        await store.queue(filter="color = 'red'")
        await store.publish(msg(color="blue"))
        end = await store.engine.log_end(TENANT)
        assert (await store.engine.stats(TENANT, "q")).watermark == end - 1
        (red,) = await store.publish(msg(color="red"))
        await store.publish(msg(color="blue"))
        assert (await store.engine.stats(TENANT, "q")).watermark == red - 1

    async def test_delayed_and_low_priorities_hold_the_watermark(self, store: Store) -> None:
        await store.queue()
        delayed, _ = await store.publish(
            msg(deliver_at=store.clock.now() + 100, priority=0), msg(priority=9)
        )
        await store.ack(await store.claim_one())
        assert (await store.engine.stats(TENANT, "q")).watermark == delayed - 1

    async def test_replay_takes_the_watermark_back(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        await store.fail_one()
        assert (await store.engine.stats(TENANT, "q")).watermark == Offset(message_id)
        await store.engine.replay(TENANT, "q", ReplaySource.FAILED, None, 9)
        assert (await store.engine.stats(TENANT, "q")).watermark == message_id - 1

    async def test_lapses_and_expiries_are_neither_acks_nor_nacks(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x", msg(expires_at=store.clock.now() + 10))
        await store.claim_one(lease_ms=1000)
        store.clock.advance(1000)
        await store.sweep_all()
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.grants, stats.acks, stats.nacks, stats.failures) == (1, 0, 0, 0)
        assert await store.ids("q", State.AVAILABLE)
