"""Quotas of a tenant: the number of queues, and of unindexed filters (E1, P2)."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import TooLarge, TooManyQueues, TooManyUnindexedFilters
from penstock.model.delivery import Ack
from penstock.model.states import State
from penstock.storage.contract import Outgoing
from penstock.testing.conformance.harness import (
    OTHER_TENANT,
    TENANT,
    Conformance,
    Store,
    msg,
    opened_with,
)
from penstock.testing.laws import law

__all__ = ["TestFanOut", "TestFilterQuota", "TestQueueQuota"]


class TestQueueQuota(Conformance):
    """The number of queues per tenant is limited, no matter how they are created."""

    async def names(self, store: Store, tenant: str = TENANT) -> list[str]:
        return [info.name for info in await store.engine.list_queues(tenant)]

    @law("E1")
    @opened_with(queues=2)
    async def test_one_queue_too_many_is_refused(self, store: Store) -> None:
        await store.queue("a")
        await store.queue("b")
        with pytest.raises(TooManyQueues) as refused:
            await store.queue("c")
        assert refused.value.limit == 2
        assert await self.names(store) == ["a", "b"]

    @opened_with(queues=2)
    async def test_what_is_there_can_be_changed_and_replaced(self, store: Store) -> None:
        await store.queue("a")
        await store.queue("b")
        assert (await store.queue("b", max_attempts=9)).policy.max_attempts == 9
        await store.engine.delete_queue(TENANT, "a")
        await store.queue("c")
        assert await self.names(store) == ["b", "c"]

    @law("T1")
    @opened_with(queues=1)
    async def test_another_tenant_has_a_quota_of_its_own(self, store: Store) -> None:
        await store.queue("a")
        await store.queue("a", tenant=OTHER_TENANT)
        assert await self.names(store, OTHER_TENANT) == ["a"]

    @law("P2")
    @opened_with(auto_create=True, queues=2)
    async def test_a_publish_that_needs_one_too_many_stores_nothing(self, store: Store) -> None:
        await store.queue("red", "color = 'red'")
        await store.publish(b"1", topic="orders")
        with pytest.raises(TooManyQueues):
            await store.publish(msg(color="red"), msg(), topic="more")
        assert await self.names(store) == ["orders", "red"]
        assert len(await store.log()) == 1
        assert await store.ids("red", State.AVAILABLE) == []

    @opened_with(auto_create=True, queues=1)
    async def test_a_publish_that_needs_no_queue_goes_on(self, store: Store) -> None:
        (first,) = await store.publish(b"1", topic="orders")
        (second,) = await store.publish(b"2", topic="orders")
        assert await store.ids("orders", State.AVAILABLE) == [first, second]

    @law("S3")
    @opened_with(auto_create=True, queues=2)
    async def test_a_settle_that_publishes_one_too_many_settles_nothing(self, store: Store) -> None:
        await store.queue("q", "topic = 'orders'")
        await store.publish(b"1")
        delivery = await store.claim_one()
        outgoing = [Outgoing("a", [msg()]), Outgoing("b", [msg()])]
        with pytest.raises(TooManyQueues):
            await store.engine.settle(TENANT, "q", [Ack(delivery.receipt)], outgoing)
        assert await self.names(store) == ["q"]
        assert await store.ids("q", State.IN_FLIGHT) == [delivery.message.id]

    @opened_with(auto_create=True, queues=3)
    async def test_the_limit_is_exact_among_concurrent_calls(self, store: Store) -> None:
        created = [store.queue(f"created{n}", "FALSE") for n in range(4)]
        published = [store.publish(b"x", topic=f"topic{n}") for n in range(4)]
        done = await asyncio.gather(*created, *published, return_exceptions=True)
        refused = [error for error in done if isinstance(error, BaseException)]
        assert {type(error) for error in refused} == {TooManyQueues}
        assert len(refused) == 5
        assert len(await self.names(store)) == 3


class TestFilterQuota(Conformance):
    """The number of filters per tenant that are evaluated for every message is limited."""

    @law("E1")
    @opened_with(unindexed_filters=1)
    async def test_one_unindexed_filter_too_many_is_refused(self, store: Store) -> None:
        await store.queue("a", "amount > 1")
        with pytest.raises(TooManyUnindexedFilters) as refused:
            await store.queue("b", "color LIKE 'r%'")
        assert refused.value.limit == 1
        assert "topic = " in refused.value.advice
        assert [info.name for info in await store.engine.list_queues(TENANT)] == ["a"]
        await store.queue("a", "amount > 1", tenant=OTHER_TENANT)

    @opened_with(unindexed_filters=0)
    async def test_filters_that_an_index_finds_are_not_counted(self, store: Store) -> None:
        indexed = [
            "TRUE",
            "FALSE",
            "topic = 'orders'",
            "topic LIKE 'orders.%'",
            "NOT topic = 'orders'",
            "color = 'red' AND amount > 1",
            "color IN ('red', 'blue')",
            "color = 'red' OR (topic = 'orders' AND amount > 1)",
            "urgent",
        ]
        for number, text in enumerate(indexed):
            await store.queue(f"q{number}", text)
        for text in ("amount > 1", "NOT color = 'red'", "color = 'red' OR amount > 1"):
            with pytest.raises(TooManyUnindexedFilters):
                await store.queue("one", text)

    @opened_with(unindexed_filters=1)
    async def test_a_changed_filter_counts_as_what_it_becomes(self, store: Store) -> None:
        await store.queue("a", "amount > 1")
        await store.queue("b", "color = 'red'")
        with pytest.raises(TooManyUnindexedFilters):
            await store.queue("b", "amount > 2")
        assert (await store.engine.get_queue(TENANT, "b")).policy.filter == "color = 'red'"
        await store.queue("a", "amount > 3")
        await store.queue("a", "color = 'blue'")
        await store.queue("b", "amount > 2")


class TestFanOut(Conformance):
    """The messages of one publish become at most so many deliveries."""

    @law("E1")
    @opened_with(publish_deliveries=4)
    @pytest.mark.parametrize("filter", ["topic = 'orders'", "color = 'red'"])
    async def test_one_delivery_too_many_stores_nothing(self, store: Store, filter: str) -> None:
        for name in ("a", "b"):
            await store.queue(name, filter)
        with pytest.raises(TooLarge) as refused:
            await store.publish(*[msg(color="red")] * 3)
        assert (refused.value.field, refused.value.limit) == ("messages", 4)
        assert await store.log() == []
        assert await store.ids("a", State.AVAILABLE) == []
        assert len(await store.publish(*[msg(color="red")] * 2)) == 2

    @opened_with(publish_deliveries=1)
    async def test_a_message_alone_is_never_refused(self, store: Store) -> None:
        for name in ("a", "b", "c"):
            await store.queue(name, "topic = 'orders'")
        await store.publish(msg())
        await store.publish(msg(key="k"))
        await store.publish(msg(key="k"))
        assert (await store.engine.stats(TENANT, "c")).available == 2

    @opened_with(publish_deliveries=2)
    async def test_messages_that_are_replaced_count_too(self, store: Store) -> None:
        for name in ("a", "b"):
            await store.queue(name, "topic = 'orders'")
        for key in ("k", "l"):
            await store.publish(msg(key=key))
        with pytest.raises(TooLarge):
            await store.publish(msg(key="k"), msg(key="l"))

    @law("S3")
    @opened_with(publish_deliveries=2)
    async def test_a_settle_that_publishes_too_many_settles_nothing(self, store: Store) -> None:
        await store.queue("q", "topic = 'orders'")
        await store.queue("other", "topic IN ('a', 'b')")
        await store.queue("more", "topic IN ('a', 'b')")
        await store.publish(b"1")
        delivery = await store.claim_one()
        outgoing = [Outgoing("a", [msg()]), Outgoing("b", [msg()])]
        with pytest.raises(TooLarge):
            await store.engine.settle(TENANT, "q", [Ack(delivery.receipt)], outgoing)
        assert await store.ids("q", State.IN_FLIGHT) == [delivery.message.id]
        assert await store.ids("other", State.AVAILABLE) == []
