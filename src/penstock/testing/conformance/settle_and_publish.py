"""settle with publish: settlements and new messages in one commit, all or nothing (S3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from penstock.errors import QueueFull
from penstock.model.delivery import (
    Ack,
    Delivery,
    Extend,
    Nack,
    Receipt,
    Reject,
    Release,
    Settlement,
    Verdict,
)
from penstock.model.queue import QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.contract import Outgoing
from penstock.storage.repetition import REPEAT_WINDOW_MS
from penstock.testing.conformance.harness import (
    TENANT,
    Conformance,
    Store,
    ids_of,
    msg,
)
from penstock.testing.laws import law

__all__ = ["TestSettleAndPublish"]


class TestSettleAndPublish(Conformance):
    """Consume-transform-produce without duplicates: all or nothing (S3)."""

    async def ready(self, store: Store) -> tuple[Delivery, Delivery]:
        await store.queue("in", "topic = 'orders'")
        await store.queue("out", "topic = 'bills'")
        await store.publish(b"1", b"2")
        first, second = await store.claim("in", 2)
        return first, second

    @law("S3")
    async def test_both_happen(self, store: Store) -> None:
        first, second = await self.ready(store)
        reply = await store.engine.settle(
            TENANT,
            "in",
            [Ack(first.receipt), Nack(second.receipt, delay_ms=10)],
            [Outgoing("bills", [msg(b"b1"), msg(b"b2")]), Outgoing("orders", [msg(b"3")])],
        )
        assert [o.state for o in reply.outcomes] == [State.DONE, State.DELAYED]
        assert len(reply.published) == 3
        assert [p.id for p in reply.published] == sorted(p.id for p in reply.published)
        assert [d.payload for d in await store.claim("out", 9)] == [b"b1", b"b2"]
        assert [d.payload for d in await store.claim("in", 9)] == [b"3"]

    @law("S3")
    async def test_a_stale_receipt_aborts_everything(self, store: Store) -> None:
        first, second = await self.ready(store)
        await store.ack(second)
        before = await store.picture("in")
        end = await store.engine.log_end(TENANT)
        reply = await store.engine.settle(
            TENANT,
            "in",
            [Extend(first.receipt, 9999), Nack(second.receipt), Ack(first.receipt)],
            [Outgoing("bills", [msg(b"b1", id="i")])],
        )
        assert [(o.verdict, o.state) for o in reply.outcomes] == [
            (Verdict.ABORTED, None),
            (Verdict.STALE, None),
            (Verdict.ABORTED, None),
        ]
        assert reply.published == ()
        assert await store.picture("in") == before
        assert await store.engine.log_end(TENANT) == end
        assert await store.claim("out") == []
        retry = await store.engine.settle(
            TENANT, "in", [Ack(first.receipt)], [Outgoing("bills", [msg(b"b1", id="i")])]
        )
        assert not retry.published[0].duplicate

    @law("S3")
    async def test_one_receipt_twice_is_applied_in_order(self, store: Store) -> None:
        """The second settlement of a receipt is stale unless both are acks, so all are aborted."""
        first, _ = await self.ready(store)
        before = await store.picture("in")
        reply = await store.engine.settle(
            TENANT,
            "in",
            [Ack(first.receipt), Nack(first.receipt)],
            [Outgoing("bills", [msg(b"b1")])],
        )
        assert [o.verdict for o in reply.outcomes] == [Verdict.ABORTED, Verdict.STALE]
        assert reply.published == ()
        assert await store.picture("in") == before
        reply = await store.engine.settle(
            TENANT,
            "in",
            [Extend(first.receipt, 5000), Ack(first.receipt), Ack(first.receipt)],
            [Outgoing("bills", [msg(b"b1")])],
        )
        assert [o.verdict for o in reply.outcomes] == [Verdict.OK] * 3
        assert len(reply.published) == 1

    @law("S3")
    async def test_a_full_queue_settles_nothing(self, store: Store) -> None:
        first, _ = await self.ready(store)
        await store.queue("out", "topic = 'bills'", max_depth=1)
        await store.publish(b"fills it", topic="bills")
        before = await store.picture("in")
        with pytest.raises(QueueFull):
            await store.engine.settle(
                TENANT, "in", [Ack(first.receipt)], [Outgoing("bills", [msg(b"b1")])]
            )
        assert await store.picture("in") == before
        assert (await store.ack(first)).ok

    @law("P4")
    async def test_a_call_with_another_extension_is_another_call(self, store: Store) -> None:
        """Its receipt is used up, so nothing is published; the store continues to work."""
        first, second = await self.ready(store)
        outgoing = [Outgoing("bills", [msg(b"b1")])]
        settlements: list[Settlement] = [Ack(first.receipt)]
        reply = await store.engine.settle(TENANT, "in", settlements, outgoing)
        assert len(reply.published) == 1
        settlements.append(Extend(second.receipt, 5_000))
        again = await store.engine.settle(TENANT, "in", settlements, outgoing)
        assert [item.verdict for item in again.outcomes] == [Verdict.STALE, Verdict.ABORTED]
        assert (again.published, again.repeated) == ((), False)
        assert (await store.ack(second)).ok

    @law("P4")
    @pytest.mark.parametrize(
        "verb",
        [
            Ack,
            lambda receipt: Ack(receipt, b"result"),
            lambda receipt: Nack(receipt, "later", 5_000),
            Reject,
            Release,
        ],
        ids=["ack", "ack with a result", "nack", "reject", "release"],
    )
    async def test_repeating_it_answers_as_the_first_time(
        self, store: Store, verb: Callable[[Receipt], Settlement]
    ) -> None:
        """A caller whose reply was lost sends the same request again, without any id."""
        first, second = await self.ready(store)
        settlements = [verb(first.receipt), Extend(second.receipt, 9_000), Ack(second.receipt)]
        outgoing = [Outgoing("bills", [msg(b"b1"), msg(b"b2")]), Outgoing("notes", [msg(b"n")])]
        reply = await store.engine.settle(TENANT, "in", settlements, outgoing)
        assert not reply.repeated
        before, end = await store.picture("in"), await store.engine.log_end(TENANT)
        for _ in range(2):
            again = await store.engine.settle(TENANT, "in", settlements, outgoing)
            assert again == replace(reply, repeated=True)
        assert await store.picture("in") == before
        assert await store.engine.log_end(TENANT) == end
        assert [d.payload for d in await store.claim("out", 9)] == [b"b1", b"b2"]

    @law("P4")
    async def test_it_is_recognised_after_reopening(self, store: Store) -> None:
        first, _ = await self.ready(store)
        settlements, outgoing = [Ack(first.receipt)], [Outgoing("bills", [msg(b"b1")])]
        reply = await store.engine.settle(TENANT, "in", settlements, outgoing)
        await store.reopen()
        again = await store.engine.settle(TENANT, "in", settlements, outgoing)
        assert again.published == reply.published
        assert again.repeated
        assert len(await store.claim("out", 9)) == 1

    @law("P4")
    async def test_a_claim_that_has_ended_publishes_nothing_more(self, store: Store) -> None:
        """An ack may be repeated, but its receipt allows no second publish, now or later."""
        first, second = await self.ready(store)
        publish = [Outgoing("bills", [msg(b"b1")])]
        await store.ack(second)
        await store.engine.settle(TENANT, "in", [Ack(first.receipt)], publish)
        end = await store.engine.log_end(TENANT)
        other = [Ack(first.receipt), Ack(second.receipt)]
        for settlements in ([Ack(second.receipt)], other, [Nack(first.receipt)]):
            reply = await store.engine.settle(TENANT, "in", settlements, publish)
            assert {outcome.verdict for outcome in reply.outcomes} == {Verdict.STALE}
        store.clock.advance(REPEAT_WINDOW_MS)
        await store.engine.sweep(10_000)
        reply = await store.engine.settle(TENANT, "in", [Ack(first.receipt)], publish)
        assert reply.outcomes[0].verdict is Verdict.STALE
        assert await store.engine.log_end(TENANT) == end

    @law("Q1")
    async def test_the_same_receipts_in_another_queue_are_stale(self, store: Store) -> None:
        first, _ = await self.ready(store)
        await store.queue("other", "topic = 'other'")
        settlements, outgoing = [Ack(first.receipt)], [Outgoing("bills", [msg(b"b1")])]
        await store.engine.settle(TENANT, "in", settlements, outgoing)
        reply = await store.engine.settle(TENANT, "other", settlements, outgoing)
        assert reply.outcomes[0].verdict is Verdict.STALE

    async def test_the_settlement_makes_room(self, store: Store) -> None:
        await store.queue(max_depth=1)
        await store.publish(b"1")
        delivery = await store.claim_one()
        reply = await store.engine.settle(
            TENANT, "q", [Ack(delivery.receipt)], [Outgoing("orders", [msg(b"2")])]
        )
        assert reply.outcomes[0].state is State.DONE
        assert [d.payload for d in await store.claim(limit=9)] == [b"2"]

    async def test_publishing_with_nothing_to_settle(self, store: Store) -> None:
        await store.queue()
        reply = await store.engine.settle(TENANT, "q", [], [Outgoing("t", [msg(b"x")])])
        assert ids_of(await store.claim()) == [reply.published[0].id]

    async def test_extend_uses_the_present_policy(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        delivery = await store.claim_one(lease_ms=60_000)
        await store.engine.put_queue(TENANT, "q", QueuePolicy(max_lease_ms=1000), Start())
        assert (await store.extend(delivery, 60_000)).until == store.clock.now() + 1000
