"""publish: atomic batches, exact bytes, depth, auto-created queues."""

from __future__ import annotations

import pytest

from penstock.errors import QueueFull, UnknownMessage, UnknownQueue
from penstock.model.checksum import checksum
from penstock.model.message import HeaderValue, MessageId, NewMessage, Offset
from penstock.model.queue import Start, TopicPolicy
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

__all__ = ["TestAutoCreate", "TestDepth", "TestPublish"]

HOUR_MS = 3600 * 1000


class TestPublish(Conformance):
    """What is published is what is delivered."""

    @law("P3")
    async def test_what_is_delivered_is_byte_equal(self, store: Store) -> None:
        """P3, for payloads that text, NUL-terminated or length-prefixed storage would break."""
        payloads = [b"", b"\x00", b"\xff" * 1000, bytes(range(256)) * 300, "grüße".encode(), b"x"]
        await store.queue()
        ids = await store.publish(*payloads)
        claimed = await store.claim(limit=10)
        assert [d.payload for d in claimed] == payloads
        assert ids_of(claimed) == ids
        assert [d.message.size for d in claimed] == [len(p) for p in payloads]
        assert [d.message.checksum for d in claimed] == [checksum(p) for p in payloads]

    @law("P3")
    async def test_every_field_comes_back(self, store: Store) -> None:
        now = store.clock.now()
        headers: dict[str, HeaderValue] = {
            "text": "a'b\x00c ü",
            "empty": "",
            "int": 2**63 - 1,
            "negative": -(2**63),
            "float": 0.1,
            "whole_float": 2.0,
            "yes": True,
            "no": False,
            "one": 1,
        }
        new = NewMessage(
            payload=b"body",
            headers=headers,
            id="id-1",
            key="key-1",
            partition_key="part-1",
            priority=7,
            content_type="application/json",
            deliver_at=None,
            expires_at=now + 5000,
        )
        await store.queue()
        reply = await store.engine.publish(TENANT, "orders", [new])
        (published,) = reply.messages
        assert published.offset == Offset(published.id)
        assert (published.duplicate, published.replaced) == (False, False)
        message = (await store.claim_one()).message
        assert (message.id, message.offset) == (published.id, published.offset)
        assert (message.topic, message.priority) == ("orders", 7)
        assert (message.published_at, message.deliver_at, message.expires_at) == (
            now,
            now,
            now + 5000,
        )
        assert (message.partition_key, message.key) == ("part-1", "key-1")
        assert message.content_type == "application/json"
        assert message.headers == headers
        types = {name: type(value) for name, value in message.headers.items()}
        assert types == {name: type(value) for name, value in headers.items()}

    @law("P3")
    async def test_absent_and_empty_are_different(self, store: Store) -> None:
        await store.queue()
        await store.publish(msg(), msg(content_type=""))
        absent, empty = await store.claim(limit=2)
        assert absent.message.content_type is None
        assert empty.message.content_type == ""
        assert absent.message.partition_key is None
        assert absent.message.key is None
        assert absent.message.expires_at is None
        assert absent.message.headers == {}

    @law("L1")
    async def test_ids_increase_in_the_order_of_the_batch(self, store: Store) -> None:
        first = await store.publish(b"1", b"2", b"3")
        second = await store.publish(b"4", topic="other")
        third = await store.publish(b"5")
        ids = [*first, *second, *third]
        assert ids == sorted(set(ids))

    async def test_the_reply_says_which_durability_was_achieved(self, store: Store) -> None:
        best = store.engine.capabilities.durability
        reply = await store.engine.publish(TENANT, "t", [msg(b"x")])
        assert reply.durability == best
        reply = await store.engine.publish(TENANT, "t", [msg(b"x")], "os")
        assert reply.durability in {"os", "fsync", "memory", best}
        assert len(reply.messages) == 1

    async def test_an_empty_batch_is_no_batch(self, store: Store) -> None:
        end = await store.engine.log_end(TENANT)
        assert (await store.engine.publish(TENANT, "t", [])).messages == ()
        assert await store.engine.log_end(TENANT) == end

    async def test_each_matching_queue_gets_the_message_once(self, store: Store) -> None:
        await store.queue("all")
        await store.queue("red", "color = 'red'")
        await store.queue("never", "FALSE")
        (red, blue, none) = await store.publish(msg(color="red"), msg(color="blue"), msg())
        assert await store.ids("all", State.AVAILABLE) == [red, blue, none]
        assert await store.ids("red", State.AVAILABLE) == [red]
        assert await store.ids("never", State.AVAILABLE) == []

    @law("C3")
    async def test_a_delayed_message_starts_delayed(self, store: Store) -> None:
        await store.queue()
        due = store.clock.now() + 1000
        (message_id,) = await store.publish(msg(deliver_at=due))
        (shown,) = await store.browse("q", State.DELAYED)
        assert (shown.message.id, shown.at, shown.attempts) == (message_id, due, 0)
        assert await store.ids("q", State.AVAILABLE) == []

    async def test_the_topics_ttl_applies_where_no_expiry_is_given(self, store: Store) -> None:
        now = store.clock.now()
        await store.engine.put_topic(TENANT, "orders", TopicPolicy(default_ttl_ms=500))
        ids = await store.publish(msg(), msg(expires_at=now + 9000))
        await store.publish(b"elsewhere", topic="plain")
        assert [m.expires_at for m in await store.log()] == [now + 500, now + 9000, None]
        assert [m.id for m in await store.log()][:2] == ids


