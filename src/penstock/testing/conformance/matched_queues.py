"""Publish says how many queues have the message, and a message may decline to create one."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.delivery import Ack
from penstock.model.message import NewMessage, Outgoing, PublishReply
from penstock.model.queue import Start
from penstock.testing.conformance.harness import TENANT, Conformance, Store, msg, opened_with
from penstock.testing.laws import law

__all__ = ["TestAutoCreateOfAMessage", "TestMatchedQueues"]


async def queues_of(store: Store, *messages: NewMessage, topic: str = "orders") -> list[int | None]:
    """Publish one batch; returns the number of queues of each message."""
    return counts(await store.engine.publish(TENANT, topic, messages))


def counts(reply: PublishReply) -> list[int | None]:
    return [published.queues for published in reply.messages]


async def names(store: Store) -> Sequence[str]:
    return [info.name for info in await store.engine.list_queues(TENANT)]


class TestMatchedQueues(Conformance):
    """``Published.queues``."""

    async def test_every_queue_that_takes_the_message_counts(self, store: Store) -> None:
        assert await queues_of(store, msg(color="red")) == [0]
        await store.queue("all")
        await store.queue("red", "color = 'red'")
        plain = await queues_of(store, msg(b"1"), msg(b"2"))
        assert plain == [1, 1]
        mixed = await queues_of(store, msg(color="red"), msg(color="blue"), msg(color="red"))
        assert mixed == [2, 1, 2]

    async def test_a_queue_that_is_catching_up_does_not_count(self, store: Store) -> None:
        await store.publish(b"old")
        await store.queue("late", start=Start(Start.EARLIEST))
        assert await queues_of(store, msg(b"1")) == [0]
        await store.queue("now")
        assert await queues_of(store, msg(b"2")) == [1]

    async def test_a_delayed_message_counts(self, store: Store) -> None:
        await store.queue()
        later = store.clock.now() + 1_000
        assert await queues_of(store, msg(deliver_at=later)) == [1]

    async def test_the_number_of_a_duplicate_is_not_known(self, store: Store) -> None:
        await store.queue()
        assert await queues_of(store, msg(id="a"), msg(id="a")) == [1, None]
        assert await queues_of(store, msg(id="a"), msg(id="b")) == [None, 1]

    async def test_a_replacement_counts_the_queues_that_have_it_now(self, store: Store) -> None:
        await store.queue("all")
        await store.queue("red", "color = 'red'")
        await store.queue("blue", "color = 'blue'")
        await store.queue("large", "amount > 5")
        assert await queues_of(store, msg(key="k", color="red")) == [2]
        assert await queues_of(store, msg(key="k", color="blue", amount=9)) == [3]
        in_one_batch = [msg(key="n"), msg(key="n", color="red"), msg(key="n", amount=9)]
        assert await queues_of(store, *in_one_batch) == [1, 2, 2]

    async def test_a_replacement_that_no_queue_takes(self, store: Store) -> None:
        await store.queue("red", "color = 'red'")
        assert await queues_of(store, msg(key="k", color="red")) == [1]
        assert await queues_of(store, msg(key="k", color="blue")) == [0]

    @law("P4")
    async def test_a_repeated_batch_gets_the_same_numbers(self, store: Store) -> None:
        await store.queue("all")
        await store.queue("red", "color = 'red'")
        batch = [msg(color="red"), msg(id="i"), msg(id="i"), msg(color="red"), msg(b"x")]
        first = await store.engine.publish(TENANT, "orders", batch, batch_id="b")
        assert counts(first) == [2, 1, None, 2, 1]
        await store.queue("late")
        again = await store.engine.publish(TENANT, "orders", batch, batch_id="b")
        assert (again.messages, again.repeated) == (first.messages, True)
        assert await store.engine.batch(TENANT, "orders", "b") == first.messages

    @law("P4")
    async def test_a_settle_with_publish_counts_too(self, store: Store) -> None:
        await store.queue("all")
        await store.queue("red", "color = 'red'")
        await store.publish(b"x")
        acks = [Ack((await store.claim_one("all")).receipt)]
        outgoing = [Outgoing("orders", [msg(color="red"), msg(b"y")])]
        first = await store.engine.settle(TENANT, "all", acks, outgoing)
        assert [published.queues for published in first.published] == [2, 1]
        again = await store.engine.settle(TENANT, "all", acks, outgoing)
        assert (again.published, again.repeated) == (first.published, True)


class TestAutoCreateOfAMessage(Conformance):
    """``NewMessage.auto_create``."""

    @opened_with(auto_create=True)
    async def test_a_message_may_decline_to_create_a_queue(self, store: Store) -> None:
        assert await queues_of(store, msg(b"1", auto_create=False)) == [0]
        assert await names(store) == []
        assert await queues_of(store, msg(b"2")) == [1]
        assert await names(store) == ["orders"]
        assert (await store.claim_one("orders")).payload == b"2"
        assert await queues_of(store, msg(b"3", auto_create=False)) == [1]

    @opened_with(auto_create=True)
    async def test_every_message_of_a_batch_decides_for_itself(self, store: Store) -> None:
        batch = [msg(b"1", auto_create=False), msg(b"2"), msg(b"3", auto_create=False)]
        assert await queues_of(store, *batch) == [0, 1, 1]
        assert [d.payload for d in await store.claim("orders", 9)] == [b"2", b"3"]

    @opened_with(auto_create=True)
    async def test_a_keyed_message_may_decline(self, store: Store) -> None:
        await store.queue("red", "color = 'red'")
        assert await queues_of(store, msg(key="k", color="red")) == [1]
        declining = msg(key="k", color="blue", auto_create=False)
        assert await queues_of(store, declining) == [0]
        assert await names(store) == ["red"]
        assert await queues_of(store, declining) == [0]
        assert await queues_of(store, msg(key="k", color="blue")) == [1]
        assert await names(store) == ["orders", "red"]

    async def test_a_message_cannot_turn_it_on(self, store: Store) -> None:
        assert await queues_of(store, msg(b"1", auto_create=True)) == [0]
        assert await names(store) == []

    @opened_with(auto_create=True)
    async def test_a_settle_with_publish_may_decline(self, store: Store) -> None:
        await store.publish(b"x")
        ack = Ack((await store.claim_one("orders")).receipt)
        outgoing = [Outgoing("other", [msg(b"y", auto_create=False)])]
        reply = await store.engine.settle(TENANT, "orders", [ack], outgoing)
        assert [published.queues for published in reply.published] == [0]
        assert await names(store) == ["orders"]
