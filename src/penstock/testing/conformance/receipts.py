"""Receipts: only the current one settles; a stale one changes nothing (S1)."""

from __future__ import annotations

import pytest

from penstock.errors import UnknownQueue
from penstock.model.delivery import (
    Ack,
    Delivery,
    Extend,
    Nack,
    Receipt,
    Reject,
    Release,
    ReplaySource,
    Verdict,
)
from penstock.model.message import MessageId
from penstock.model.queue import Start
from penstock.model.states import State
from penstock.testing.conformance.harness import (
    OTHER_TENANT,
    TENANT,
    Conformance,
    Store,
)
from penstock.testing.laws import law

__all__ = ["TestCurrentReceipt", "TestStaleReceipts"]


class TestStaleReceipts(Conformance):
    """S1: only the current receipt settles; a stale one changes nothing."""

    @staticmethod
    def every_verb(delivery: Delivery) -> list[Ack | Nack | Reject | Release | Extend]:
        r = delivery.receipt
        return [Ack(r, b"z"), Nack(r, "z"), Reject(r, "z"), Release(r), Extend(r, 60_000)]

    @law("S1")
    async def test_stale_receipt_changes_nothing(self, store: Store) -> None:
        """A stale consumer's settlement must not expose or finish its successor's delivery."""
        await store.queue()
        await store.publish(b"x")
        zombie = await store.claim_one(lease_ms=1000, consumer="zombie")
        store.clock.advance(1000)
        heir = await store.claim_one(consumer="heir")
        before = await store.picture("q")
        for settlement in self.every_verb(zombie):
            outcome = await store.settle(settlement)
            assert (outcome.verdict, outcome.state, outcome.until) == (Verdict.STALE, None, None)
            assert await store.picture("q") == before
        assert (await store.ack(heir)).state is State.DONE

    @law("S1")
    @pytest.mark.parametrize("way", ["nack", "nack with delay", "reject", "release", "sweep"])
    async def test_a_receipt_dies_with_its_claim(self, store: Store, way: str) -> None:
        await store.queue()
        await store.publish(b"x")
        delivery = await store.claim_one(lease_ms=1000)
        if way == "nack":
            await store.nack(delivery)
        elif way == "nack with delay":
            await store.nack(delivery, delay_ms=1000)
        elif way == "reject":
            await store.reject(delivery)
        elif way == "release":
            await store.release(delivery)
        else:
            store.clock.advance(1000)
            await store.sweep_all()
        before = await store.picture("q")
        for settlement in self.every_verb(delivery):
            assert (await store.settle(settlement)).verdict is Verdict.STALE
        assert await store.picture("q") == before

    @law("S1")
    async def test_one_bad_receipt_does_not_abort_the_others(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"1", b"2")
        first, second = await store.claim(limit=2)
        reply = await store.engine.settle(
            TENANT, "q", [Ack(first.receipt), Ack(Receipt("")), Ack(second.receipt)]
        )
        assert [o.ok for o in reply.outcomes] == [True, False, True]
        assert (await store.engine.stats(TENANT, "q")).done == 2

    @law("S1")
    @pytest.mark.parametrize("receipt", ["", "x", "0", "ü\x00", "a" * 5000, "1:2:3", "1.2.3", "-1"])
    async def test_no_text_is_a_receipt_by_accident(self, store: Store, receipt: str) -> None:
        await store.queue()
        await store.publish(b"x")
        await store.claim_one()
        assert (await store.settle(Ack(Receipt(receipt)))).verdict is Verdict.STALE

    @law("Q1")
    async def test_a_receipt_belongs_to_its_queue(self, store: Store) -> None:
        await store.queue("a")
        await store.queue("b")
        await store.publish(b"x")
        of_a = await store.claim_one("a")
        await store.claim_one("b")
        for queue in ("b", "a.dlq", "b.dlq"):
            for settlement in self.every_verb(of_a):
                assert (await store.settle(settlement, queue)).verdict is Verdict.STALE
        assert (await store.engine.stats(TENANT, "b")).in_flight == 1
        assert (await store.ack(of_a)).ok

    @law("T1")
    async def test_a_receipt_belongs_to_its_tenant(self, store: Store) -> None:
        for tenant in (TENANT, OTHER_TENANT):
            await store.queue(tenant=tenant)
            await store.publish(b"x", tenant=tenant)
        mine = await store.claim_one()
        theirs = await store.claim_one(tenant=OTHER_TENANT)
        for settlement in self.every_verb(mine):
            assert (await store.settle(settlement, tenant=OTHER_TENANT)).verdict is Verdict.STALE
        assert (await store.settle(Ack(theirs.receipt), tenant=OTHER_TENANT)).ok
        assert (await store.ack(mine)).ok

    @law("S1", "C1")
    async def test_a_receipt_is_stale_after_a_replay(self, store: Store) -> None:
        """Attempts restart at a replay; receipts do not (C1)."""
        await store.queue(max_attempts=2)
        await store.publish(b"x")
        old = [await store.claim_one()]
        await store.nack(old[0])
        old.append(await store.claim_one())
        await store.nack(old[1])
        await store.engine.replay(TENANT, "q", ReplaySource.FAILED, None, 10)
        new = [await store.claim_one()]
        await store.release(new[0])
        new.append(await store.claim_one())
        assert len({d.receipt for d in [*old, *new]}) == 4
        for delivery in [*old, new[0]]:
            assert (await store.ack(delivery)).verdict is Verdict.STALE
        assert (await store.ack(new[1])).ok

    @law("S1")
    async def test_a_receipt_is_stale_after_its_queue_is_made_again(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        old = await store.claim_one()
        await store.engine.delete_queue(TENANT, "q")
        with pytest.raises(UnknownQueue):
            await store.ack(old)
        await store.queue(start=Start(Start.EARLIEST))
        await store.engine.route(TENANT, "q", 100)
        new = await store.claim_one()
        assert new.message.id == message_id
        assert new.receipt != old.receipt
        assert (await store.ack(old)).verdict is Verdict.STALE
        assert (await store.ack(new)).ok


class TestCurrentReceipt(Conformance):
    """S1: ``message`` shows the receipt of the current claim, and no other."""

    @law("S1")
    async def test_message_shows_the_current_receipt(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")

        async def shown() -> list[str | None]:
            found = await store.engine.message(TENANT, MessageId(first.message.id))
            return [item.receipt for item in found.deliveries]

        first = await store.claim_one(lease_ms=1000)
        assert await shown() == [first.receipt]
        await store.settle(Extend(first.receipt, 2000))
        assert await shown() == [first.receipt]
        store.clock.advance(2000)
        second = await store.claim_one()
        assert await shown() == [second.receipt]
        await store.settle(Reject(second.receipt))
        assert await shown() == [None]
        dead = await store.claim_one("q.dlq")
        assert await shown() == [dead.receipt]
        (known,) = (await store.engine.message(TENANT, MessageId(first.message.id))).deliveries
        assert (await store.settle(Ack(Receipt(str(known.receipt))), queue="q.dlq")).ok
        assert await shown() == [None]
