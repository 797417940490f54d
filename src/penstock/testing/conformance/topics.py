"""Topics: policies by name."""

from __future__ import annotations

import pytest

from penstock.errors import QueueFull, TopicChanged, UnknownTopic
from penstock.model.delivery import Ack
from penstock.model.message import Outgoing
from penstock.model.queue import TopicPolicy
from penstock.model.states import State
from penstock.testing.conformance.harness import OTHER_TENANT, TENANT, Conformance, Store, msg
from penstock.testing.laws import law

__all__ = ["TestCheckedBy", "TestTopics"]


class TestTopics(Conformance):
    """put, get, list, delete."""

    async def test_a_topic_comes_back_as_it_was_put(self, store: Store) -> None:
        policy = TopicPolicy(
            default_ttl_ms=5000,
            dedup_window_ms=7,
            schema_type="json-schema",
            schema='{"type": "object", "title": "ü"}',
        )
        await store.engine.put_topic(TENANT, "t", policy)
        assert await store.engine.get_topic(TENANT, "t") == policy
        await store.engine.put_topic(TENANT, "t", TopicPolicy())
        assert await store.engine.get_topic(TENANT, "t") == TopicPolicy()

    async def test_publishing_registers_nothing(self, store: Store) -> None:
        await store.publish(b"x", topic="t")
        assert await store.engine.get_topic(TENANT, "t") is None
        assert await store.engine.list_topics(TENANT) == ()

    async def test_topics_are_listed_by_name(self, store: Store) -> None:
        for n, name in enumerate(["b", "a.b", "a", "B"]):
            await store.engine.put_topic(TENANT, name, TopicPolicy(dedup_window_ms=n))
        listed = await store.engine.list_topics(TENANT)
        assert [(name, policy.dedup_window_ms) for name, policy in listed] == [
            ("B", 3),
            ("a", 2),
            ("a.b", 1),
            ("b", 0),
        ]

    async def test_deleting_forgets_the_policy_only(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "t", TopicPolicy(default_ttl_ms=10))
        await store.publish(b"x", topic="t")
        await store.engine.delete_topic(TENANT, "t")
        assert await store.engine.get_topic(TENANT, "t") is None
        assert [m.topic for m in await store.log()] == ["t"]
        await store.publish(b"y", topic="t")
        assert (await store.log())[1].expires_at is None
        with pytest.raises(UnknownTopic):
            await store.engine.delete_topic(TENANT, "t")

    @law("T1")
    async def test_topics_belong_to_a_tenant(self, store: Store) -> None:
        await store.engine.put_topic(TENANT, "t", TopicPolicy(default_ttl_ms=10))
        assert await store.engine.get_topic(OTHER_TENANT, "t") is None
        assert await store.engine.list_topics(OTHER_TENANT) == ()
        with pytest.raises(UnknownTopic):
            await store.engine.delete_topic(OTHER_TENANT, "t")
        await store.engine.publish(OTHER_TENANT, "t", [msg(b"x")])
        assert (await store.log(tenant=OTHER_TENANT))[0].expires_at is None


class TestCheckedBy(Conformance):
    """A publish names the policies that its messages were checked against."""

    OLD = TopicPolicy(default_ttl_ms=1_000)
    NEW = TopicPolicy(default_ttl_ms=2_000)

    @law("E1")
    async def test_another_policy_in_force_refuses_the_publish(self, store: Store) -> None:
        await store.queue()
        await store.engine.put_topic(TENANT, "orders", self.NEW)
        for checked in (self.OLD, None):
            with pytest.raises(TopicChanged):
                await store.engine.publish(
                    TENANT, "orders", [msg(b"x")], checked={"orders": checked}
                )
        await store.engine.delete_topic(TENANT, "orders")
        with pytest.raises(TopicChanged):
            await store.engine.publish(TENANT, "orders", [msg(b"x")], checked={"orders": self.NEW})
        assert await store.log() == []

    @law("E1")
    async def test_the_policy_is_compared_before_the_depth_of_queues(self, store: Store) -> None:
        """The caller first checks the messages again; waiting for a full queue comes later."""
        await store.queue(max_depth=1)
        await store.publish(b"x")
        with pytest.raises(QueueFull):
            await store.engine.publish(TENANT, "orders", [msg(b"y")], checked={"orders": None})
        await store.engine.put_topic(TENANT, "orders", self.NEW)
        with pytest.raises(TopicChanged):
            await store.engine.publish(TENANT, "orders", [msg(b"y")], checked={"orders": None})

    async def test_the_policy_in_force_lets_it_pass(self, store: Store) -> None:
        await store.queue()
        await store.engine.publish(TENANT, "orders", [msg(b"x")], checked={"orders": None})
        await store.engine.put_topic(TENANT, "orders", self.NEW)
        await store.engine.publish(TENANT, "orders", [msg(b"y")], checked={"orders": self.NEW})
        await store.engine.publish(TENANT, "orders", [msg(b"z")])
        assert len(await store.log()) == 3

    async def test_a_repeated_batch_is_answered_whatever_is_in_force(self, store: Store) -> None:
        await store.queue()
        first = await store.engine.publish(
            TENANT, "orders", [msg(b"x")], batch_id="b", checked={"orders": None}
        )
        await store.engine.put_topic(TENANT, "orders", self.NEW)
        again = await store.engine.publish(
            TENANT, "orders", [msg(b"x")], batch_id="b", checked={"orders": None}
        )
        assert again.repeated
        assert again.messages == first.messages

    @law("S3")
    async def test_settling_with_a_publish_does_neither(self, store: Store) -> None:
        await store.queue(filter="topic = 'work'")
        await store.queue("out", "topic = 'out'")
        await store.publish(b"x", topic="work")
        delivery = await store.claim_one()
        await store.engine.put_topic(TENANT, "out", self.NEW)
        outgoing = [Outgoing("out", [msg(b"y")])]
        with pytest.raises(TopicChanged):
            await store.engine.settle(
                TENANT, "q", [Ack(delivery.receipt)], outgoing, checked={"out": self.OLD}
            )
        assert len(await store.log()) == 1
        reply = await store.engine.settle(
            TENANT, "q", [Ack(delivery.receipt)], outgoing, checked={"out": self.NEW}
        )
        assert reply.outcomes[0].ok
        assert await store.ids("out", State.AVAILABLE) == [reply.published[0].id]
