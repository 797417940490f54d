"""Keyed publish to a message that returned to its queue after a claim (C2, S2)."""

from __future__ import annotations

import pytest

from penstock.model.delivery import (
    Ack,
    Delivery,
    Nack,
    Outcome,
    Reject,
    Release,
    Settlement,
    Verdict,
)
from penstock.model.message import Outgoing, Published
from penstock.model.queue import Backoff, Ordering
from penstock.model.states import State
from penstock.testing.conformance.harness import TENANT, Conformance, Store, ids_of, msg
from penstock.testing.laws import law

__all__ = ["TestKeyedReturns"]

LEASE_MS = 1_000


async def put(store: Store, payload: bytes, color: str = "red") -> Published:
    """Publish a message with the key ``k``."""
    reply = await store.engine.publish(TENANT, "orders", [msg(payload, key="k", color=color)])
    return reply.messages[0]


async def give_back(store: Store, delivery: Delivery, how: str) -> None:
    """Return a delivery to its queue."""
    if how == "nack":
        outcome: Outcome = await store.nack(delivery, "try again")
        assert outcome.state is State.AVAILABLE
    elif how == "release":
        assert (await store.release(delivery)).state is State.AVAILABLE
    else:
        store.clock.advance(LEASE_MS)
        await store.sweep_all()