class TestDepth(Conformance):
    """max_depth rejects the whole batch, and names the queue."""

    @law("P2")
    async def test_a_refused_batch_leaves_nothing(self, store: Store) -> None:
        await store.queue("small", "color = 'red'", max_depth=2)
        await store.queue("large")
        await store.publish(msg(color="red"))
        end = await store.engine.log_end(TENANT)
        with pytest.raises(QueueFull) as refused:
            await store.publish(msg(b"1"), msg(b"2", color="red"), msg(b"3", color="red"))
        assert refused.value.queue == "small"
        assert refused.value.limit == 2
        assert refused.value.retry_after_ms == 1000
        assert refused.value.retryable
        assert await store.engine.log_end(TENANT) == end
        assert len(await store.log()) == 1
        assert (await store.engine.stats(TENANT, "small")).depth == 1
        assert (await store.engine.stats(TENANT, "large")).depth == 1

    async def test_a_batch_may_fill_the_queue_exactly(self, store: Store) -> None:
        await store.queue(max_depth=3)
        await store.publish(b"1", b"2", b"3")
        with pytest.raises(QueueFull):
            await store.publish(b"4")

    async def test_delayed_and_in_flight_count_and_settled_do_not(self, store: Store) -> None:
        await store.queue(max_depth=3)
        later = store.clock.now() + 1000
        await store.publish(msg(deliver_at=later), b"2", b"3")
        claimed = await store.claim(limit=2)
        with pytest.raises(QueueFull):
            await store.publish(b"4")
        await store.ack(claimed[0])
        await store.reject(claimed[1])
        await store.publish(b"4", b"5")
        with pytest.raises(QueueFull):
            await store.publish(b"6")

    async def test_a_full_queue_does_not_refuse_what_passes_it_by(self, store: Store) -> None:
        await store.queue("small", "color = 'red'", max_depth=1)
        await store.queue("large")
        await store.publish(msg(color="red"))
        await store.publish(msg(color="blue"))
        assert (await store.engine.stats(TENANT, "large")).available == 2

    async def test_lowering_max_depth_keeps_what_is_there(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"1", b"2", b"3")
        await store.queue(max_depth=1)
        assert (await store.engine.stats(TENANT, "q")).available == 3
        with pytest.raises(QueueFull):
            await store.publish(b"4")
        assert len(await store.claim(limit=9)) == 3

    async def test_max_depth_may_be_removed_and_set_again(self, store: Store) -> None:
        await store.queue(max_depth=1)
        await store.queue("other", "color = 'red'", max_depth=1)
        await store.queue()
        await store.publish(b"1", b"2")
        await store.engine.delete_queue(TENANT, "other")
        await store.queue(max_depth=2)
        with pytest.raises(QueueFull):
            await store.publish(b"3")


