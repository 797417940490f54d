"""Idempotency ids: each makes one log entry inside its window (P4)."""

from __future__ import annotations

import pytest

from penstock.errors import QueueFull
from penstock.model.message import PublishReply
from penstock.model.queue import TopicPolicy
from penstock.testing.conformance.harness import (
    OTHER_TENANT,
    TENANT,
    Conformance,
    Store,
    msg,
)
from penstock.testing.laws import law

__all__ = ["TestBatches", "TestIdempotency"]

HOUR_MS = 3600 * 1000


class TestBatches(Conformance):
    """The reply to a batch can be read by its batch id."""

    @law("P4")
    async def test_a_batch_is_found_inside_its_window(self, store: Store) -> None:
        engine = store.engine
        assert await engine.batch(TENANT, "orders", "b1") is None
        reply = await engine.publish(TENANT, "orders", [msg(b"1"), msg(b"2")], batch_id="b1")
        assert await engine.batch(TENANT, "orders", "b1") == reply.messages
        for place in ((OTHER_TENANT, "orders", "b1"), (TENANT, "mail", "b1")):
            assert await engine.batch(*place) is None
        assert await engine.batch(TENANT, "orders", "b2") is None
        store.clock.advance(3600 * 1000)
        assert await engine.batch(TENANT, "orders", "b1") is None

    @law("P4")
    async def test_a_batch_has_a_window_of_its_own(self, store: Store) -> None:
        engine = store.engine
        reply = await engine.publish(
            TENANT, "orders", [msg(b"1")], batch_id="b1", batch_ms=7200 * 1000
        )
        store.clock.advance(7200 * 1000 - 1)
        assert await engine.batch(TENANT, "orders", "b1") == reply.messages
        store.clock.advance(1)
        assert await engine.batch(TENANT, "orders", "b1") is None


