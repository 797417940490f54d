"""settle_and_claim: the settlements take effect before the claim."""

from __future__ import annotations

import pytest

from penstock.errors import UnknownQueue
from penstock.model.delivery import Ack, Nack, Receipt, Release, Settlement, Verdict
from penstock.model.queue import Ordering
from penstock.model.states import State
from penstock.testing.conformance.harness import TENANT, Conformance, Store, msg
from penstock.testing.laws import law

__all__ = ["TestSettleAndClaim"]


class TestSettleAndClaim(Conformance):
    """What one call answers is what two calls would have answered."""

    @law("S2")
    async def test_the_next_deliveries_come_with_the_outcomes(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"1", b"2", b"3")
        first = await store.claim(limit=2)
        acks: list[Settlement] = [Ack(delivery.receipt) for delivery in first]
        settled, claimed = await store.engine.settle_and_claim(TENANT, "q", acks, "c", 2, 1000)
        assert [outcome.state for outcome in settled.outcomes] == [State.DONE, State.DONE]
        assert [delivery.payload for delivery in claimed] == [b"3"]
        assert claimed[0].lease_deadline == claimed[0].claimed_at + 1000
        await store.ack(claimed[0])
        assert await store.claim() == []

    async def test_what_goes_back_can_be_claimed_by_the_same_call(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"1", b"2")
        one, two = await store.claim(limit=2)
        back: list[Settlement] = [Release(one.receipt), Nack(two.receipt, "error", 0)]
        _, claimed = await store.engine.settle_and_claim(TENANT, "q", back, "c", 5, None)
        assert [delivery.payload for delivery in claimed] == [b"1", b"2"]
        assert {delivery.receipt for delivery in claimed}.isdisjoint({one.receipt, two.receipt})

    @law("O1")
    async def test_an_ack_frees_its_partition_for_the_claim(self, store: Store) -> None:
        await store.queue(ordering=Ordering.PARTITION)
        await store.publish(*(msg(payload, partition_key="p") for payload in (b"1", b"2")))
        first = await store.claim_one()
        assert await store.claim() == []
        settled, claimed = await store.engine.settle_and_claim(
            TENANT, "q", [Ack(first.receipt)], "c", 5, None
        )
        assert settled.outcomes[0].ok
        assert [delivery.payload for delivery in claimed] == [b"2"]

    @law("S1")
    async def test_a_stale_receipt_does_not_keep_the_claim_back(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"1")
        settled, claimed = await store.engine.settle_and_claim(
            TENANT, "q", [Ack(Receipt("stale"))], "c", 5, None
        )
        assert settled.outcomes[0].verdict is Verdict.STALE
        assert [delivery.payload for delivery in claimed] == [b"1"]

    async def test_many_settlements(self, store: Store) -> None:
        """More than an engine settles in one step."""
        await store.queue()
        await store.publish(*[b"x"] * 301)
        first = await store.claim(limit=300)
        acks: list[Settlement] = [Ack(delivery.receipt) for delivery in first]
        settled, claimed = await store.engine.settle_and_claim(TENANT, "q", acks, "c", 300, None)
        assert all(outcome.ok for outcome in settled.outcomes)
        assert len(claimed) == 1

    @law("E1")
    async def test_a_queue_that_is_not_there(self, store: Store) -> None:
        with pytest.raises(UnknownQueue):
            await store.engine.settle_and_claim(
                TENANT, "q", [Ack(Receipt("unknown"))], "c", 1, None
            )
