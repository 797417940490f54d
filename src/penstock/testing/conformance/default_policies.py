"""Default policies: the server's and the topic's, of queues that a publish creates."""

from __future__ import annotations

import pytest

from penstock.errors import QueueFull
from penstock.model.queue import Backoff, Ordering, QueuePolicy, TopicPolicy
from penstock.model.states import State
from penstock.testing.conformance.harness import TENANT, Conformance, Store, msg, opened_with
from penstock.testing.laws import law

__all__ = ["TestDefaultPolicies"]

SERVER = QueuePolicy(max_attempts=2, labels={"team": "ops"}, backoff=Backoff(0, 0))
TOPIC = {"max_attempts": 1, "ordering": "partition", "backoff": {"base_ms": 5, "max_ms": 6}}


class TestDefaultPolicies(Conformance):
    """An auto-created queue has the topic's defaults, then the server's, then the built-in ones."""

    @opened_with(auto_create=True)
    async def test_the_built_in_defaults(self, store: Store) -> None:
        await store.publish(b"1")
        created = await store.engine.get_queue(TENANT, "orders")
        assert created.policy == QueuePolicy(filter="topic = 'orders'")

    @opened_with(auto_create=True, default_policy=SERVER)
    async def test_the_defaults_of_the_server(self, store: Store) -> None:
        await store.publish(msg(key="a"))
        created = await store.engine.get_queue(TENANT, "orders")
        assert (created.policy.max_attempts, created.policy.labels) == (2, {"team": "ops"})
        assert created.policy.filter == "topic = 'orders'"
        await store.nack(await store.claim_one("orders"))
        outcome = await store.nack(await store.claim_one("orders"))
        assert outcome.state is State.FAILED

    @opened_with(auto_create=True, default_policy=SERVER)
    async def test_the_defaults_of_the_topic_come_first(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "orders", TopicPolicy(queue_defaults=TOPIC))
        await store.publish(b"1")
        await store.publish(b"2", topic="bills")
        created = (await store.engine.get_queue(TENANT, "orders")).policy
        assert (created.max_attempts, created.ordering) == (1, Ordering.PARTITION)
        assert (created.backoff, created.labels) == (Backoff(5, 6), {"team": "ops"})
        assert (await store.engine.get_queue(TENANT, "bills")).policy.max_attempts == 2

    @opened_with(auto_create=True)
    async def test_changed_defaults_change_no_queue(self, store: Store) -> None:
        await store.publish(b"1")
        before = await store.engine.get_queue(TENANT, "orders")
        await store.engine.put_topic(TENANT, "orders", TopicPolicy(queue_defaults=TOPIC))
        await store.publish(b"2")
        assert await store.engine.get_queue(TENANT, "orders") == before

    @law("P2")
    @opened_with(auto_create=True, default_policy=QueuePolicy(max_depth=2))
    async def test_a_default_max_depth_holds_for_the_creating_publish(self, store: Store) -> None:
        with pytest.raises(QueueFull):
            await store.publish(b"1", b"2", b"3")
        assert await store.engine.list_queues(TENANT) == ()
        assert await store.log() == []
        await store.publish(b"1", b"2")
        with pytest.raises(QueueFull):
            await store.publish(b"3")

    @opened_with(auto_create=True, default_policy=QueuePolicy(message_ttl_ms=1_000))
    async def test_a_default_ttl_holds_for_the_creating_message(self, store: Store) -> None:
        await store.publish(b"1")
        store.clock.advance(1_000)
        assert await store.claim("orders") == []
        assert len(await store.ids("orders", State.EXPIRED)) == 1

    async def test_the_defaults_of_a_topic_survive_reopening(self, store: Store) -> None:
        policy = TopicPolicy(queue_defaults=TOPIC)
        await store.engine.put_topic(TENANT, "orders", policy)
        assert await store.engine.get_topic(TENANT, "orders") == policy
        await store.reopen()
        assert await store.engine.get_topic(TENANT, "orders") == policy
