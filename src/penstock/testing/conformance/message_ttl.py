"""The queue's own time to live: ``message_ttl_ms`` (C3)."""

from __future__ import annotations

import pytest

from penstock.model.delivery import ReplaySource
from penstock.model.queue import Ordering, Start
from penstock.model.states import State
from penstock.testing.conformance.harness import TENANT, Conformance, Store, ids_of, msg
from penstock.testing.laws import law

__all__ = ["TestMessageTtl"]

TTL_MS = 1_000


class TestMessageTtl(Conformance):
    """A delivery expires in its queue before its message does elsewhere."""

    @law("C3", "Q1")
    @pytest.mark.parametrize("ordering", list(Ordering))
    async def test_a_delivery_expires_in_this_queue_only(
        self, store: Store, ordering: Ordering
    ) -> None:
        await store.queue(message_ttl_ms=TTL_MS, ordering=ordering)
        await store.queue("other")
        first, second = await store.publish(b"1", b"2")
        store.clock.advance(TTL_MS - 1)
        assert ids_of(await store.claim()) == [first]
        store.clock.advance(1)
        assert await store.claim() == []
        (shown,) = await store.browse("q", State.EXPIRED)
        assert (shown.message.id, shown.at) == (second, store.clock.now())
        assert shown.message.expires_at == store.clock.now()
        assert ids_of(await store.claim("other", 9)) == [first, second]

    @law("C3")
    async def test_the_earlier_expiry_counts(self, store: Store) -> None:
        await store.queue(message_ttl_ms=TTL_MS)
        now = store.clock.now()
        await store.publish(
            msg(b"sooner", expires_at=now + 400), msg(b"later", expires_at=now + 5_000), msg(b"no")
        )
        shown = await store.browse("q", State.AVAILABLE)
        assert [s.message.expires_at for s in shown] == [now + 400, now + TTL_MS, now + TTL_MS]
        logged = await store.log()
        assert [m.expires_at for m in logged] == [now + 400, now + 5_000, None]
        deliveries = await store.claim(limit=9)
        assert [d.message.expires_at for d in deliveries] == [
            now + 400,
            now + TTL_MS,
            now + TTL_MS,
        ]
        for delivery in deliveries:
            await store.release(delivery)
        store.clock.advance(400)
        assert [d.payload for d in await store.claim(limit=9)] == [b"later", b"no"]

    @law("C3")
    async def test_a_retry_does_not_renew_it(self, store: Store) -> None:
        await store.queue(message_ttl_ms=TTL_MS)
        await store.publish(b"1", b"2", b"3")
        nacked, lapsed, acked = await store.claim(limit=3, lease_ms=TTL_MS)
        store.clock.advance(TTL_MS // 2)
        assert (await store.nack(nacked)).state is State.AVAILABLE
        (again,) = await store.claim()
        assert again.message.expires_at == nacked.message.expires_at
        store.clock.advance(TTL_MS // 2)
        assert (await store.nack(again)).state is State.EXPIRED
        assert (await store.ack(acked)).state is State.DONE
        await store.sweep_all()
        assert await store.ids("q", State.EXPIRED) == [nacked.message.id, lapsed.message.id]

    @law("C3")
    async def test_a_sweep_expires_waiting_and_delayed_deliveries(self, store: Store) -> None:
        await store.queue(message_ttl_ms=TTL_MS)
        late = msg(deliver_at=store.clock.now() + 2 * TTL_MS)
        ids = await store.publish(msg(priority=1), late, b"", msg(partition_key="p"))
        assert await store.engine.next_due(TENANT, "q") is not None
        store.clock.advance(TTL_MS)
        assert (await store.engine.sweep()).expired == len(ids)
        assert sorted(await store.ids("q", State.EXPIRED)) == ids
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.available, stats.delayed, stats.expired) == (0, 0, len(ids))

    async def test_it_counts_from_when_the_delivery_enters_the_queue(self, store: Store) -> None:
        await store.publish(b"old")
        store.clock.advance(10 * TTL_MS)
        await store.queue(message_ttl_ms=TTL_MS, start=Start(Start.EARLIEST))
        await store.engine.route(TENANT, "q", 10)
        (shown,) = await store.browse("q", State.AVAILABLE)
        assert shown.message.expires_at == store.clock.now() + TTL_MS

    async def test_a_changed_ttl_applies_to_later_deliveries(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"1")
        await store.queue(message_ttl_ms=TTL_MS)
        await store.publish(b"2")
        await store.queue()
        await store.publish(b"3")
        store.clock.advance(TTL_MS)
        assert [d.payload for d in await store.claim(limit=9)] == [b"1", b"3"]

    @pytest.mark.parametrize("source", [ReplaySource.FAILED, ReplaySource.DONE, ReplaySource.LOG])
    async def test_a_replay_begins_it_again(self, store: Store, source: ReplaySource) -> None:
        await store.queue(message_ttl_ms=TTL_MS)
        end = store.clock.now() + 20 * TTL_MS
        await store.publish(msg(b"1", expires_at=end), b"2")
        for delivery in await store.claim(limit=2):
            if source is ReplaySource.FAILED:
                await store.reject(delivery)
            else:
                await store.ack(delivery)
        store.clock.advance(10 * TTL_MS)
        reply = await store.engine.replay(TENANT, "q", source, None, 9)
        assert (reply.count, reply.skipped) == (2, 0)
        ends = store.clock.now() + TTL_MS
        assert [s.message.expires_at for s in reply.sample] == [ends, ends]
        shown = await store.browse("q", State.AVAILABLE)
        assert [s.message.expires_at for s in shown] == [ends, ends]
        store.clock.advance(TTL_MS)
        await store.sweep_all()
        assert len(await store.ids("q", State.EXPIRED)) == 2
        store.clock.advance(10 * TTL_MS)
        reply = await store.engine.replay(TENANT, "q", ReplaySource.LOG, None, 9)
        assert (reply.count, reply.skipped) == (1, 1)

    async def test_a_keyed_replacement_begins_it_again(self, store: Store) -> None:
        await store.queue(message_ttl_ms=TTL_MS)
        (first,) = await store.publish(msg(b"1", key="k"))
        store.clock.advance(TTL_MS - 1)
        assert await store.publish(msg(b"2", key="k")) == [first]
        store.clock.advance(TTL_MS - 1)
        await store.sweep_all()
        delivery = await store.claim_one()
        assert (delivery.message.id, delivery.payload) == (first, b"2")
        assert delivery.message.expires_at == store.clock.now() + 1

    async def test_dead_letters_do_not_expire(self, store: Store) -> None:
        await store.queue(message_ttl_ms=TTL_MS)
        await store.publish(b"1")
        failed = await store.fail_one()
        store.clock.advance(10 * TTL_MS)
        await store.sweep_all()
        assert ids_of(await store.claim("q.dlq")) == [failed.message.id]

    async def test_it_survives_reopening(self, store: Store) -> None:
        await store.queue(message_ttl_ms=TTL_MS)
        await store.publish(b"1", b"2")
        held = await store.claim_one(lease_ms=100 * TTL_MS)
        await store.reopen()
        store.clock.advance(TTL_MS)
        assert await store.claim() == []
        assert (await store.nack(held)).state is State.EXPIRED
        assert len(await store.ids("q", State.EXPIRED)) == 2
