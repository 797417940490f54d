"""Keyed publish: the newest value of a key, in place, while its message waits (L1)."""

from __future__ import annotations

import pytest

from penstock.errors import QueueFull, TooManyQueues, UnknownMessage
from penstock.model.delivery import ReplaySource
from penstock.model.message import MessageId, Offset, Published
from penstock.model.queue import Start
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

__all__ = ["TestKeyed"]


async def put(store: Store, payload: bytes, color: str = "none") -> Published:
    """Publish under the key ``k``."""
    reply = await store.engine.publish(TENANT, "orders", [msg(payload, key="k", color=color)])
    return reply.messages[0]


class TestKeyed(Conformance):
    """A key's message is replaced while it waits, until it is settled or purged."""

    async def test_it_is_replaced_in_a_queue_that_is_catching_up_too(self, store: Store) -> None:
        await store.queue("all")
        (first,) = await store.publish(msg(b"1", key="k", color="red"))
        await store.publish(b"more")
        await store.queue("late", filter="color IS NOT NULL", start=Start(Start.EARLIEST))
        assert (await store.engine.route(TENANT, "late", 1)).cursor is not None
        (reply,) = (
            await store.engine.publish(TENANT, "orders", [msg(b"2", key="k", color="blue")])
        ).messages
        assert (reply.id, reply.replaced) == (first, True)
        page = await store.engine.peek(
            TENANT, "late", State.AVAILABLE, None, 9, None, payloads=True
        )
        assert [(item.message.id, item.payload) for item in page.items] == [(first, b"2")]
        await store.engine.publish(TENANT, "orders", [msg(b"3", key="k")])
        assert (await store.engine.stats(TENANT, "late")).available == 0

    async def test_it_is_replaced_where_a_replay_put_it(self, store: Store) -> None:
        await store.queue("all")
        (first,) = await store.publish(msg(b"1", key="k", color="red"))
        await store.queue("late", filter="color IS NOT NULL")
        reply = await store.engine.replay(TENANT, "late", ReplaySource.LOG, None, 9)
        assert reply.count == 1
        replaced = await put(store, b"2", "blue")
        assert (replaced.id, replaced.replaced) == (first, True)
        page = await store.engine.peek(
            TENANT, "late", State.AVAILABLE, None, 9, None, payloads=True
        )
        assert [(item.message.id, item.payload) for item in page.items] == [(first, b"2")]
        assert (await store.engine.stats(TENANT, "late")).available == 1
        await store.engine.publish(TENANT, "orders", [msg(b"3", key="k")])
        assert (await store.engine.stats(TENANT, "late")).available == 0

    async def test_one_batch_means_what_several_calls_would(self, store: Store) -> None:
        """The first one closes the key, because its message is no longer in any queue."""
        await store.queue(filter="color = 'red'")
        (first,) = await store.publish(msg(b"1", key="k", color="red"))
        batch = [
            msg(b"2", key="k", color="blue"),
            msg(b"3", key="k", color="red"),
            msg(b"4", key="k", color="red"),
        ]
        reply = (await store.engine.publish(TENANT, "orders", batch)).messages
        assert [item.replaced for item in reply] == [True, False, True]
        assert (reply[0].id, reply[1].id) == (first, reply[2].id)
        assert reply[1].id != first
        (only,) = await store.claim(limit=9)
        assert (only.message.id, only.payload) == (reply[1].id, b"4")

    async def test_a_key_in_no_queue_stands_for_nothing(self, store: Store) -> None:
        await store.queue(filter="color = 'red'")
        batch = [msg(b"1", key="k", color="blue"), msg(b"2", key="k", color="blue")]
        one, two = (await store.engine.publish(TENANT, "orders", batch)).messages
        assert (one.replaced, two.replaced) == (False, False)
        assert one.id != two.id

    @law("L1")
    async def test_a_replacement_keeps_id_and_place_and_appends(self, store: Store) -> None:
        await store.queue()
        now = store.clock.now()
        (first,) = await store.publish(
            msg(b"1", key="k", partition_key="p", priority=6, content_type="a", color="red")
        )
        (other,) = await store.publish(msg(b"other", priority=6))
        store.clock.advance(10)
        new = msg(
            b"22",
            key="k",
            partition_key="ignored",
            priority=1,
            content_type="b",
            expires_at=now + 9999,
            size="big",
        )
        (published,) = (await store.engine.publish(TENANT, "orders", [new])).messages
        assert published.replaced
        assert not published.duplicate
        assert published.id == first
        assert published.offset > other
        one, two = await store.claim(limit=9)
        assert (one.message.id, one.payload) == (first, b"22")
        assert one.message.offset == published.offset
        assert (one.message.headers, one.message.content_type) == ({"size": "big"}, "b")
        assert (one.message.priority, one.message.partition_key) == (6, "p")
        assert (one.message.deliver_at, one.message.expires_at) == (now, now + 9999)
        assert one.message.published_at == now
        assert one.message.size == 2
        assert two.message.id == other

    @law("L1")
    async def test_the_older_entry_does_not_change(self, store: Store) -> None:
        await store.queue()
        await put(store, b"1", color="red")
        before = (await store.log())[0]
        await put(store, b"2", color="blue")
        old, new = await store.log()
        assert old == before
        assert (old.offset, old.headers) == (Offset(old.id), {"color": "red"})
        assert new.id == old.id
        assert (new.offset > old.offset, new.headers) == (True, {"color": "blue"})

    async def test_the_message_is_shown_as_it_is_now(self, store: Store) -> None:
        await store.queue()
        first = await put(store, b"1")
        second = await put(store, b"2", color="blue")
        found = await store.engine.message(TENANT, first.id)
        assert (found.payload, found.message.offset) == (b"2", second.offset)
        (shown,) = await store.browse("q", State.AVAILABLE, payloads=True)
        assert (shown.payload, shown.message) == (b"2", found.message)
        assert (await store.engine.stats(TENANT, "q")).available == 1

    async def test_the_entry_of_a_replacement_names_no_message(self, store: Store) -> None:
        await store.queue()
        first = await put(store, b"1")
        second = await put(store, b"2")
        assert second.offset != first.offset
        with pytest.raises(UnknownMessage):
            await store.engine.message(TENANT, MessageId(second.offset))

    async def test_a_message_in_flight_is_not_replaced(self, store: Store) -> None:
        """A second message, published while the first is in flight, must not break its nack."""
        await store.queue()
        first = await put(store, b"1")
        claimed = await store.claim_one()
        second = await put(store, b"2")
        assert not second.replaced
        assert second.id != first.id
        assert (await store.nack(claimed)).state is State.AVAILABLE
        assert await store.ids("q", State.AVAILABLE) == [first.id, second.id]
        third = await put(store, b"3")
        assert (third.id, third.replaced) == (second.id, True)
        assert [d.payload for d in await store.claim(limit=9)] == [b"1", b"3"]

    async def test_one_claim_in_any_queue_prevents_the_replacement(self, store: Store) -> None:
        await store.queue("a")
        await store.queue("b")
        first = await put(store, b"1")
        claimed = await store.claim_one("b")
        second = await put(store, b"2")
        assert second.id != first.id
        assert await store.ids("a", State.AVAILABLE) == [first.id, second.id]
        await store.release(claimed)
        third = await put(store, b"3")
        assert (third.id, third.replaced) == (second.id, True)

    async def test_a_replayed_message_stays_closed(self, store: Store) -> None:
        await store.queue()
        first = await put(store, b"1")
        await store.reject(await store.claim_one())
        await store.engine.replay(TENANT, "q", ReplaySource.FAILED, None, 9)
        second = await put(store, b"2")
        assert second.id != first.id

    async def test_a_purge_closes_the_key(self, store: Store) -> None:
        await store.queue("a")
        await store.queue("b")
        first = await put(store, b"1")
        await store.engine.purge(TENANT, "a", State.AVAILABLE, None, 10)
        second = await put(store, b"2")
        assert second.id != first.id
        assert await store.ids("b", State.AVAILABLE) == [first.id, second.id]

    async def test_expiry_closes_the_key(self, store: Store) -> None:
        await store.queue()
        expires_at = store.clock.now() + 10
        await store.publish(msg(b"1", key="k", expires_at=expires_at))
        store.clock.advance(10)
        assert await store.claim() == []
        second = await put(store, b"2")
        assert not second.replaced
        assert (await store.claim_one()).payload == b"2"

    async def test_a_replacement_renews_the_expiry(self, store: Store) -> None:
        await store.queue()
        now = store.clock.now()
        await store.publish(msg(b"1", key="k", expires_at=now + 10))
        await store.publish(msg(b"2", key="k", expires_at=now + 100))
        store.clock.advance(50)
        assert (await store.claim_one()).payload == b"2"

    @law("C3")
    async def test_a_delayed_message_stays_delayed(self, store: Store) -> None:
        await store.queue()
        due = store.clock.now() + 100
        await store.publish(msg(b"1", key="k", deliver_at=due))
        await put(store, b"2")
        assert await store.claim() == []
        (shown,) = await store.browse("q", State.DELAYED)
        assert (shown.at, shown.message.deliver_at) == (due, due)
        store.clock.advance(100)
        assert (await store.claim_one()).payload == b"2"

    @law("R1")
    async def test_a_replacement_is_routed_again(self, store: Store) -> None:
        await store.queue("red", "color = 'red'")
        await store.queue("blue", "color = 'blue'")
        await store.queue("all")
        first = await put(store, b"1", color="red")
        second = await put(store, b"2", color="blue")
        assert second.id == first.id
        assert await store.states(first.id) == {"all": State.AVAILABLE, "blue": State.AVAILABLE}
        assert await store.ids("red", State.AVAILABLE) == []
        assert (await store.engine.stats(TENANT, "red")).depth == 0
        assert (await store.claim_one("blue")).payload == b"2"
        assert await store.claim("red") == []

    async def test_a_replacement_that_nothing_takes_closes_the_key(self, store: Store) -> None:
        await store.queue("red", "color = 'red'")
        first = await put(store, b"1", color="red")
        second = await put(store, b"2", color="blue")
        assert second.replaced
        assert await store.states(first.id) == {}
        third = await put(store, b"3", color="red")
        assert not third.replaced
        assert third.id != first.id
        assert await store.ids("red", State.AVAILABLE) == [third.id]

    @law("R1")
    @opened_with(auto_create=True)
    async def test_a_replacement_that_nothing_takes_creates_a_queue(self, store: Store) -> None:
        await store.queue("red", "color = 'red'")
        first = await put(store, b"1", color="red")
        second = await put(store, b"2", color="blue")
        assert (second.id, second.replaced) == (first.id, True)
        assert await store.states(first.id) == {"orders": State.AVAILABLE}
        assert (await store.engine.stats(TENANT, "red")).depth == 0
        info = await store.engine.get_queue(TENANT, "orders")
        assert (info.policy.filter, info.cursor) == ("topic = 'orders'", None)
        third = await put(store, b"3", color="red")
        assert (third.id, third.replaced) == (first.id, True)
        assert [d.payload for d in await store.claim("red", 9)] == [b"3"]
        assert [d.payload for d in await store.claim("orders", 9)] == [b"3"]

    @opened_with(auto_create=True)
    async def test_the_created_queue_keeps_the_delay(self, store: Store) -> None:
        await store.queue("red", "color = 'red'")
        due = store.clock.now() + 100
        (first,) = await store.publish(msg(b"1", key="k", deliver_at=due, color="red"))
        await put(store, b"2", color="blue")
        assert await store.states(first) == {"orders": State.DELAYED}
        store.clock.advance(100)
        assert (await store.claim_one("orders")).payload == b"2"

    @opened_with(auto_create=True)
    async def test_the_created_queue_takes_the_rest_of_the_batch(self, store: Store) -> None:
        await store.queue("red", "color = 'red'")
        batch = [
            msg(b"1", key="k", color="red"),
            msg(b"2", key="k", color="blue"),
            msg(b"3", color="red"),
            msg(b"4", key="k", color="red"),
        ]
        reply = (await store.engine.publish(TENANT, "orders", batch)).messages
        assert [item.replaced for item in reply] == [False, True, False, True]
        assert [d.payload for d in await store.claim("red", 9)] == [b"4", b"3"]
        assert [d.payload for d in await store.claim("orders", 9)] == [b"4", b"3"]

    @opened_with(auto_create=True)
    async def test_a_replacement_creates_no_queue_where_the_name_is_taken(
        self, store: Store
    ) -> None:
        await store.queue("orders", "color = 'red'")
        first = await put(store, b"1", color="red")
        assert (await put(store, b"2", color="blue")).replaced
        assert await store.states(first.id) == {}
        assert [q.name for q in await store.engine.list_queues(TENANT)] == ["orders"]
        assert not (await put(store, b"3", color="red")).replaced

    @opened_with(auto_create=True)
    async def test_a_replacement_creates_no_queue_where_one_will_take_it(
        self, store: Store
    ) -> None:
        """A queue that is catching up takes the message, although it does not have it yet."""
        await store.queue("red", "color = 'red'")
        first = await put(store, b"1", color="red")
        await store.queue("late", "color = 'blue'", start=Start(Start.EARLIEST))
        assert (await put(store, b"2", color="blue")).replaced
        assert [q.name for q in await store.engine.list_queues(TENANT)] == ["late", "red"]
        await store.engine.route(TENANT, "late", 100)
        assert await store.states(first.id) == {"late": State.AVAILABLE}

    @law("P2")
    @opened_with(auto_create=True, queues=1)
    async def test_one_queue_too_many_refuses_the_replacement(self, store: Store) -> None:
        await store.queue("red", "color = 'red'")
        first = await put(store, b"1", color="red")
        with pytest.raises(TooManyQueues):
            await put(store, b"2", color="blue")
        assert [q.name for q in await store.engine.list_queues(TENANT)] == ["red"]
        assert len(await store.log()) == 1
        third = await put(store, b"3", color="red")
        assert (third.id, third.replaced) == (first.id, True)
        assert (await store.claim_one("red")).payload == b"3"

    async def test_a_message_that_nothing_takes_has_no_open_key(self, store: Store) -> None:
        first = await put(store, b"1")
        second = await put(store, b"2")
        assert first.id != second.id
        assert not second.replaced

    async def test_joining_a_full_queue_refuses_the_replacement(self, store: Store) -> None:
        await store.queue("red", "color = 'red'", max_depth=1)
        await store.queue("all")
        await put(store, b"1", color="blue")
        await store.publish(msg(b"fills it", color="red"))
        with pytest.raises(QueueFull):
            await put(store, b"2", color="red")
        assert [s.payload for s in await store.browse("all", State.AVAILABLE, payloads=True)] == [
            b"1",
            b"fills it",
        ]
        assert len(await store.log()) == 2

    async def test_replacing_in_a_full_queue_is_no_addition(self, store: Store) -> None:
        await store.queue(max_depth=1)
        await put(store, b"1")
        assert (await put(store, b"2")).replaced
        assert (await store.claim_one()).payload == b"2"

    async def test_inside_one_batch_too(self, store: Store) -> None:
        await store.queue()
        first, second = (
            await store.engine.publish(TENANT, "t", [msg(b"1", key="k"), msg(b"2", key="k")])
        ).messages
        assert (first.replaced, second.replaced) == (False, True)
        assert second.id == first.id
        assert [d.payload for d in await store.claim(limit=9)] == [b"2"]

    @law("P4")
    async def test_the_idempotency_id_is_asked_first(self, store: Store) -> None:
        await store.queue()
        await store.publish(msg(b"1", key="k", id="i"))
        again = (
            await store.engine.publish(TENANT, "orders", [msg(b"2", key="k", id="i")])
        ).messages[0]
        assert (again.duplicate, again.replaced) == (True, False)
        replaced = (
            await store.engine.publish(TENANT, "orders", [msg(b"3", key="k", id="j")])
        ).messages[0]
        assert (replaced.duplicate, replaced.replaced) == (False, True)
        once_more = (
            await store.engine.publish(TENANT, "orders", [msg(b"4", key="k", id="j")])
        ).messages[0]
        assert once_more.duplicate
        assert (await store.claim_one()).payload == b"3"

    @law("T1")
    async def test_keys_belong_to_a_topic_and_a_tenant(self, store: Store) -> None:
        await store.queue()
        await store.queue(tenant=OTHER_TENANT)
        await put(store, b"1")
        other_topic = (await store.engine.publish(TENANT, "u", [msg(b"2", key="k")])).messages[0]
        other_tenant = (
            await store.engine.publish(OTHER_TENANT, "orders", [msg(b"3", key="k")])
        ).messages[0]
        assert not other_topic.replaced
        assert not other_tenant.replaced
        assert [d.payload for d in await store.claim(limit=9)] == [b"1", b"2"]
        assert [d.payload for d in await store.claim(limit=9, tenant=OTHER_TENANT)] == [b"3"]

    async def test_deleting_the_only_queue_closes_the_key(self, store: Store) -> None:
        await store.queue()
        first = await put(store, b"1")
        await store.engine.delete_queue(TENANT, "q")
        await store.queue()
        second = await put(store, b"2")
        assert second.id != first.id
        assert ids_of(await store.claim(limit=9)) == [second.id]

    async def test_a_queue_that_is_catching_up_is_left_to_the_router(self, store: Store) -> None:
        await store.queue()
        first = await put(store, b"1", color="red")
        await store.queue("late", "color = 'blue'", start=Start(Start.EARLIEST))
        await put(store, b"2", color="blue")
        assert await store.states(first.id) == {"q": State.AVAILABLE}
        await store.engine.route(TENANT, "late", 100)
        assert await store.states(first.id) == {"late": State.AVAILABLE, "q": State.AVAILABLE}
        assert [d.payload for d in await store.claim("late", 9)] == [b"2"]