class TestKeyedReturns(Conformance):
    """A message is replaced while it waits, also after claims; attempts stay."""

    @law("C2")
    @pytest.mark.parametrize("how", ["nack", "release", "lapse"])
    @pytest.mark.parametrize("ordering", list(Ordering))
    async def test_a_returned_message_is_replaced_and_keeps_its_attempts(
        self, store: Store, how: str, ordering: Ordering
    ) -> None:
        await store.queue(ordering=ordering, max_attempts=3)
        first = await put(store, b"1")
        (other,) = await store.publish(b"other")
        claimed = await store.claim_one(lease_ms=LEASE_MS)
        assert claimed.message.id == first.id
        await give_back(store, claimed, how)
        second = await put(store, b"2")
        assert (second.id, second.replaced, second.queues) == (first.id, True, 1)
        (shown,) = [s for s in await store.browse("q", State.AVAILABLE) if s.message.id == first.id]
        assert shown.attempts == 1
        again = await store.claim_one()
        assert (again.message.id, again.payload, again.attempts) == (first.id, b"2", 2)
        assert again.receipt != claimed.receipt
        await store.ack(again)
        assert ids_of(await store.claim(limit=9)) == [other]

    @law("S1")
    async def test_a_receipt_of_an_earlier_stay_is_stale(self, store: Store) -> None:
        """The message left the queue by one replacement and came back by another."""
        await store.queue("q", "color = 'red'")
        await store.queue("other")
        await put(store, b"1")
        before = await store.claim_one()
        await store.nack(before, "again", 0)
        assert (await put(store, b"2", color="blue")).replaced
        assert (await put(store, b"3")).replaced
        now = await store.claim_one()
        assert (await store.ack(now)).ok
        assert (await store.ack(before)).verdict is Verdict.STALE
        assert (await store.ack(now)).ok

    @law("C2")
    async def test_attempts_run_out_although_the_message_was_replaced(self, store: Store) -> None:
        await store.queue(max_attempts=2)
        await put(store, b"1")
        assert (await store.nack(await store.claim_one())).state is State.AVAILABLE
        assert (await put(store, b"2")).replaced
        assert (await store.nack(await store.claim_one(), "broken")).state is State.FAILED
        assert not (await put(store, b"3")).replaced
        letter = await store.claim_one("q.dlq")
        assert (letter.payload, letter.attempts) == (b"2", 3)

    async def test_a_message_that_waits_for_its_retry_keeps_the_delay(self, store: Store) -> None:
        await store.queue(backoff=Backoff(base_ms=2_000, max_ms=2_000))
        await put(store, b"1")
        assert (await store.nack(await store.claim_one())).state is State.DELAYED
        assert (await put(store, b"2")).replaced
        assert await store.claim() == []
        store.clock.advance(1_000)
        again = await store.claim_one()
        assert (again.payload, again.attempts) == (b"2", 2)

    async def test_a_lapsed_lease_is_in_flight_until_it_is_taken_back(self, store: Store) -> None:
        await store.queue()
        first = await put(store, b"1")
        claimed = await store.claim_one(lease_ms=LEASE_MS)
        store.clock.advance(LEASE_MS)
        second = await put(store, b"2")
        assert second.id != first.id
        assert (await store.ack(claimed)).ok
        assert [d.payload for d in await store.claim(limit=9)] == [b"2"]

    @law("S2")
    @pytest.mark.parametrize("verb", [Ack, Reject])
    async def test_a_settled_message_is_not_replaced(
        self, store: Store, verb: type[Ack | Reject]
    ) -> None:
        await store.queue("a")
        await store.queue("b")
        first = await put(store, b"1")
        settled = verb((await store.claim_one("a")).receipt)
        assert (await store.settle(settled, "a")).ok
        second = await put(store, b"2")
        assert (second.replaced, second.queues) == (False, 2)
        assert [d.payload for d in await store.claim("b", 9)] == [b"1", b"2"]
        assert [d.payload for d in await store.claim("a", 9)] == [b"2"]
        assert second.id != first.id

    async def test_several_acks_in_one_call_close_their_keys(self, store: Store) -> None:
        await store.queue()
        keys = ["a", "b", "c"]
        ids = await store.publish(*[msg(b"1", key=key) for key in keys])
        acks: list[Settlement] = [Ack(d.receipt) for d in await store.claim(limit=9)]
        await store.engine.settle(TENANT, "q", acks)
        assert not {*await store.publish(*[msg(b"2", key=key) for key in keys])} & {*ids}

    async def test_a_settled_older_message_leaves_the_key_of_the_newer(self, store: Store) -> None:
        await store.queue()
        await put(store, b"1")
        claimed = await store.claim_one()
        second = await put(store, b"2")
        await store.ack(claimed)
        third = await put(store, b"3")
        assert (third.id, third.replaced) == (second.id, True)

    async def test_the_lowered_limit_closes_the_key(self, store: Store) -> None:
        await store.queue(max_attempts=3)
        first = await put(store, b"1")
        await store.nack(await store.claim_one())
        await store.queue(max_attempts=1)
        assert await store.claim() == []
        assert await store.states(first.id) == {"q": State.FAILED}
        assert (await put(store, b"2")).id != first.id

    async def test_it_leaves_and_joins_queues_after_a_return(self, store: Store) -> None:
        await store.queue("red", "color = 'red'")
        await store.queue("blue", "color = 'blue'")
        first = await put(store, b"1", color="red")
        await store.nack(await store.claim_one("red"))
        second = await put(store, b"2", color="blue")
        assert (second.id, second.replaced, second.queues) == (first.id, True, 1)
        assert await store.claim("red", 9) == []
        assert (await store.claim_one("blue")).attempts == 1

    @pytest.mark.parametrize("verb", [Release, Nack, Ack, Reject])
    async def test_a_settle_takes_effect_before_its_publish(
        self, store: Store, verb: type[Release | Nack | Ack | Reject]
    ) -> None:
        await store.queue()
        first = await put(store, b"1")
        settlement = verb((await store.claim_one()).receipt)
        outgoing = [Outgoing("orders", [msg(b"2", key="k")])]
        reply = await store.engine.settle(TENANT, "q", [settlement], outgoing)
        returned = verb in (Release, Nack)
        assert (reply.published[0].id == first.id) is returned
        assert reply.published[0].replaced is returned
        assert [d.payload for d in await store.claim(limit=9)] == [b"2"]

    async def test_a_settle_does_not_replace_what_another_queue_holds(self, store: Store) -> None:
        await store.queue("a")
        await store.queue("b")
        first = await put(store, b"1")
        release = Release((await store.claim_one("a")).receipt)
        held = await store.claim_one("b")
        outgoing = [Outgoing("orders", [msg(b"2", key="k")])]
        reply = await store.engine.settle(TENANT, "a", [release], outgoing)
        assert reply.published[0].id != first.id
        assert (await store.ack(held)).ok

    async def test_keys_of_returned_messages_are_remembered(self, store: Store) -> None:
        await store.queue()
        first = await put(store, b"1")
        claimed = await store.claim_one()
        await store.reopen()
        assert (await store.nack(claimed)).state is State.AVAILABLE
        await store.reopen()
        second = await put(store, b"2")
        assert (second.id, second.replaced) == (first.id, True)
        again = await store.claim_one()
        await store.reopen()
        await store.ack(again)
        assert (await put(store, b"3")).id != first.id
