"""Concurrent callers on one event loop: every verb is still one atomic commit (S3)."""

from __future__ import annotations

import asyncio
from collections import Counter

from penstock.model.delivery import Ack, Delivery
from penstock.model.queue import TopicPolicy
from penstock.model.states import State
from penstock.storage.contract import Outgoing
from penstock.testing.conformance.harness import TENANT, Conformance, Store, ids_of, msg
from penstock.testing.laws import law

__all__ = ["TestConcurrency"]


class TestConcurrency(Conformance):
    """Races."""

    @law("P4")
    async def test_concurrent_publishers_of_one_id_make_one_entry(self, store: Store) -> None:
        """Reading first and writing later is a race."""
        await store.queue()
        replies = await asyncio.gather(
            *(store.engine.publish(TENANT, "t", [msg(str(n).encode(), id="i")]) for n in range(30))
        )
        published = [r.messages[0] for r in replies]
        assert len({p.id for p in published}) == 1
        assert sum(not p.duplicate for p in published) == 1
        assert len(await store.log()) == 1
        assert len(await store.claim(limit=9)) == 1

    @law("P4")
    async def test_concurrent_publishers_of_one_batch_make_one_batch(self, store: Store) -> None:
        """In a topic without a dedup window, by calls with different batch windows."""
        await store.engine.put_topic(TENANT, "t", TopicPolicy(dedup_window_ms=0))
        replies = await asyncio.gather(
            *(
                store.engine.publish(TENANT, "t", [msg(), msg()], batch_id="b", batch_ms=1000 + n)
                for n in range(30)
            )
        )
        assert sum(not reply.repeated for reply in replies) == 1
        assert len({reply.messages for reply in replies}) == 1
        assert len(await store.log()) == 2

    @law("C1")
    async def test_concurrent_claims_share_nothing(self, store: Store) -> None:
        await store.queue(bucket_size=1)
        ids = await store.publish(*[b"x"] * 200)
        batches = await asyncio.gather(*(store.claim(limit=7, consumer=f"c{n}") for n in range(40)))
        claimed = [d for batch in batches for d in batch]
        assert Counter(d.message.id for d in claimed) == Counter(ids)
        assert len({d.receipt for d in claimed}) == 200
        assert {d.attempts for d in claimed} == {1}

    @law("C1")
    async def test_a_cancelled_claim_keeps_nothing(self, store: Store) -> None:
        """Its caller will never learn of the receipt, so the delivery is released.

        The release uses no attempt: otherwise the delivery would have failed.
        """
        await store.queue(max_attempts=1)
        await store.publish(b"x")
        for turns in range(12):
            claiming = asyncio.ensure_future(store.claim(lease_ms=3_600_000))
            for _ in range(turns):
                await asyncio.sleep(0)
            claiming.cancel()
            granted = (await asyncio.gather(claiming, return_exceptions=True))[0]
            while isinstance(granted, BaseException) or not granted:
                await asyncio.sleep(0.001)
                granted = await store.claim()
            await store.release(granted[0])

    @law("S1")
    async def test_concurrent_acks_and_nacks_of_one_claim(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        delivery = await store.claim_one()
        outcomes = await asyncio.gather(
            *(store.nack(delivery) if n % 2 else store.reject(delivery) for n in range(10))
        )
        assert sum(o.ok for o in outcomes) == 1

    @law("S3")
    async def test_publishers_and_workers_together(self, store: Store) -> None:
        """Each order becomes one bill, no matter which worker handles it."""
        await store.queue("in", "topic = 'orders'")
        await store.queue("out", "topic = 'bills'")

        async def produce(n: int) -> None:
            for k in range(5):
                await store.publish(f"{n}.{k}".encode())

        async def bill(delivery: Delivery) -> None:
            outgoing = Outgoing("bills", [msg(delivery.payload)])
            await store.engine.settle(TENANT, "in", [Ack(delivery.receipt)], [outgoing])

        async def work(n: int) -> None:
            for _ in range(40):
                for delivery in await store.claim("in", 3, consumer=f"w{n}"):
                    await bill(delivery)
                await asyncio.sleep(0)

        await asyncio.gather(*(produce(n) for n in range(6)), *(work(n) for n in range(4)))
        while left := await store.claim("in", 9):
            for delivery in left:
                await bill(delivery)
        bills = await store.browse("out", State.AVAILABLE, payloads=True)
        expected = Counter(f"{n}.{k}".encode() for n in range(6) for k in range(5))
        assert Counter(s.payload for s in bills) == expected
        assert (await store.engine.stats(TENANT, "in")).done == 30
        order = ids_of(await store.claim("out", 99))
        assert order == sorted(order)