class TestAutoCreate(Conformance):
    """With ``auto_create``, a message that no queue takes creates one."""

    @opened_with(auto_create=True)
    async def test_a_queue_named_after_the_topic(self, store: Store) -> None:
        ids = await store.publish(b"1", b"2")
        info = await store.engine.get_queue(TENANT, "orders")
        assert info.policy.filter == "topic = 'orders'"
        assert (info.filter_version, info.cursor) == (1, None)
        assert info.created_at == store.clock.now()
        assert ids_of(await store.claim("orders", 9)) == ids
        assert [q.name for q in await store.engine.list_queues(TENANT)] == ["orders"]
        assert await store.engine.list_queues(OTHER_TENANT) == ()

    @opened_with(auto_create=True)
    async def test_it_takes_the_rest_of_the_batch(self, store: Store) -> None:
        """Next to other queues that take it, caught up or not, and replacements of one key."""
        await store.publish(b"0", topic="other")
        await store.queue("red", "color = 'red'")
        await store.queue("late", "color = 'blue' AND topic = 'orders'", start=Start("earliest"))
        await store.queue("later", "color = 'blue' OR topic = 'other'", start=Start("earliest"))
        first, red, blue, again = await store.publish(
            msg(b"1", key="k"),
            msg(b"2", color="red"),
            msg(b"3", color="blue"),
            msg(b"4", key="k"),
        )
        assert again == first
        assert ids_of(await store.claim("orders", 9)) == [first, red, blue]
        assert ids_of(await store.claim("red", 9)) == [red]

    @opened_with(auto_create=True)
    async def test_not_when_a_queue_matches(self, store: Store) -> None:
        await store.queue("all")
        await store.publish(b"1")
        assert [q.name for q in await store.engine.list_queues(TENANT)] == ["all"]

    @opened_with(auto_create=True)
    async def test_not_when_the_name_is_taken(self, store: Store) -> None:
        await store.queue("orders", "color = 'red'")
        await store.publish(b"1")
        info = await store.engine.get_queue(TENANT, "orders")
        assert info.policy.filter == "color = 'red'"
        assert (await store.engine.stats(TENANT, "orders")).depth == 0
        assert len(await store.log()) == 1

    @opened_with(auto_create=True)
    async def test_not_when_a_queue_that_is_catching_up_has_the_name(self, store: Store) -> None:
        await store.publish(b"old", topic="other")
        await store.queue("orders", "FALSE", start=Start(Start.EARLIEST))
        await store.publish(b"new")
        names = [q.name for q in await store.engine.list_queues(TENANT)]
        assert names == ["orders", "other"]
        assert (await store.engine.stats(TENANT, "orders")).depth == 0

    @law("P2")
    @opened_with(auto_create=True)
    async def test_a_refused_batch_creates_no_queue(self, store: Store) -> None:
        await store.queue("small", "color = 'red'", max_depth=1)
        with pytest.raises(QueueFull):
            await store.publish(msg(), msg(color="red"), msg(color="red"))
        with pytest.raises(UnknownQueue):
            await store.engine.get_queue(TENANT, "orders")

    async def test_off_the_message_stays_in_the_log(self, store: Store) -> None:
        (message_id,) = await store.publish(b"1")
        assert await store.engine.list_queues(TENANT) == ()
        found = await store.engine.message(TENANT, message_id)
        assert (found.payload, found.deliveries) == (b"1", ())
        with pytest.raises(UnknownMessage):
            await store.engine.message(TENANT, MessageId(Offset(message_id + 1_000_000)))
