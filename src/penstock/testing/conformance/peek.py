"""peek: page through one state in claim order, consuming nothing."""

from __future__ import annotations

import pytest

from penstock.errors import UnknownQueue
from penstock.model.states import State
from penstock.testing.conformance.harness import TENANT, Conformance, Store, ids_of, msg
from penstock.testing.laws import law

__all__ = ["TestPeek"]


class TestPeek(Conformance):
    """Pages of snapshots."""

    async def test_peeking_consumes_nothing(self, store: Store) -> None:
        await store.queue()
        ids = await store.publish(b"1", b"2")
        before = await store.picture("q")
        assert await store.ids("q", State.AVAILABLE) == ids
        assert await store.picture("q") == before
        assert [d.attempts for d in await store.claim(limit=9)] == [1, 1]

    async def test_a_snapshot_of_each_state(self, store: Store) -> None:
        await store.queue(max_attempts=9)
        now = store.clock.now()
        ids = await store.publish(
            b"done",
            b"failed",
            b"in flight",
            b"available",
            msg(b"delayed", deliver_at=now + 500),
            msg(b"expired", expires_at=now + 5, priority=0),
        )
        await store.ack(await store.claim_one(consumer="w"))
        await store.fail_one(error="e")
        await store.claim_one(consumer="w", lease_ms=9000)
        store.clock.advance(5)
        await store.claim(limit=0)
        expected = {
            State.DONE: (ids[0], 1, now, None, None, None, None),
            State.FAILED: (ids[1], 1, now, None, None, None, "e"),
            State.IN_FLIGHT: (ids[2], 1, None, now, now + 9000, "w", None),
            State.AVAILABLE: (ids[3], 0, None, None, None, None, None),
            State.DELAYED: (ids[4], 0, now + 500, None, None, None, None),
            State.EXPIRED: (ids[5], 0, now + 5, None, None, None, None),
        }
        for state, fields in expected.items():
            (s,) = await store.browse("q", state)
            assert (s.queue, s.state) == ("q", state)
            assert (
                s.message.id,
                s.attempts,
                s.at,
                s.claimed_at,
                s.lease_deadline,
                s.consumer,
                s.error,
            ) == fields
            assert s.payload is None

    async def test_payloads_only_when_asked(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"1", b"")
        shown = await store.browse("q", State.AVAILABLE, payloads=True)
        assert [s.payload for s in shown] == [b"1", b""]
        shown = await store.browse("q", State.AVAILABLE)
        assert [s.payload for s in shown] == [None, None]

    @pytest.mark.parametrize("page", [1, 2, 3, 7, 100])
    async def test_pages_add_up(self, store: Store, page: int) -> None:
        await store.queue(bucket_size=1)
        await store.publish(*(msg(priority=n % 4) for n in range(30)))
        whole = await store.browse("q", State.AVAILABLE)
        assert len(whole) == 30
        assert await store.browse("q", State.AVAILABLE, page=page) == whole

    @law("C4")
    @pytest.mark.parametrize("state", [State.DONE, State.FAILED, State.IN_FLIGHT, State.DELAYED])
    async def test_every_state_is_shown_in_claim_order(self, store: Store, state: State) -> None:
        await store.queue(bucket_size=0)
        low = await store.publish(*[msg(priority=2)] * 3)
        high = await store.publish(*[msg(priority=7)] * 3)
        for delivery in await store.claim(limit=9):
            if state is State.DONE:
                await store.ack(delivery)
            elif state is State.FAILED:
                await store.reject(delivery)
            elif state is State.DELAYED:
                await store.nack(delivery, delay_ms=1000 - delivery.message.id % 7)
        assert await store.ids("q", state) == [*high, *low]
        shown = await store.browse("q", state, page=2)
        assert [s.message.id for s in shown] == [*high, *low]

    async def test_where_filters(self, store: Store) -> None:
        await store.queue()
        ids = await store.publish(*(msg(n=n) for n in range(10)))
        shown = await store.browse("q", State.AVAILABLE, "n BETWEEN 3 AND 5", page=2)
        assert [s.message.id for s in shown] == ids[3:6]
        assert await store.browse("q", State.AVAILABLE, "missing = 1") == []

    async def test_a_cursor_survives_what_happens_in_between(self, store: Store) -> None:
        await store.queue()
        ids = await store.publish(*[b"x"] * 6)
        first = await store.engine.peek(TENANT, "q", State.AVAILABLE, None, 2)
        assert [s.message.id for s in first.items] == ids[:2]
        assert first.cursor is not None
        await store.claim(limit=3)
        rest = []
        cursor: str | None = first.cursor
        while cursor is not None:
            page = await store.engine.peek(TENANT, "q", State.AVAILABLE, None, 2, cursor)
            rest += [s.message.id for s in page.items]
            cursor = page.cursor
        assert rest == ids[3:]

    async def test_nothing_to_see(self, store: Store) -> None:
        await store.queue()
        for queue in ("q", "q.dlq"):
            for state in State:
                page = await store.engine.peek(TENANT, queue, state, None, 10)
                assert (page.items, page.cursor) == ((), None)
        with pytest.raises(UnknownQueue):
            await store.engine.peek(TENANT, "nope", State.DONE, None, 10)

    async def test_the_last_error_is_shown(self, store: Store) -> None:
        await store.queue(max_attempts=9)
        await store.publish(b"x")
        await store.nack(await store.claim_one(), "one")
        await store.nack(await store.claim_one(), "two", 10)
        (shown,) = await store.browse("q", State.DELAYED)
        assert (shown.error, shown.attempts) == ("two", 2)
        store.clock.advance(10)
        assert ids_of(await store.claim()) == [shown.message.id]
        (shown,) = await store.browse("q", State.IN_FLIGHT)
        assert (shown.error, shown.attempts) == ("two", 3)
