"""settle with publish: settlements and new messages in one commit, all or nothing (S3)."""

from __future__ import annotations

import pytest

from penstock.errors import QueueFull
from penstock.model.delivery import (
    Ack,
    Delivery,
    Extend,
    Nack,
    Verdict,
)
from penstock.model.queue import QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.contract import Outgoing
from penstock.testing.conformance.harness import (
    TENANT,
    Conformance,
    Store,
    ids_of,
    msg,
)

__all__ = ["TestSettleAndPublish"]


class TestSettleAndPublish(Conformance):
    """Consume-transform-produce without duplicates: all or nothing (S3)."""

    async def ready(self, store: Store) -> tuple[Delivery, Delivery]:
        await store.queue("in", "topic = 'orders'")
        await store.queue("out", "topic = 'bills'")
        await store.publish(b"1", b"2")
        first, second = await store.claim("in", 2)
        return first, second

    async def test_s3_both_happen(self, store: Store) -> None:
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

    async def test_s3_a_stale_receipt_aborts_everything(self, store: Store) -> None:
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

    async def test_s3_one_receipt_twice_is_applied_in_order(self, store: Store) -> None:
        """The second settlement of a receipt is stale, unless both are acks; so all is off."""
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

    async def test_s3_a_full_queue_settles_nothing(self, store: Store) -> None:
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

    async def test_a_repeated_ack_does_not_abort(self, store: Store) -> None:
        """With an idempotency id, a lost reply can be repeated as a whole."""
        first, _ = await self.ready(store)
        for expected in (False, True):
            reply = await store.engine.settle(
                TENANT, "in", [Ack(first.receipt)], [Outgoing("bills", [msg(b"b1", id="i")])]
            )
            assert reply.outcomes[0].state is State.DONE
            assert reply.published[0].duplicate is expected
        assert len(await store.claim("out", 9)) == 1

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
