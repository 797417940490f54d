"""The scope of idempotency ids: the topic, or each partition of it (P4)."""

from __future__ import annotations

from penstock.model.message import NewMessage
from penstock.model.queue import TopicPolicy
from penstock.testing.conformance.harness import TENANT, Conformance, Store, msg
from penstock.testing.laws import law

__all__ = ["TestDedupScope"]

PER_PARTITION = TopicPolicy(dedup_scope="partition_key", dedup_window_ms=60_000)
PER_TOPIC = TopicPolicy(dedup_window_ms=60_000)


async def duplicates(store: Store, *messages: NewMessage, topic: str = "t") -> list[bool]:
    """Publish one batch; returns which messages are duplicates."""
    reply = await store.engine.publish(TENANT, topic, messages)
    return [published.duplicate for published in reply.messages]


def of(partition_key: str | None, id: str = "i") -> NewMessage:
    return msg(id=id, partition_key=partition_key)


class TestDedupScope(Conformance):
    """``TopicPolicy.dedup_scope``."""

    @law("P4")
    async def test_ids_of_a_topic_are_unique_in_all_partitions(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "t", PER_TOPIC)
        assert await duplicates(store, of("a"), of("b"), of(None)) == [False, True, True]
        assert await duplicates(store, of("c")) == [True]

    @law("P4")
    async def test_ids_may_be_unique_in_each_partition(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "t", PER_PARTITION)
        assert await duplicates(store, of("a"), of("b"), of("a")) == [False, False, True]
        assert await duplicates(store, of("b"), of("c"), of("c", "j")) == [True, False, False]
        first = await store.engine.publish(TENANT, "t", [of("d")])
        again = await store.engine.publish(TENANT, "t", [of("d")])
        assert again.messages[0].id == first.messages[0].id

    async def test_no_partition_key_is_the_empty_one(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "t", PER_PARTITION)
        assert await duplicates(store, of(None), of(""), of("a")) == [False, True, False]

    async def test_a_partition_and_an_id_do_not_run_together(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "t", PER_PARTITION)
        assert await duplicates(store, of("ab", "c"), of("a", "bc"), of(None, "abc")) == [False] * 3
        longest = "é" * 256
        assert await duplicates(store, of(longest, longest)) == [False]
        assert await duplicates(store, of(longest, longest)) == [True]

    async def test_each_topic_has_its_own_scope(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "t", PER_PARTITION)
        assert await duplicates(store, of("a"), of("b")) == [False, False]
        assert await duplicates(store, of("a"), of("b"), topic="u") == [False, True]

    @law("P4")
    async def test_a_changed_scope_forgets_and_remembers(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "t", PER_TOPIC)
        assert await duplicates(store, of("a")) == [False]
        await store.engine.put_topic(TENANT, "t", PER_PARTITION)
        assert await duplicates(store, of("a"), of("a")) == [False, True]
        await store.engine.put_topic(TENANT, "t", PER_TOPIC)
        assert await duplicates(store, of("b")) == [True]
        await store.engine.put_topic(TENANT, "t", PER_PARTITION)
        assert await duplicates(store, of("a"), of("b")) == [True, False]

    async def test_the_window_applies_to_each_partition(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "t", PER_PARTITION)
        await duplicates(store, of("a"))
        store.clock.advance(30_000)
        await duplicates(store, of("b"))
        store.clock.advance(30_000)
        assert await duplicates(store, of("a"), of("b")) == [False, True]
        store.clock.advance(10 * 60_000)
        await store.sweep_all()
        assert await duplicates(store, of("a"), of("b")) == [False, False]

    async def test_a_shorter_window_applies_to_ids_of_partitions(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "t", PER_PARTITION)
        await duplicates(store, of("a"))
        shorter = TopicPolicy(dedup_scope="partition_key", dedup_window_ms=1_000)
        await store.engine.put_topic(TENANT, "t", shorter)
        store.clock.advance(999)
        assert await duplicates(store, of("a")) == [True]
        store.clock.advance(1)
        assert await duplicates(store, of("a")) == [False]

    @law("P4")
    async def test_ids_of_partitions_are_remembered(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "t", PER_PARTITION)
        await duplicates(store, of("a"))
        await store.reopen()
        assert await store.engine.get_topic(TENANT, "t") == PER_PARTITION
        assert await duplicates(store, of("a"), of("b")) == [True, False]
