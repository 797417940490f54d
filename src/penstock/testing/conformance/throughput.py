"""throughput_limit: a token bucket that is charged for the deliveries of a claim."""

from __future__ import annotations

import pytest

from penstock.model.queue import Ordering, QueuePolicy, Start
from penstock.testing.conformance.harness import TENANT, Conformance, Store, msg

__all__ = ["TestThroughput"]


async def limited(
    store: Store, limit: int | None = 3, *, ordering: Ordering = Ordering.NONE
) -> None:
    """A queue that hands out this many deliveries per second."""
    if not store.engine.capabilities.limits_throughput:
        pytest.skip("the broker enforces the limit for this engine")
    policy = QueuePolicy(throughput_limit=limit, ordering=ordering)
    await store.engine.put_queue(TENANT, "q", policy, Start())


class TestThroughput(Conformance):
    """For engines that enforce the limit themselves; for the others the broker does."""

    async def test_a_claim_gives_what_the_bucket_is_good_for(self, store: Store) -> None:
        await limited(store)
        await store.publish(*[b"x"] * 10)
        assert len(await store.claim("q", 2)) == 2
        assert len(await store.claim("q", 9)) == 1
        assert await store.claim("q", 9) == []

    async def test_it_refills_with_time_and_holds_one_second(self, store: Store) -> None:
        await limited(store)
        await store.publish(*[b"x"] * 20)
        assert len(await store.claim("q", 9)) == 3
        store.clock.advance(333)
        assert await store.claim("q", 9) == []
        store.clock.advance(1)
        assert len(await store.claim("q", 9)) == 1
        store.clock.advance(60_000)
        assert len(await store.claim("q", 9)) == 3

    async def test_what_is_not_handed_out_is_not_charged(self, store: Store) -> None:
        await limited(store)
        for _ in range(20):
            assert await store.claim("q", 9) == []
        await store.publish(b"x")
        assert len(await store.claim("q", 9)) == 1
        await store.publish(b"y", b"z", b"w")
        assert len(await store.claim("q", 9)) == 2

    async def test_nothing_is_charged_while_paused(self, store: Store) -> None:
        await limited(store)
        await store.publish(*[b"x"] * 5)
        await store.engine.pause(TENANT, "q", True)
        assert await store.claim("q", 9) == []
        await store.engine.pause(TENANT, "q", False)
        assert len(await store.claim("q", 9)) == 3

    async def test_next_due_says_when_there_is_a_token(self, store: Store) -> None:
        await limited(store)
        await store.publish(*[b"x"] * 5)
        begin = store.clock.now()
        assert len(await store.claim("q", 9)) == 3
        assert await store.engine.next_due(TENANT, "q") == begin + 334
        store.clock.advance(334)
        # A consumer that just claimed and found no token must learn when there is one.
        due = await store.engine.next_due(TENANT, "q")
        assert due is not None
        assert due <= store.clock.now()
        assert len(await store.claim("q", 9)) == 1

    async def test_a_new_limit_counts_at_once(self, store: Store) -> None:
        await limited(store)
        await store.publish(*[b"x"] * 20)
        assert len(await store.claim("q", 9)) == 3
        await limited(store, 5)
        assert len(await store.claim("q", 9)) == 5
        await limited(store, None)
        assert len(await store.claim("q", 9)) == 9

    async def test_dead_letters_have_a_bucket_of_their_own(self, store: Store) -> None:
        await limited(store, 2)
        await store.publish(*[b"x"] * 4)
        for _ in range(2):
            await store.fail_one()
        assert await store.claim("q", 9) == []
        assert len(await store.claim("q.dlq", 9)) == 2

    async def test_an_ordered_queue_is_limited_too(self, store: Store) -> None:
        await limited(store, ordering=Ordering.PARTITION)
        await store.publish(*[msg(partition_key=str(n)) for n in range(9)])
        assert len(await store.claim("q", 9)) == 3
        assert await store.claim("q", 9) == []
        store.clock.advance(1_000)
        assert len(await store.claim("q", 9)) == 3

    async def test_a_queue_that_is_made_again_begins_with_a_full_bucket(self, store: Store) -> None:
        await limited(store)
        await store.publish(*[b"x"] * 5)
        assert len(await store.claim("q", 9)) == 3
        await store.engine.delete_queue(TENANT, "q")
        await store.sweep_all()
        await limited(store)
        await store.publish(*[b"x"] * 5)
        assert len(await store.claim("q", 9)) == 3

    async def test_reopening_gives_no_more(self, store: Store) -> None:
        await limited(store)
        await store.publish(*[b"x"] * 9)
        assert len(await store.claim("q", 9)) == 3
        await store.reopen()
        assert await store.claim("q", 9) == []
