"""sweep: time in every queue, and retention, which never removes too much (G1, A1)."""

from __future__ import annotations

import pytest

from penstock.errors import UnknownDelivery, UnknownMessage
from penstock.model.delivery import ReplaySource, Verdict
from penstock.model.message import MessageId, Offset
from penstock.model.queue import Start
from penstock.model.states import State
from penstock.testing.conformance.harness import (
    OTHER_TENANT,
    TENANT,
    Conformance,
    Store,
    ids_of,
    msg,
    opened_with,
)
from penstock.testing.laws import law

__all__ = ["TestDeliveryRetention", "TestLogRetention", "TestSweep"]

DAY_MS = 24 * 3600 * 1000


class TestSweep(Conformance):
    """Time takes effect everywhere."""

    async def test_due_lapsed_and_expired_in_every_queue(self, store: Store) -> None:
        now = store.clock.now()
        for tenant in (TENANT, OTHER_TENANT):
            await store.queue("a", tenant=tenant)
            await store.queue("b", tenant=tenant)
            await store.publish(b"x", tenant=tenant)
            await store.claim_one("a", lease_ms=1000, tenant=tenant)
            await store.publish(
                msg(deliver_at=now + 1000), msg(expires_at=now + 1000), tenant=tenant
            )
        store.clock.advance(1000)
        reply = await store.engine.sweep()
        assert (reply.due, reply.lapsed, reply.expired, reply.more) == (4, 2, 4, False)
        for tenant in (TENANT, OTHER_TENANT):
            for queue in ("a", "b"):
                stats = await store.engine.stats(tenant, queue)
                assert (stats.delayed, stats.available, stats.in_flight) == (0, 2, 0)
                assert stats.expired == 1

    async def test_both_ends_are_exact(self, store: Store) -> None:
        await store.queue()
        now = store.clock.now()
        await store.publish(b"x")
        await store.claim_one(lease_ms=1000)
        await store.publish(msg(deliver_at=now + 1000), msg(expires_at=now + 1000))
        store.clock.advance(999)
        reply = await store.engine.sweep()
        assert (reply.due, reply.lapsed, reply.expired) == (0, 0, 0)
        store.clock.advance(1)
        reply = await store.engine.sweep()
        assert (reply.due, reply.lapsed, reply.expired) == (1, 1, 1)

    async def test_due_and_past_its_expiry_counts_as_expired_only(self, store: Store) -> None:
        await store.queue()
        now = store.clock.now()
        await store.publish(msg(deliver_at=now + 1000, expires_at=now + 2000))
        store.clock.advance(2000)
        reply = await store.engine.sweep()
        assert (reply.due, reply.lapsed, reply.expired) == (0, 0, 1)
        assert (await store.engine.stats(TENANT, "q")).expired == 1

    async def test_dead_letters_too(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"1", b"2")
        await store.fail_one()
        await store.fail_one()
        await store.nack(await store.claim_one("q.dlq"), delay_ms=1000)
        await store.claim_one("q.dlq", lease_ms=1000)
        store.clock.advance(1000)
        await store.sweep_all()
        assert (await store.engine.stats(TENANT, "q.dlq")).available == 2

    async def test_in_small_steps_it_does_the_same(self, store: Store) -> None:
        await store.queue(done_retention_s=1)
        now = store.clock.now()
        await store.publish(*[b"x"] * 5)
        for delivery in await store.claim(limit=5):
            await store.ack(delivery)
        await store.publish(*[b"y"] * 5)
        await store.claim(limit=5, lease_ms=1000)
        await store.publish(*[msg(deliver_at=now + 500)] * 5, *[msg(expires_at=now + 500)] * 5)
        store.clock.advance(1000)
        first = await store.engine.sweep(3)
        assert first.more
        await store.sweep_all(3)
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.available, stats.in_flight, stats.expired, stats.done) == (10, 0, 5, 0)

    async def test_nothing_to_do(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x", msg(deliver_at=store.clock.now() + 10))
        await store.claim_one()
        before = await store.picture("q")
        reply = await store.engine.sweep()
        assert (reply.due, reply.lapsed, reply.expired, reply.removed) == (0, 0, 0, 0)
        assert (reply.entries_removed, reply.more) == (0, False)
        assert await store.picture("q") == before

    async def test_a_paused_queue_is_swept(self, store: Store) -> None:
        await store.queue(paused=True)
        await store.publish(msg(deliver_at=store.clock.now() + 10))
        store.clock.advance(10)
        await store.sweep_all()
        assert (await store.engine.stats(TENANT, "q")).available == 1


class TestDeliveryRetention(Conformance):
    """done and expired are removed after done_retention, failed after failed_retention."""

    async def test_done_leave_on_time(self, store: Store) -> None:
        await store.queue(done_retention_s=10)
        (message_id,) = await store.publish(b"x")
        delivery = await store.claim_one()
        await store.ack(delivery, b"r")
        store.clock.advance(9_999)
        assert (await store.engine.sweep()).removed == 0
        assert (await store.ack(delivery)).ok
        store.clock.advance(1)
        assert (await store.engine.sweep()).removed == 1
        assert await store.browse("q", State.DONE) == []
        with pytest.raises(UnknownDelivery):
            await store.engine.result(TENANT, "q", message_id)
        assert await store.engine.history(TENANT, message_id) == ()
        assert await store.states(message_id) == {}
        assert (await store.ack(delivery)).verdict is Verdict.STALE

    async def test_expired_leave_on_time(self, store: Store) -> None:
        await store.queue(done_retention_s=10)
        await store.publish(msg(expires_at=store.clock.now() + 5))
        store.clock.advance(5)
        await store.sweep_all()
        store.clock.advance(9_999)
        await store.sweep_all()
        assert (await store.engine.stats(TENANT, "q")).expired == 1
        store.clock.advance(1)
        await store.sweep_all()
        assert (await store.engine.stats(TENANT, "q")).expired == 0

    async def test_failed_leave_after_their_own_time(self, store: Store) -> None:
        await store.queue(done_retention_s=1, failed_retention_s=10)
        await store.publish(b"x")
        await store.fail_one()
        store.clock.advance(9_999)
        await store.sweep_all()
        assert (await store.engine.stats(TENANT, "q")).failed == 1
        store.clock.advance(1)
        assert (await store.engine.sweep()).removed == 1
        assert await store.claim("q.dlq") == []
        assert (await store.engine.stats(TENANT, "q")).failed == 0

    @law("G1")
    async def test_a_dead_letter_in_flight_is_not_removed(self, store: Store) -> None:
        await store.queue(failed_retention_s=10)
        await store.publish(b"x")
        await store.fail_one()
        store.clock.advance(9_000)
        delivery = await store.claim_one("q.dlq", lease_ms=60_000)
        store.clock.advance(9_000)
        await store.sweep_all()
        assert (await store.ack(delivery)).state is State.DONE

    async def test_done_in_the_dead_letters_leave_like_done(self, store: Store) -> None:
        await store.queue(done_retention_s=10, failed_retention_s=0)
        await store.publish(b"x")
        await store.fail_one()
        await store.ack(await store.claim_one("q.dlq"))
        store.clock.advance(10_000)
        await store.sweep_all()
        assert (await store.engine.stats(TENANT, "q.dlq")).done == 0

    async def test_0_keeps_for_ever(self, store: Store) -> None:
        await store.queue(done_retention_s=0, failed_retention_s=0)
        await store.publish(b"1", b"2", msg(expires_at=store.clock.now() + 10))
        await store.ack(await store.claim_one())
        await store.fail_one()
        store.clock.advance(3650 * DAY_MS)
        await store.sweep_all()
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.done, stats.failed, stats.expired) == (1, 1, 1)

    async def test_a_changed_retention_applies_at_once(self, store: Store) -> None:
        await store.queue(done_retention_s=0)
        await store.publish(b"x")
        await store.ack(await store.claim_one())
        store.clock.advance(5_000)
        await store.queue(done_retention_s=5)
        await store.sweep_all()
        assert (await store.engine.stats(TENANT, "q")).done == 0

    @law("G1")
    async def test_live_deliveries_never_leave(self, store: Store) -> None:
        """A sweep that deletes by age would remove live deliveries."""
        await store.queue(done_retention_s=1, failed_retention_s=1)
        far = store.clock.now() + 3650 * DAY_MS
        waiting, delayed = await store.publish(b"x", msg(deliver_at=far))
        store.clock.advance(365 * DAY_MS)
        await store.sweep_all()
        assert await store.ids("q", State.AVAILABLE) == [waiting]
        assert await store.ids("q", State.DELAYED) == [delayed]

    async def test_a_replayed_delivery_is_live_again(self, store: Store) -> None:
        await store.queue(done_retention_s=10)
        ids = await store.publish(b"x")
        await store.ack(await store.claim_one())
        await store.engine.replay(TENANT, "q", ReplaySource.DONE, None, 9)
        store.clock.advance(10_000)
        await store.sweep_all()
        assert ids_of(await store.claim()) == ids

    @law("Q1")
    async def test_each_queue_by_its_own_retention(self, store: Store) -> None:
        await store.queue("a", done_retention_s=1)
        await store.queue("b", done_retention_s=100)
        (message_id,) = await store.publish(b"x")
        for queue in ("a", "b"):
            await store.ack(await store.claim_one(queue))
        store.clock.advance(1000)
        await store.sweep_all()
        assert await store.states(message_id) == {"b": State.DONE}


