"""find: look a message up by the producer's idempotency id."""

from __future__ import annotations

from penstock.model.message import Message
from penstock.model.queue import TopicPolicy
from penstock.testing.conformance.harness import OTHER_TENANT, TENANT, Conformance, Store, msg
from penstock.testing.laws import law

__all__ = ["TestFind"]

PER_PARTITION = TopicPolicy(dedup_scope="partition_key", dedup_window_ms=60_000)


async def found(
    store: Store, id: str, topic: str = "orders", *, partition_key: str | None = None
) -> Message | None:
    return await store.engine.find(TENANT, topic, id, partition_key)


async def found_ids(store: Store, id: str, *partition_keys: str | None) -> list[int | None]:
    """The message that is found with each partition key."""
    messages = [await found(store, id, partition_key=key) for key in partition_keys]
    return [None if message is None else message.id for message in messages]


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

    async def test_by_id_and_partition_key(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "orders", PER_PARTITION)
        await store.queue()
        first, second, third = await store.publish(
            msg(id="i", partition_key="a"), msg(id="i", partition_key="b"), msg(id="j")
        )
        assert await found_ids(store, "i", "a", "b", "c", None) == [first, second, None, None]
        assert await found_ids(store, "j", None, "", "a") == [third, third, None]
        store.clock.advance(PER_PARTITION.dedup_window_ms)
        assert await found_ids(store, "i", "a", "b") == [None, None]

    async def test_ids_of_a_topic_are_found_with_any_partition_key(self, store: Store) -> None:
        await store.queue()
        (first,) = await store.publish(msg(id="i", partition_key="a"))
        assert await found_ids(store, "i", "a", "b", None) == [first] * 3

    async def test_ids_of_the_other_scope_are_not_found(self, store: Store) -> None:
        """They do not count for a publish either."""
        await store.queue()
        (first,) = await store.publish(msg(id="i", partition_key="a"))
        await store.engine.put_topic(TENANT, "orders", PER_PARTITION)
        assert await found_ids(store, "i", "a", None) == [None, None]
        (second,) = await store.publish(msg(id="i", partition_key="a"))
        assert await found_ids(store, "i", "a", "b") == [second, None]
        await store.engine.put_topic(TENANT, "orders", TopicPolicy())
        assert await found_ids(store, "i", "a", None) == [first, first]

    async def test_a_cancelled_message_is_still_found(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(msg(b"a", id="a"))
        await store.engine.cancel(TENANT, message_id)
        message = await found(store, "a")
        assert message is not None
        assert message.id == message_id
