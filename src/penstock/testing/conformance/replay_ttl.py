"""replay with a new ttl: deliveries whose expiry has passed come back, and expire again."""

from __future__ import annotations

import pytest

from penstock.errors import Conflict
from penstock.model.delivery import ReplaySource
from penstock.model.message import Offset
from penstock.model.states import State, Transition
from penstock.testing.conformance.harness import TENANT, Conformance, Store, ids_of, msg
from penstock.testing.laws import law

__all__ = ["TestReplayTtl"]

FAILED, DONE, LOG = ReplaySource.FAILED, ReplaySource.DONE, ReplaySource.LOG


class TestReplayTtl(Conformance):
    """The new expiry belongs to the delivery, and not to its message."""

    async def _failed(self, store: Store, ttl_ms: int = 10) -> int:
        """A dead letter past its expiry; returns that expiry."""
        expires_at = store.clock.now() + ttl_ms
        await store.publish(msg(b"x", expires_at=expires_at))
        await store.fail_one()
        store.clock.advance(ttl_ms)
        return expires_at

    @law("C3")
    async def test_an_expired_dead_letter_comes_back(self, store: Store) -> None:
        await store.queue()
        await self._failed(store)
        reply = await store.engine.replay(TENANT, "q", FAILED, None, 9)
        assert (reply.count, reply.skipped) == (0, 1)
        reply = await store.engine.replay(TENANT, "q", FAILED, None, 9, ttl_ms=1000)
        assert (reply.count, reply.skipped) == (1, 0)
        expires_at = store.clock.now() + 1000
        assert [shown.message.expires_at for shown in reply.sample] == [expires_at]
        store.clock.advance(999)
        delivery = await store.claim_one()
        assert (delivery.payload, delivery.attempts) == (b"x", 1)
        assert delivery.message.expires_at == expires_at
        store.clock.advance(1)
        assert (await store.nack(delivery)).state is State.EXPIRED
        (shown,) = await store.browse("q", State.EXPIRED)
        assert (shown.message.expires_at, shown.at) == (expires_at, expires_at)

    @law("C3")
    @pytest.mark.parametrize("sweeps", [True, False])
    async def test_it_expires_while_it_waits(self, store: Store, sweeps: bool) -> None:
        await store.queue()
        await self._failed(store)
        await store.engine.replay(TENANT, "q", FAILED, None, 9, ttl_ms=50)
        store.clock.advance(50)
        if sweeps:
            await store.sweep_all()
        else:
            assert await store.claim() == []
        assert len(await store.browse("q", State.EXPIRED)) == 1

    @law("L1", "Q1")
    async def test_the_log_and_other_queues_keep_the_old_expiry(self, store: Store) -> None:
        await store.queue("a")
        await store.queue("b")
        expires_at = store.clock.now() + 10
        (message_id,) = await store.publish(msg(expires_at=expires_at))
        await store.fail_one("a")
        store.clock.advance(10)
        await store.engine.replay(TENANT, "a", FAILED, None, 9, ttl_ms=1000)
        known = await store.engine.message(TENANT, message_id)
        assert known.message.expires_at == expires_at
        assert {d.queue: d.message.expires_at for d in known.deliveries} == {
            "a": store.clock.now() + 1000,
            "b": expires_at,
        }
        page = await store.engine.read_log(TENANT, Offset(message_id), 1)
        assert [entry.message.expires_at for entry in page.entries] == [expires_at]
        assert await store.claim("b") == []
        assert ids_of(await store.claim("a")) == [message_id]

    async def test_it_lasts_until_the_next_replay(self, store: Store) -> None:
        await store.queue()
        await self._failed(store)
        await store.engine.replay(TENANT, "q", FAILED, None, 9, ttl_ms=1000)
        expires_at = store.clock.now() + 1000
        await store.fail_one()
        dead = await store.claim_one("q.dlq")
        assert dead.message.expires_at == expires_at
        await store.release(dead)
        reply = await store.engine.replay(TENANT, "q", FAILED, None, 9)
        assert (reply.count, reply.skipped) == (0, 1)
        assert (await store.engine.replay(TENANT, "q", FAILED, None, 9, ttl_ms=5)).count == 1
        (shown,) = await store.browse("q", State.AVAILABLE)
        assert shown.message.expires_at == store.clock.now() + 5

    @law("C3")
    async def test_the_ttl_of_the_queue_is_an_upper_limit(self, store: Store) -> None:
        await store.queue(message_ttl_ms=100)
        await self._failed(store)
        await store.engine.replay(TENANT, "q", FAILED, None, 9, ttl_ms=1000)
        (shown,) = await store.browse("q", State.AVAILABLE)
        assert shown.message.expires_at == store.clock.now() + 100

    async def test_it_counts_from_when_the_delivery_is_due(self, store: Store) -> None:
        await store.queue()
        now = store.clock.now()
        await store.publish(*(msg(expires_at=now + 10) for _ in range(3)))
        for _ in range(3):
            await store.fail_one()
        now = store.clock.advance(10)
        await store.engine.replay(TENANT, "q", FAILED, None, 9, rate=10, ttl_ms=50)
        waiting = [
            *await store.browse("q", State.AVAILABLE),
            *await store.browse("q", State.DELAYED),
        ]
        assert [shown.message.expires_at for shown in waiting] == [now + 50, now + 150, now + 250]
        store.clock.advance(100)
        assert len(await store.claim(limit=9)) == 1
        assert (await store.engine.stats(TENANT, "q")).expired == 1

    @pytest.mark.parametrize("source", [DONE, LOG])
    async def test_from_every_source(self, store: Store, source: ReplaySource) -> None:
        await store.queue()
        await store.publish(msg(expires_at=store.clock.now() + 10), msg())
        if source is DONE:
            for delivery in await store.claim(limit=2):
                await store.ack(delivery)
        else:
            store.clock.advance(10)
            await store.ack(await store.claim_one())
        store.clock.advance(10)
        reply = await store.engine.replay(TENANT, "q", source, None, 9, ttl_ms=500)
        assert (reply.count, reply.skipped) == (2, 0)
        claimed = await store.claim(limit=2)
        expires_at = store.clock.now() + 500
        assert [delivery.message.expires_at for delivery in claimed] == [expires_at] * 2

    async def test_a_dry_run_moves_nothing(self, store: Store) -> None:
        await store.queue()
        expires_at = await self._failed(store)
        reply = await store.engine.replay(TENANT, "q", FAILED, None, 9, dry_run=True, ttl_ms=5)
        assert reply.count == 1
        (shown,) = await store.browse("q", State.FAILED)
        assert shown.message.expires_at == expires_at

    @law("E1")
    async def test_dead_letters_do_not_expire(self, store: Store) -> None:
        await store.queue()
        await self._failed(store)
        await store.ack(await store.claim_one("q.dlq"))
        with pytest.raises(Conflict) as refused:
            await store.engine.replay(TENANT, "q.dlq", DONE, None, 9, ttl_ms=5)
        assert refused.value.field == "ttl_ms"
        assert len(await store.browse("q.dlq", State.DONE)) == 1

    async def test_a_keyed_replacement_sets_the_expiry_again(self, store: Store) -> None:
        """A message that was never claimed comes from the log with its key still open."""
        await store.queue("other", "color = 'red'")
        now = store.clock.now()
        (message_id,) = await store.publish(msg(key="k", color="red", expires_at=now + 1000))
        await store.queue("q")
        await store.engine.replay(TENANT, "q", LOG, None, 9, ttl_ms=5000)
        await store.publish(msg(key="k", color="red", expires_at=now + 2000))
        known = await store.engine.message(TENANT, message_id)
        assert {d.message.expires_at for d in known.deliveries} == {now + 2000}

    @law("C1")
    async def test_it_survives_a_restart(self, store: Store) -> None:
        await store.queue()
        await self._failed(store)
        await store.engine.replay(TENANT, "q", FAILED, None, 9, ttl_ms=1000)
        if store.engine.capabilities.persistent:
            await store.reopen()
        delivery = await store.claim_one()
        assert delivery.message.expires_at == store.clock.now() + 1000
        events = await store.engine.history(TENANT, delivery.message.id)
        assert events[-2].transition is Transition.REPLAY