class TestLogRetention(Conformance):
    """An entry is removed only when nothing needs it; engines may keep it longer, never shorter."""

    async def is_kept(self, store: Store, message_id: MessageId, payload: bytes) -> bool:
        try:
            found = await store.engine.message(TENANT, message_id)
        except UnknownMessage:
            assert message_id not in [m.id for m in await store.log()]
            return False
        assert found.payload == payload
        return True

    async def age(self, store: Store) -> None:
        """Let more time pass than any retention, with traffic, and sweep each time."""
        for _ in range(3):
            store.clock.advance(2 * DAY_MS)
            await store.publish(b"traffic", topic="traffic")
            await store.sweep_all()

    @law("G1")
    async def test_never_before_log_retention(self, store: Store) -> None:
        (message_id,) = await store.publish(b"x")
        store.clock.advance(DAY_MS - 1)
        await store.sweep_all()
        assert await self.is_kept(store, message_id, b"x")

    async def test_eventually_gone(self, store: Store) -> None:
        ids = await store.publish(b"x", b"y")
        end = await store.engine.log_end(TENANT)
        await self.age(store)
        for message_id in ids:
            assert not await self.is_kept(store, message_id, b"")
            with pytest.raises(UnknownMessage):
                await store.engine.history(TENANT, message_id)
        assert await store.engine.log_end(TENANT) > end

    @law("G1")
    async def test_a_message_that_waits_is_kept(self, store: Store) -> None:
        await store.queue(filter="topic = 'orders'")
        (message_id,) = await store.publish(b"x")
        await self.age(store)
        assert await self.is_kept(store, message_id, b"x")
        assert (await store.claim_one()).payload == b"x"

    @law("G1")
    @pytest.mark.parametrize("state", [State.IN_FLIGHT, State.FAILED, State.DONE])
    async def test_a_message_that_a_queue_keeps_is_kept(self, store: Store, state: State) -> None:
        await store.queue(filter="topic = 'orders'", done_retention_s=0, failed_retention_s=0)
        (message_id,) = await store.publish(b"x")
        if state is State.IN_FLIGHT:
            await store.claim_one()
        elif state is State.FAILED:
            await store.fail_one()
        else:
            await store.ack(await store.claim_one())
        await self.age(store)
        assert await self.is_kept(store, message_id, b"x")
        if state is State.FAILED:
            assert (await store.claim_one("q.dlq")).payload == b"x"

    @law("G1")
    async def test_two_queues_that_ack_leave_no_orphan(self, store: Store) -> None:
        """Each might see the other's delivery and keep the message forever."""
        for name in ("a", "b"):
            await store.queue(name, "topic = 'orders'", done_retention_s=1)
        (message_id,) = await store.publish(b"x")
        await store.ack(await store.claim_one("a"))
        await self.age(store)
        assert await self.is_kept(store, message_id, b"x")
        await store.ack(await store.claim_one("b"))
        await self.age(store)
        assert not await self.is_kept(store, message_id, b"")

    @law("G1")
    async def test_a_queue_that_has_not_routed_it_keeps_it(self, store: Store) -> None:
        """Retention waits for the slowest cursor, even of a queue without any delivery."""
        (message_id,) = await store.publish(b"x")
        await store.queue("late", "topic = 'orders'", start=Start(Start.EARLIEST))
        await self.age(store)
        assert await self.is_kept(store, message_id, b"x")
        while (await store.engine.route(TENANT, "late", 100)).cursor is not None:
            pass
        assert (await store.claim_one("late")).payload == b"x"

    async def test_a_deleted_queue_keeps_nothing(self, store: Store) -> None:
        """An abandoned queue must not block retention once it is deleted."""
        (message_id,) = await store.publish(b"x")
        await store.queue("late", start=Start(Start.EARLIEST))
        await store.queue("stuck", "topic = 'orders'")
        await store.publish(b"y")
        await store.engine.delete_queue(TENANT, "late")
        await store.engine.delete_queue(TENANT, "stuck")
        await self.age(store)
        assert not await self.is_kept(store, message_id, b"")

    @opened_with(log_retention_ms=1000)
    async def test_the_operator_sets_the_time(self, store: Store) -> None:
        (message_id,) = await store.publish(b"x")
        store.clock.advance(999)
        await store.sweep_all()
        assert await self.is_kept(store, message_id, b"x")
        await self.age(store)
        assert not await self.is_kept(store, message_id, b"")

    @law("A1")
    @opened_with(archive=True)
    async def test_nothing_leaves_before_it_is_archived(self, store: Store) -> None:
        first, second = await store.publish(b"1", b"2")
        await self.age(store)
        assert await self.is_kept(store, first, b"1")
        identity = await store.engine.identity(TENANT)
        await store.engine.archived(TENANT, Offset(first), identity)
        await self.age(store)
        assert await self.is_kept(store, second, b"2")
        await store.engine.archived(TENANT, Offset(second), identity)
        await store.engine.archived(TENANT, Offset(first), identity)
        await self.age(store)
        assert not await self.is_kept(store, first, b"")

    @law("A1")
    @opened_with(archive=True)
    async def test_an_archive_of_one_tenant_is_no_others(self, store: Store) -> None:
        (message_id,) = await store.publish(b"mine")
        (theirs,) = await store.publish(b"theirs", tenant=OTHER_TENANT)
        identity = await store.engine.identity(OTHER_TENANT)
        await store.engine.archived(OTHER_TENANT, Offset(theirs), identity)
        await self.age(store)
        assert await self.is_kept(store, message_id, b"mine")

    @law("G1")
    async def test_a_replaced_message_that_waits_is_kept(self, store: Store) -> None:
        await store.queue(filter="topic = 'orders'")
        await store.publish(msg(b"1", key="k"))
        (message_id,) = await store.publish(msg(b"2", key="k"))
        await self.age(store)
        assert await self.is_kept(store, message_id, b"2")
        assert (await store.claim_one()).payload == b"2"
