"""Reopening a persistent store: everything is as it was, and continues from there."""

from __future__ import annotations

import pytest

from penstock.errors import QueueFull
from penstock.model.delivery import ReplaySource, Verdict
from penstock.model.message import MessageId
from penstock.model.queue import Ordering, Start, TopicPolicy
from penstock.model.states import State
from penstock.testing.conformance.harness import (
    OTHER_TENANT,
    TENANT,
    Conformance,
    Store,
    ids_of,
    msg,
)
from penstock.testing.laws import law

__all__ = ["TestReopening"]


class TestReopening(Conformance):
    """P1 for an orderly stop; crash tests cover the rest."""

    @law("P1")
    async def test_everything_is_as_it_was(self, store: Store) -> None:
        now = store.clock.now()
        for tenant in (TENANT, OTHER_TENANT):
            await store.queue("q", max_attempts=2, tenant=tenant)
            await store.queue("red", "color = 'red'", bucket_size=0, tenant=tenant)
            await store.publish(
                *(msg(str(n).encode(), color="red", n=n, priority=n) for n in range(10)),
                msg(deliver_at=now + 50, expires_at=now + 90),
                msg(expires_at=now + 5),
                tenant=tenant,
            )
        a, b, c, d = await store.claim(limit=4, consumer="w")
        await store.ack(a, b"result")
        await store.nack(b, "broken")
        await store.reject(c, "poison")
        store.clock.advance(5)
        await store.claim(limit=0)
        await store.ack(await store.claim_one("q.dlq"), b"fixed")
        await store.engine.pause(TENANT, "red", True)
        queues = [(t, q) for t in (TENANT, OTHER_TENANT) for q in ("q", "red")]
        before = [await store.picture(q, t) for t, q in queues]
        log = await store.log()
        history = await store.engine.history(TENANT, b.message.id)
        await store.reopen()
        assert [await store.picture(q, t) for t, q in queues] == before
        assert await store.log() == log
        assert await store.engine.history(TENANT, b.message.id) == history
        result = await store.engine.result(TENANT, "q", a.message.id)
        assert result is not None
        assert result.result == b"result"
        assert (await store.ack(a)).ok
        assert (await store.ack(b)).verdict is Verdict.STALE
        assert (await store.ack(d)).ok

    async def test_max_depth_holds(self, store: Store) -> None:
        await store.queue(max_depth=1)
        await store.publish(b"1")
        await store.reopen()
        with pytest.raises(QueueFull):
            await store.publish(b"2")

    @law("P4")
    async def test_batch_ids_are_remembered_for_as_long_as_they_say(self, store: Store) -> None:
        day_ms = 24 * 3600 * 1000
        await store.engine.put_topic(TENANT, "t", TopicPolicy(dedup_window_ms=0))
        batch = [msg(b"a"), msg(b"b", key="k"), msg(b"c", key="k")]
        first = await store.engine.publish(TENANT, "t", batch, batch_id="b", batch_ms=day_ms)
        await store.reopen()
        store.clock.advance(day_ms - 1)
        await store.sweep_all()
        await store.reopen()
        again = await store.engine.publish(TENANT, "t", batch, batch_id="b", batch_ms=day_ms)
        assert again.repeated
        assert again.messages == first.messages
        store.clock.advance(1)
        later = await store.engine.publish(TENANT, "t", batch, batch_id="b", batch_ms=day_ms)
        assert not later.repeated

    @law("C4")
    async def test_the_order_is_the_same_before_anything_is_claimed(self, store: Store) -> None:
        """Deliveries that an engine loads at opening, for their times, must not overtake others."""
        await store.queue(max_attempts=9)
        later = store.clock.now() + 60_000
        ids = await store.publish(*[b"x"] * 4)
        await store.reopen()
        ids += await store.publish(b"x", b"y", msg(expires_at=later), b"z")
        for delivery in await store.claim(limit=2):
            await store.reject(delivery)
        await store.reopen()
        assert await store.ids("q", State.AVAILABLE) == ids[2:]
        assert await store.ids("q", State.FAILED) == ids[:2]
        assert ids_of(await store.claim(limit=1)) == ids[2:3]
        assert await store.ids("q", State.AVAILABLE) == ids[3:]
        assert ids_of(await store.claim(limit=99)) == ids[3:]

    @law("C4")
    async def test_dead_letters_keep_their_order(self, store: Store) -> None:
        await store.queue(max_attempts=1)
        ids = await store.publish(*[b"x"] * 4)
        for _ in ids:
            await store.fail_one()
        await store.claim("q.dlq", 2, lease_ms=60_000)
        await store.reopen()
        assert await store.ids("q", State.FAILED) == ids[2:]
        first = (await store.browse("q.dlq", State.IN_FLIGHT))[0]
        assert first.message.id == ids[0]
        store.clock.advance(60_000)
        await store.reopen()
        await store.sweep_all()
        assert await store.ids("q", State.FAILED) == ids
        await store.reopen()
        assert await store.ids("q", State.FAILED) == ids
        assert ids_of(await store.claim("q.dlq", 9)) == ids

    @law("S2")
    async def test_settled_stays_settled(self, store: Store) -> None:
        """State that is dropped before a watermark is stored is redelivered after a restart."""
        await store.queue(bucket_size=0)
        ids = await store.publish(*[b"x"] * 20)
        for delivery in (await store.claim(limit=20))[::2]:
            await store.ack(delivery)
        await store.reopen()
        store.clock.advance(60_000)
        assert ids_of(await store.claim(limit=99)) == ids[1::2]

    @law("P4")
    async def test_ids_are_remembered(self, store: Store) -> None:
        (first,) = await store.publish(msg(id="i"))
        await store.reopen()
        assert await store.publish(msg(id="i")) == [first]

    @law("L1")
    async def test_offsets_go_on_growing(self, store: Store) -> None:
        """Ids must not be reused, not even those of removed messages."""
        seen: list[MessageId] = []
        for _ in range(4):
            seen += await store.publish(b"x", b"y")
            end = await store.engine.log_end(TENANT)
            await store.reopen()
            assert await store.engine.log_end(TENANT) == end
        assert seen == sorted(set(seen))
        assert [m.id for m in await store.log()] == seen

    @law("C1")
    async def test_receipts_are_not_used_again(self, store: Store) -> None:
        await store.queue(max_attempts=99)
        await store.publish(b"x")
        receipts = []
        for _ in range(4):
            delivery = await store.claim_one()
            receipts.append(delivery.receipt)
            await store.release(delivery)
            await store.reopen()
        assert len(set(receipts)) == 4
        last = await store.claim_one()
        for receipt in receipts:
            assert receipt != last.receipt

    @law("S1")
    async def test_a_receipt_is_good_across_a_restart(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"1", b"2")
        first, second = await store.claim(limit=2, lease_ms=5000)
        await store.release(second)
        await store.reopen()
        assert (await store.extend(first, 9000)).until == store.clock.now() + 9000
        assert (await store.ack(second)).verdict is Verdict.STALE
        assert (await store.ack(first)).ok

    @law("C5")
    async def test_a_lease_lapses_while_the_store_is_closed(self, store: Store) -> None:
        await store.queue()
        ids = await store.publish(b"x", msg(deliver_at=store.clock.now() + 1000))
        await store.claim_one(lease_ms=1000)
        store.clock.advance(1000)
        await store.reopen()
        claimed = await store.claim(limit=9)
        assert [(d.message.id, d.attempts) for d in claimed] == [(ids[0], 2), (ids[1], 1)]

    @law("C2")
    async def test_released_grants_are_remembered(self, store: Store) -> None:
        await store.queue(max_attempts=2)
        await store.publish(b"x")
        for _ in range(2):
            await store.release(await store.claim_one())
            await store.reopen()
        assert (await store.nack(await store.claim_one())).state is State.AVAILABLE
        await store.reopen()
        assert (await store.nack(await store.claim_one())).state is State.FAILED

    async def test_open_keys_are_remembered(self, store: Store) -> None:
        await store.queue()
        (first, claimed) = await store.publish(msg(b"1", key="k"), msg(b"2", key="c", priority=9))
        assert (await store.claim_one()).message.id == claimed
        await store.reopen()
        same, new = await store.publish(msg(b"3", key="k"), msg(b"4", key="c"))
        assert same == first
        assert new != claimed
        assert [d.payload for d in await store.claim(limit=9)] == [b"3", b"4"]

    @law("R1")
    async def test_a_router_goes_on_where_it_was(self, store: Store) -> None:
        ids = await store.publish(*[b"x"] * 6)
        await store.queue(start=Start(Start.EARLIEST))
        await store.engine.route(TENANT, "q", 2)
        await store.reopen()
        assert (await store.engine.route(TENANT, "q", 99)).assigned == 4
        assert ids_of(await store.claim(limit=9)) == ids

    async def test_replay_ids_are_remembered(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        await store.fail_one()
        await store.engine.replay(TENANT, "q", ReplaySource.FAILED, None, 9, replay_id="r")
        await store.fail_one()
        await store.reopen()
        reply = await store.engine.replay(TENANT, "q", ReplaySource.FAILED, None, 9, replay_id="r")
        assert (reply.count, reply.skipped) == (0, 1)

    @law("O1")
    async def test_ownership_and_epochs_are_remembered(self, store: Store) -> None:
        await store.queue(ordering=Ordering.PARTITION)
        await store.publish(msg(partition_key="a"), msg(partition_key="b"))
        own = await store.engine.join(TENANT, "q", "x")
        (delivery, _) = await store.claim(limit=2, consumer="x")
        await store.reopen()
        assert await store.claim(limit=9, consumer="y") == []
        assert (await store.ack(delivery)).ok
        await store.publish(msg(partition_key="a"))
        again = await store.engine.join(TENANT, "q", "x")
        if "a" in again.partitions:
            assert again.partitions["a"] > max(own.partitions.values())

    async def test_topics_are_remembered(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "t", TopicPolicy(default_ttl_ms=5))
        await store.reopen()
        assert await store.engine.get_topic(TENANT, "t") == TopicPolicy(default_ttl_ms=5)

    async def test_a_deleted_queue_stays_deleted(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        await store.engine.delete_queue(TENANT, "q")
        await store.reopen()
        assert await store.engine.list_queues(TENANT) == ()
        await store.queue()
        assert await store.claim() == []
