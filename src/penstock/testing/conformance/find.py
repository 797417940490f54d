"""find: look a message up by the producer's idempotency id."""

from __future__ import annotations

from penstock.model.message import Message
from penstock.model.queue import TopicPolicy
from penstock.testing.conformance.harness import OTHER_TENANT, TENANT, Conformance, Store, msg
from penstock.testing.laws import law

__all__ = ["TestFind"]


async def found(store: Store, id: str, topic: str = "orders") -> Message | None:
    return await store.engine.find(TENANT, topic, id)


class TestFind(Conformance):
    """As long as the dedup window remembers the id."""

    async def test_the_message_with_the_id(self, store: Store) -> None:
        await store.queue()
        ids = await store.publish(msg(b"a", id="a", color="red"), msg(b"b", id="b"), msg(b"c"))
        first = await found(store, "a")
        second = await found(store, "b")
        assert first is not None
        assert second is not None
        assert [first.id, second.id] == ids[:2]
        assert dict(first.headers) == {"color": "red"}
        assert await found(store, "c") is None

    async def test_a_duplicate_finds_the_first(self, store: Store) -> None:
        await store.queue()
        (first,) = await store.publish(msg(b"a", id="a"))
        assert await store.publish(msg(b"b", id="a")) == [first]
        again = await found(store, "a")
        assert again is not None
        assert again.id == first

    @law("T1")
    async def test_other_topics_and_tenants_have_their_own(self, store: Store) -> None:
        await store.queue()
        await store.publish(msg(b"a", id="a"))
        assert await found(store, "a", "bills") is None
        assert await store.engine.find(OTHER_TENANT, "orders", "a") is None

    async def test_not_after_the_window(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "orders", TopicPolicy(dedup_window_ms=1_000))
        await store.queue()
        await store.publish(msg(b"a", id="a"))
        store.clock.advance(999)
        assert await found(store, "a") is not None
        store.clock.advance(1)
        assert await found(store, "a") is None

    async def test_a_replaced_message_has_its_newest_values(self, store: Store) -> None:
        await store.queue()
        (first,) = await store.publish(msg(b"a", id="a", key="k", color="red"))
        assert await store.publish(msg(b"b", id="b", key="k", color="blue")) == [first]
        for name in ("a", "b"):
            message = await found(store, name)
            assert message is not None
            assert (message.id, dict(message.headers)) == (first, {"color": "blue"})

    async def test_a_message_that_left_the_log_is_not_found(self, store: Store) -> None:
        await store.engine.put_topic(
            TENANT, "orders", TopicPolicy(dedup_window_ms=30 * 24 * 3600 * 1000)
        )
        await store.queue(done_retention_s=1)
        await store.publish(msg(b"a", id="a"))
        await store.ack(await store.claim_one())
        store.clock.advance(10 * 24 * 3600 * 1000)
        await store.sweep_all()
        if await store.log():
            return  # The engine keeps a segment of the log until it is full.
        assert await found(store, "a") is None

    async def test_a_cancelled_message_is_still_found(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(msg(b"a", id="a"))
        await store.engine.cancel(TENANT, message_id)
        message = await found(store, "a")
        assert message is not None
        assert message.id == message_id