class TestIdempotency(Conformance):
    """P4: one idempotency id makes one log entry inside its window."""

    @law("P4")
    async def test_the_second_publish_answers_with_the_first_id(self, store: Store) -> None:
        await store.queue()
        first = await store.engine.publish(TENANT, "t", [msg(b"a", id="i")])
        store.clock.advance(HOUR_MS - 1)
        second = await store.engine.publish(TENANT, "t", [msg(b"b", id="i")])
        assert second.messages[0].duplicate
        assert second.messages[0].id == first.messages[0].id
        assert second.messages[0].offset == first.messages[0].offset
        assert len(await store.log()) == 1
        assert (await store.claim_one()).payload == b"a"
        assert await store.claim() == []

    @law("P4")
    async def test_the_window_counts_from_the_first_publish(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "t", TopicPolicy(dedup_window_ms=1000))
        (first,) = await store.publish(msg(id="i"), topic="t")
        store.clock.advance(600)
        assert await store.publish(msg(id="i"), topic="t") == [first]
        store.clock.advance(399)
        assert await store.publish(msg(id="i"), topic="t") == [first]
        store.clock.advance(1)
        (second,) = await store.publish(msg(id="i"), topic="t")
        assert second > first
        assert await store.publish(msg(id="i"), topic="t") == [second]

    @law("P4")
    async def test_a_sweep_does_not_shorten_the_window(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "t", TopicPolicy(dedup_window_ms=1000))
        (first,) = await store.publish(msg(id="i"), topic="t")
        store.clock.advance(999)
        await store.sweep_all()
        assert await store.publish(msg(id="i"), topic="t") == [first]
        store.clock.advance(1)
        await store.sweep_all()
        assert await store.publish(msg(id="i"), topic="t") != [first]

    @law("P4")
    async def test_a_batch_id_stands_for_what_the_batch_became(self, store: Store) -> None:
        await store.queue()
        await store.engine.publish(TENANT, "t", [msg(b"open", key="k"), msg(b"old", id="i")])
        batch = [msg(b"a"), msg(b"b", key="k"), msg(b"c", id="i"), msg(b"d"), msg(b"e")]
        first = await store.engine.publish(TENANT, "t", batch, batch_id="one")
        assert [one.replaced for one in first.messages] == [False, True, False, False, False]
        entries = len(await store.log())
        # The messages of a repeated batch do not matter: nothing of it is stored.
        again = await store.engine.publish(TENANT, "t", [msg(b"x")], batch_id="one")
        assert (first.repeated, again.repeated) == (False, True)
        assert again.messages == first.messages
        assert [one.duplicate for one in again.messages] == [False, False, True, False, False]
        assert len(await store.log()) == entries

    @law("P4")
    async def test_batch_ids_are_not_message_ids(self, store: Store) -> None:
        await store.queue()
        await store.engine.publish(TENANT, "t", [msg(b"a", id="same")])
        reply = await store.engine.publish(TENANT, "t", [msg(b"b")], batch_id="same")
        assert not reply.repeated
        assert not reply.messages[0].duplicate
        assert not (await store.engine.publish(TENANT, "u", [msg()], batch_id="same")).repeated
        stranger = await store.engine.publish(OTHER_TENANT, "t", [msg()], batch_id="same")
        assert not stranger.repeated

    @law("P4")
    async def test_a_batch_id_is_forgotten_after_its_window(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "t", TopicPolicy(dedup_window_ms=1000))
        first = await store.engine.publish(TENANT, "t", [msg(), msg()], batch_id="b")
        store.clock.advance(999)
        await store.sweep_all()
        again = await store.engine.publish(TENANT, "t", [msg(), msg()], batch_id="b")
        assert again.repeated
        assert again.messages == first.messages
        store.clock.advance(1)
        await store.sweep_all()
        later = await store.engine.publish(TENANT, "t", [msg(), msg()], batch_id="b")
        assert not later.repeated

    @law("P4")
    async def test_a_refused_batch_leaves_its_id_free(self, store: Store) -> None:
        await store.queue(max_depth=1)
        with pytest.raises(QueueFull):
            await store.engine.publish(TENANT, "t", [msg(), msg()], batch_id="b")
        reply = await store.engine.publish(TENANT, "t", [msg()], batch_id="b")
        assert not reply.repeated
        assert len(await store.log()) == 1

    @law("P4")
    async def test_a_topic_without_a_window_remembers_no_batch(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "t", TopicPolicy(dedup_window_ms=0))
        for _ in range(2):
            reply = await store.engine.publish(TENANT, "t", [msg()], batch_id="b")
            assert not reply.repeated

    @law("P4")
    async def test_a_batch_id_is_remembered_for_as_long_as_it_says(self, store: Store) -> None:
        """Shorter or longer than the topic's window, from the first publish, swept or not."""
        await store.engine.put_topic(TENANT, "t", TopicPolicy(dedup_window_ms=60_000))

        async def publish(batch_ms: int | None) -> PublishReply:
            return await store.engine.publish(
                TENANT, "t", [msg(), msg()], batch_id="b", batch_ms=batch_ms
            )

        # The same id again: records of its first use must not shorten the second.
        for window_ms in (1_000, 24 * HOUR_MS):
            first = await publish(window_ms)
            assert not first.repeated
            begin = store.clock.now()
            # A repetition with another window does not change the first one.
            for at, window in ((window_ms // 2, 1), (window_ms - 1, 48 * HOUR_MS)):
                store.clock.advance(begin + at - store.clock.now())
                await store.sweep_all()
                again = await publish(window)
                assert again.repeated
                assert again.messages == first.messages
            store.clock.advance(1)
        assert not (await publish(1_000)).repeated
        store.clock.advance(48 * HOUR_MS)
        await store.sweep_all()
        assert not (await publish(None)).repeated

    @law("P4")
    async def test_a_topic_without_a_window_remembers_a_batch_that_says_so(
        self, store: Store
    ) -> None:
        await store.engine.put_topic(TENANT, "t", TopicPolicy(dedup_window_ms=0))
        first = await store.engine.publish(TENANT, "t", [msg()], batch_id="b", batch_ms=HOUR_MS)
        store.clock.advance(HOUR_MS - 1)
        await store.sweep_all()
        for batch_ms in (None, HOUR_MS):
            again = await store.engine.publish(
                TENANT, "t", [msg(), msg()], batch_id="b", batch_ms=batch_ms
            )
            assert again.repeated
            assert again.messages == first.messages
        store.clock.advance(1)
        for _ in range(2):
            later = await store.engine.publish(TENANT, "t", [msg()], batch_id="b")
            assert not later.repeated
        assert len(await store.log()) == 3

    @law("P4")
    async def test_a_changed_topic_changes_no_window_of_a_batchs_own(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "t", TopicPolicy(dedup_window_ms=2 * HOUR_MS))
        ids = {"own": HOUR_MS, "short": 1_000, "topic's": None}
        for batch_id, batch_ms in ids.items():
            await store.engine.publish(TENANT, "t", [msg()], batch_id=batch_id, batch_ms=batch_ms)
        await store.engine.put_topic(TENANT, "t", TopicPolicy(dedup_window_ms=10_000))
        store.clock.advance(10_000)
        await store.sweep_all()

        async def repeated(batch_id: str) -> bool:
            reply = await store.engine.publish(TENANT, "t", [msg()], batch_id=batch_id)
            return reply.repeated

        # Batches stored from now on have the topic's window.
        assert [await repeated(batch_id) for batch_id in ids] == [True, False, False]
        await store.engine.delete_topic(TENANT, "t")
        store.clock.advance(HOUR_MS - 10_001)
        await store.sweep_all()
        assert [await repeated(batch_id) for batch_id in ids] == [True, True, True]
        store.clock.advance(1)
        await store.sweep_all()
        assert [await repeated(batch_id) for batch_id in ids] == [False, True, True]

    @law("P4")
    async def test_inside_one_batch_too(self, store: Store) -> None:
        await store.queue()
        reply = await store.engine.publish(
            TENANT, "t", [msg(b"1", id="i"), msg(b"2"), msg(b"3", id="i")]
        )
        first, other, again = reply.messages
        assert (first.duplicate, other.duplicate, again.duplicate) == (False, False, True)
        assert again.id == first.id != other.id
        assert [d.payload for d in await store.claim(limit=9)] == [b"1", b"2"]

    @law("P4", "T1")
    async def test_ids_belong_to_a_topic_and_a_tenant(self, store: Store) -> None:
        """A global id would let one tenant swallow another's messages (T1)."""
        await store.publish(msg(id="i"), topic="t")
        for tenant, topic in [(TENANT, "u"), (OTHER_TENANT, "t")]:
            reply = await store.engine.publish(tenant, topic, [msg(id="i")])
            assert not reply.messages[0].duplicate
        assert len(await store.log()) == 2
        assert len(await store.log(tenant=OTHER_TENANT)) == 1

    @law("P4")
    async def test_a_settled_message_is_still_a_duplicate(self, store: Store) -> None:
        await store.queue()
        (first,) = await store.publish(msg(id="i"))
        await store.ack(await store.claim_one())
        assert await store.publish(msg(id="i")) == [first]
        assert await store.claim() == []

    async def test_a_window_of_nothing_deduplicates_nothing(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "t", TopicPolicy(dedup_window_ms=0))
        first, second = await store.publish(msg(id="i"), msg(id="i"), topic="t")
        assert first != second

    @law("P4")
    async def test_a_refused_publish_uses_up_no_id(self, store: Store) -> None:
        await store.queue(max_depth=1)
        await store.publish(b"fills it")
        with pytest.raises(QueueFull):
            await store.publish(msg(id="i"))
        await store.ack(await store.claim_one())
        reply = await store.engine.publish(TENANT, "orders", [msg(id="i")])
        assert not reply.messages[0].duplicate

    @law("P4")
    async def test_a_duplicate_is_not_refused_by_a_full_queue(self, store: Store) -> None:
        await store.queue(max_depth=1)
        (first,) = await store.publish(msg(id="i"))
        assert await store.publish(msg(id="i")) == [first]
