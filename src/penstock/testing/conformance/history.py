"""message and history: the deliveries of a message, and their transitions."""

from __future__ import annotations

import pytest

from penstock.errors import UnknownMessage
from penstock.model.delivery import ReplaySource
from penstock.model.message import MessageId
from penstock.model.states import State, Transition, may_follow
from penstock.testing.conformance.harness import TENANT, Conformance, Store, msg
from penstock.testing.laws import law

__all__ = ["TestHistory", "TestMessage"]

T = Transition


async def steps(store: Store, message_id: MessageId) -> list[tuple[str, Transition, State | None]]:
    """The transitions of a message, in order."""
    events = await store.engine.history(TENANT, message_id)
    assert [e.at for e in events] == sorted(e.at for e in events)
    return [(e.queue, e.transition, e.state) for e in events]


class TestHistory(Conformance):
    """Every recorded transition."""

    async def test_a_simple_life(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        published_at = store.clock.now()
        store.clock.advance(10)
        delivery = await store.claim_one(consumer="w")
        store.clock.advance(10)
        await store.ack(delivery)
        assert await steps(store, message_id) == [
            ("q", T.PUBLISH, State.AVAILABLE),
            ("q", T.CLAIM, State.IN_FLIGHT),
            ("q", T.ACK, State.DONE),
        ]
        publish, claim, ack = await store.engine.history(TENANT, message_id)
        assert (publish.at, claim.at, ack.at) == (
            published_at,
            published_at + 10,
            published_at + 20,
        )
        assert claim.consumer == "w"

    async def test_a_life_with_retries(self, store: Store) -> None:
        await store.queue(max_attempts=2)
        (message_id,) = await store.publish(msg(deliver_at=store.clock.now() + 10))
        store.clock.advance(10)
        await store.release(await store.claim_one(consumer="a"))
        store.clock.advance(10)
        await store.claim_one(consumer="b", lease_ms=1000)
        store.clock.advance(1000)
        delivery = await store.claim_one(consumer="c")
        store.clock.advance(10)
        await store.nack(delivery, "broken")
        assert await steps(store, message_id) == [
            ("q", T.PUBLISH, State.DELAYED),
            ("q", T.CLAIM, State.IN_FLIGHT),
            ("q", T.RELEASE, State.AVAILABLE),
            ("q", T.CLAIM, State.IN_FLIGHT),
            ("q", T.LAPSE, State.AVAILABLE),
            ("q", T.CLAIM, State.IN_FLIGHT),
            ("q", T.NACK, State.FAILED),
        ]
        events = await store.engine.history(TENANT, message_id)
        assert [e.consumer for e in events if e.transition is T.CLAIM] == ["a", "b", "c"]
        assert events[-1].error == "broken"

    @law("S3")
    async def test_every_step_is_in_the_table(self, store: Store) -> None:
        await store.queue(max_attempts=1)
        (message_id,) = await store.publish(msg(expires_at=store.clock.now() + 500))
        store.clock.advance(10)
        await store.fail_one(error="e")
        store.clock.advance(10)
        await store.engine.replay(TENANT, "q", ReplaySource.FAILED, None, 9)
        store.clock.advance(500)
        await store.claim()
        found = await steps(store, message_id)
        assert [t for _, t, _ in found] == [T.PUBLISH, T.CLAIM, T.REJECT, T.REPLAY, T.EXPIRE]
        state: State | None = None
        for _, transition, after in found:
            assert may_follow(state, transition, after)
            state = after

    @law("Q1")
    async def test_each_queue_has_its_own(self, store: Store) -> None:
        await store.queue("a")
        await store.queue("b")
        (message_id,) = await store.publish(b"x")
        store.clock.advance(10)
        await store.ack(await store.claim_one("b"))
        found = await steps(store, message_id)
        assert [t for q, t, _ in found if q == "a"] == [T.PUBLISH]
        assert [t for q, t, _ in found if q == "b"] == [T.PUBLISH, T.CLAIM, T.ACK]

    async def test_unknown_messages(self, store: Store) -> None:
        (message_id,) = await store.publish(b"x")
        assert await store.engine.history(TENANT, message_id) == ()
        with pytest.raises(UnknownMessage):
            await store.engine.history(TENANT, MessageId(message_id + 10**6))


class TestMessage(Conformance):
    """The message and its deliveries by queue name."""

    async def test_a_message_and_where_it_is(self, store: Store) -> None:
        for name in ("d", "a", "c", "b"):
            await store.queue(name, "FALSE" if name == "b" else "TRUE")
        (message_id,) = await store.publish(msg(b"body", color="red"))
        await store.ack(await store.claim_one("c"))
        await store.fail_one("d")
        found = await store.engine.message(TENANT, message_id)
        assert found.payload == b"body"
        assert found.message.headers == {"color": "red"}
        assert [(s.queue, s.state, s.attempts) for s in found.deliveries] == [
            ("a", State.AVAILABLE, 0),
            ("c", State.DONE, 1),
            ("d", State.FAILED, 1),
        ]
        assert all(s.message == found.message for s in found.deliveries)
        assert found.deliveries[2].error == "broken"

    async def test_unknown_messages(self, store: Store) -> None:
        for message_id in (0, 1, 2**63):
            with pytest.raises(UnknownMessage):
                await store.engine.message(TENANT, MessageId(message_id))
