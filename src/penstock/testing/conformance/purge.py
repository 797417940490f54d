"""purge: remove deliveries in one state; the log and the other queues keep theirs (Q1)."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from penstock.errors import Conflict, UnknownDelivery, UnknownQueue
from penstock.filters import parse
from penstock.model.delivery import Verdict
from penstock.model.message import Message
from penstock.model.states import State
from penstock.testing.conformance.harness import TENANT, Conformance, Store, ids_of, msg
from penstock.testing.laws import law

__all__ = ["TestPurge"]


class Named(NamedTuple):
    """A selection by message ids."""

    ids: frozenset[int]

    def matches(self, message: Message) -> bool:
        return message.id in self.ids


class TestPurge(Conformance):
    """What is removed, and what stays."""

    async def test_available_in_claim_order_up_to_the_limit(self, store: Store) -> None:
        await store.queue()
        low, high, low2 = await store.publish(msg(priority=1), msg(priority=9), msg(priority=1))
        reply = await store.engine.purge(TENANT, "q", State.AVAILABLE, None, 2)
        assert (reply.count, reply.more) == (2, True)
        assert ids_of(await store.claim(limit=9)) == [low2]
        assert len({low, high, low2}) == 3

    async def test_every_state_that_may_be_purged(self, store: Store) -> None:
        await store.queue()
        now = store.clock.now()
        await store.publish(b"done", b"failed", msg(b"expired", expires_at=now + 10))
        await store.ack(await store.claim_one())
        await store.fail_one()
        store.clock.advance(10)
        await store.claim()
        await store.publish(b"available", msg(b"delayed", deliver_at=now + 999))
        for state in (State.DONE, State.FAILED, State.EXPIRED, State.AVAILABLE, State.DELAYED):
            (shown,) = await store.browse("q", state)
            reply = await store.engine.purge(TENANT, "q", state, None, 9)
            assert (reply.count, reply.more) == (1, False)
            assert await store.browse("q", state) == []
            assert await store.states(shown.message.id) == {}
        store.clock.advance(1000)
        assert await store.claim(limit=9) == []
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.depth, stats.done, stats.failed, stats.expired) == (0, 0, 0, 0)
        assert len(await store.log()) == 5

    async def test_in_flight_is_not_purged(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        delivery = await store.claim_one()
        for queue in ("q", "q.dlq"):
            with pytest.raises(Conflict, match="settle or cancel them") as refused:
                await store.engine.purge(TENANT, queue, State.IN_FLIGHT, None, 9)
            assert refused.value.field == "state"
        await store.engine.purge(TENANT, "q", State.AVAILABLE, None, 9)
        assert (await store.ack(delivery)).ok

    async def test_where_selects(self, store: Store) -> None:
        await store.queue()
        ids = await store.publish(*(msg(n=n) for n in range(6)))
        reply = await store.engine.purge(TENANT, "q", State.AVAILABLE, parse("n >= 2"), 3)
        assert reply.count == 3
        reply = await store.engine.purge(TENANT, "q", State.AVAILABLE, parse("n >= 2"), 3)
        assert (reply.count, reply.more) == (1, False)
        assert ids_of(await store.claim(limit=9)) == ids[:2]

    async def test_failed_is_what_the_dead_letters_have_available(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"1", b"2")
        await store.fail_one()
        await store.fail_one()
        assert (await store.engine.purge(TENANT, "q.dlq", State.AVAILABLE, None, 1)).count == 1
        assert (await store.engine.purge(TENANT, "q.dlq", State.FAILED, None, 9)).count == 0
        assert (await store.engine.purge(TENANT, "q", State.FAILED, None, 9)).count == 1
        assert await store.claim("q.dlq") == []

    @pytest.mark.parametrize("state", [State.AVAILABLE, State.FAILED, State.DONE])
    async def test_by_ids(self, store: Store, state: State) -> None:
        await store.queue()
        ids = await store.publish(*(msg(n=n) for n in range(5)))
        for _ in ids if state is not State.AVAILABLE else ():
            delivery = await store.claim_one()
            await (store.ack(delivery) if state is State.DONE else store.reject(delivery, "bad"))
        chosen = Named(frozenset({*ids[1:4], ids[-1] + 1000}))
        reply = await store.engine.purge(TENANT, "q", state, chosen, 2)
        assert (reply.count, reply.more) == (2, True)
        reply = await store.engine.purge(TENANT, "q", state, chosen, 9)
        assert (reply.count, reply.more) == (1, False)
        assert await store.ids("q", state) == [ids[0], ids[4]]

    async def test_a_purged_ack_cannot_be_repeated(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        delivery = await store.claim_one()
        await store.ack(delivery, b"r")
        await store.engine.purge(TENANT, "q", State.DONE, None, 9)
        assert (await store.ack(delivery)).verdict is Verdict.STALE
        with pytest.raises(UnknownDelivery):
            await store.engine.result(TENANT, "q", message_id)

    @law("S2")
    async def test_a_purged_delivery_does_not_come_back(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x", msg(deliver_at=store.clock.now() + 100))
        await store.engine.purge(TENANT, "q", State.AVAILABLE, None, 9)
        await store.engine.purge(TENANT, "q", State.DELAYED, None, 9)
        store.clock.advance(1000)
        await store.sweep_all()
        await store.engine.route(TENANT, "q", 100)
        assert await store.claim(limit=9) == []

    @law("Q1")
    async def test_other_queues_keep_theirs(self, store: Store) -> None:
        await store.queue("a")
        await store.queue("b")
        ids = await store.publish(b"1", b"2")
        before = await store.picture("b")
        await store.engine.purge(TENANT, "a", State.AVAILABLE, None, 9)
        assert await store.picture("b") == before
        assert ids_of(await store.claim("b", 9)) == ids

    async def test_many(self, store: Store) -> None:
        await store.queue(bucket_size=1)
        await store.publish(*[b"x"] * 250)
        removed = 0
        for _ in range(100):
            reply = await store.engine.purge(TENANT, "q", State.AVAILABLE, None, 40)
            assert reply.count <= 40
            removed += reply.count
            if not reply.more:
                break
        assert removed == 250
        assert (await store.engine.stats(TENANT, "q")).depth == 0
        (new,) = await store.publish(b"y")
        assert ids_of(await store.claim(limit=9)) == [new]

    async def test_an_unknown_queue(self, store: Store) -> None:
        with pytest.raises(UnknownQueue):
            await store.engine.purge(TENANT, "nope", State.DONE, None, 1)
