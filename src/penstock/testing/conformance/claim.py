"""claim: exclusive leases, in order, at any depth of the backlog."""

from __future__ import annotations

import pytest

from penstock.errors import UnknownQueue
from penstock.model.limits import MAX_CLAIM_BYTES
from penstock.model.queue import Ordering
from penstock.model.states import State
from penstock.testing.conformance.harness import TENANT, Conformance, Store, ids_of, msg
from penstock.testing.laws import law

__all__ = ["TestBacklog", "TestClaim", "TestClaimOrder"]


class TestClaim(Conformance):
    """The contents of a grant."""

    async def test_a_grant_says_everything(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        now = store.clock.advance(5)
        (delivery,) = await store.claim(lease_ms=2000, consumer="worker-1")
        assert delivery.queue == "q"
        assert delivery.message.id == message_id
        assert (delivery.attempts, delivery.claimed_at) == (1, now)
        assert delivery.lease_deadline == now + 2000
        (shown,) = await store.browse("q", State.IN_FLIGHT)
        assert (shown.claimed_at, shown.lease_deadline) == (now, now + 2000)
        assert (shown.consumer, shown.attempts) == ("worker-1", 1)
        assert (await store.engine.stats(TENANT, "q")).in_flight_by_consumer == {"worker-1": 1}

    @law("C1")
    async def test_a_claimed_delivery_is_nobody_elses(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"1", b"2", b"3")
        first = await store.claim(limit=2, consumer="a")
        second = await store.claim(limit=2, consumer="b")
        assert [d.payload for d in [*first, *second]] == [b"1", b"2", b"3"]
        assert len({d.receipt for d in [*first, *second]}) == 3
        assert await store.claim(limit=2, consumer="a") == []

    @law("C1")
    async def test_receipts_are_never_reused(self, store: Store) -> None:
        await store.queue(max_attempts=100)
        await store.publish(b"x")
        receipts = []
        for _ in range(10):
            delivery = await store.claim_one()
            receipts.append(delivery.receipt)
            await store.release(delivery)
        assert len(set(receipts)) == 10

    async def test_an_empty_queue_gives_none(self, store: Store) -> None:
        await store.queue()
        assert await store.claim(limit=10) == []

    async def test_no_more_than_the_limit(self, store: Store) -> None:
        await store.queue()
        ids = await store.publish(*[b"x"] * 10)
        assert await store.claim(limit=0) == []
        assert ids_of(await store.claim(limit=3)) == ids[:3]
        assert ids_of(await store.claim(limit=100)) == ids[3:]

    async def test_a_paused_queue_gives_none_until_it_is_resumed(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        await store.engine.pause(TENANT, "q", True)
        assert (await store.engine.get_queue(TENANT, "q")).policy.paused
        assert await store.claim() == []
        (second,) = await store.publish(b"y")
        await store.engine.pause(TENANT, "q", False)
        assert ids_of(await store.claim(limit=9)) == [message_id, second]

    async def test_what_was_claimed_before_a_pause_can_be_settled(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        claimed = await store.claim_one()
        await store.engine.pause(TENANT, "q", True)
        assert (await store.ack(claimed)).state is State.DONE

    async def test_an_unknown_queue(self, store: Store) -> None:
        for name in ("nope", "nope.dlq"):
            with pytest.raises(UnknownQueue):
                await store.claim(name)

    @law("C2")
    async def test_attempts_rise_by_one_a_grant(self, store: Store) -> None:
        await store.queue(max_attempts=4)
        await store.publish(b"x")
        for attempt in (1, 2, 3, 4):
            delivery = await store.claim_one()
            assert delivery.attempts == attempt
            outcome = await store.nack(delivery)
            assert outcome.state is (State.FAILED if attempt == 4 else State.AVAILABLE)
        assert await store.claim() == []
        assert (await store.engine.stats(TENANT, "q")).grants == 4


class TestClaimOrder(Conformance):
    """C4: priority descending, then publish order."""

    @law("C4")
    async def test_priority_then_publish_order(self, store: Store) -> None:
        await store.queue()
        priorities = [4, 0, 9, 4, 9, 5, 0, 1]
        ids = await store.publish(*(msg(priority=p) for p in priorities))
        expected = [i for _, i in sorted(zip([-p for p in priorities], ids, strict=True))]
        assert await store.ids("q", State.AVAILABLE) == expected
        assert ids_of(await store.claim(limit=3)) == expected[:3]
        assert ids_of(await store.claim(limit=100)) == expected[3:]

    @law("C4")
    async def test_a_later_higher_priority_goes_first(self, store: Store) -> None:
        await store.queue()
        low = await store.publish(*[msg(priority=1)] * 3)
        assert ids_of(await store.claim()) == low[:1]
        high = await store.publish(msg(priority=8))
        assert ids_of(await store.claim(limit=2)) == [*high, low[1]]

    @law("C4")
    async def test_a_retried_delivery_keeps_its_place(self, store: Store) -> None:
        await store.queue(max_attempts=9)
        ids = await store.publish(b"1", b"2", b"3")
        first = await store.claim_one()
        await store.nack(first)
        assert ids_of(await store.claim(limit=9)) == ids

    @law("C4")
    async def test_each_way_back_keeps_the_place(self, store: Store) -> None:
        await store.queue(max_attempts=9)
        ids = await store.publish(*[b"x"] * 5)
        claimed = await store.claim(limit=4, lease_ms=1000)
        await store.nack(claimed[2])
        await store.release(claimed[0])
        await store.nack(claimed[1], delay_ms=500)
        store.clock.advance(1000)
        assert ids_of(await store.claim(limit=9)) == ids

    @law("C4")
    async def test_a_delayed_message_takes_the_place_of_its_publish(self, store: Store) -> None:
        await store.queue()
        delayed, second = await store.publish(msg(deliver_at=store.clock.now() + 10), b"2")
        (third,) = await store.publish(b"3")
        store.clock.advance(10)
        assert ids_of(await store.claim(limit=9)) == [delayed, second, third]

    @law("C4")
    async def test_others_flow_past_one_that_waits_for_its_retry(self, store: Store) -> None:
        await store.queue()
        stuck, *others = await store.publish(*[b"x"] * 4)
        await store.nack(await store.claim_one(), delay_ms=60_000)
        assert ids_of(await store.claim(limit=9)) == others
        store.clock.advance(60_000)
        assert ids_of(await store.claim(limit=9, consumer="d"))[0] == stuck


class TestBacklog(Conformance):
    """C5: at any depth of the backlog, behind any kind of delivery."""

    @law("C5")
    async def test_a_deep_backlog_is_handed_out_completely(self, store: Store) -> None:
        await store.queue(bucket_size=1)
        ids = []
        for _ in range(6):
            ids += await store.publish(*[b"x"] * 500)
        got = []
        while claimed := await store.claim(limit=400):
            got += ids_of(claimed)
        assert got == ids

    @law("C5")
    async def test_many_in_flight_in_front_do_not_starve_the_rest(self, store: Store) -> None:
        """A fetch window that counts settled or leased rows never reaches the rows behind them."""
        await store.queue(bucket_size=1)
        ids = await store.publish(*[b"x"] * 300)
        front = await store.claim(limit=250, lease_ms=60_000)
        for delivery in front[::2]:
            await store.ack(delivery)
        assert ids_of(await store.claim(limit=100)) == ids[250:]

    @law("C5")
    async def test_many_delayed_in_front_do_not_starve_the_rest(self, store: Store) -> None:
        await store.queue(bucket_size=1)
        later = store.clock.now() + 1000
        delayed = await store.publish(*[msg(deliver_at=later)] * 200)
        (now,) = await store.publish(b"now")
        assert ids_of(await store.claim(limit=9)) == [now]
        store.clock.advance(1000)
        assert ids_of(await store.claim(limit=500)) == delayed

    @law("C5")
    async def test_many_expired_in_front_do_not_starve_the_rest(self, store: Store) -> None:
        await store.queue(bucket_size=1)
        soon = store.clock.now() + 10
        await store.publish(*[msg(expires_at=soon)] * 200)
        (kept,) = await store.publish(b"kept")
        store.clock.advance(10)
        assert ids_of(await store.claim()) == [kept]

    @law("C4", "C5")
    async def test_large_payloads_are_handed_out_in_several_claims(self, store: Store) -> None:
        """A claim reads what it hands out: a thousand payloads of 1 MiB are not for one."""
        await store.queue()
        size = MAX_CLAIM_BYTES // 10 + 1
        ids = await store.publish(*(msg(bytes(size), priority=4) for _ in range(40)))
        claims = []
        while claimed := await store.claim(limit=40):
            claims.append(claimed)
        assert [id_ for claimed in claims for id_ in ids_of(claimed)] == ids
        assert len(claims[0]) == 9
        assert all(one.attempts == 1 for claimed in claims for one in claimed)

    async def test_a_payload_that_is_larger_than_a_claim(self, store: Store) -> None:
        await store.queue()
        sizes = (1, MAX_CLAIM_BYTES + 1, 2)
        ids = await store.publish(*(msg(bytes(size)) for size in sizes))
        got: list[int] = []
        while claimed := await store.claim(limit=3):
            got += ids_of(claimed)
        assert got == ids

    async def test_large_payloads_of_an_ordered_queue(self, store: Store) -> None:
        await store.queue(ordering=Ordering.PARTITION)
        size = MAX_CLAIM_BYTES // 10 + 1
        ids = await store.publish(
            *(msg(bytes(size), partition_key=f"{number:02}") for number in range(20))
        )
        claims = []
        while claimed := await store.claim(limit=20):
            claims.append(ids_of(claimed))
        assert [id_ for claimed in claims for id_ in claimed] == ids
        assert [len(claimed) for claimed in claims] == [9, 9, 2]

    @pytest.mark.parametrize("bucket_size", [0, 1, 2, 3, 4])
    async def test_every_bucket_size_delivers_the_same(
        self, store: Store, bucket_size: int
    ) -> None:
        await store.queue(bucket_size=bucket_size, max_attempts=9)
        ids = await store.publish(*(msg(priority=i % 3) for i in range(60)))
        expected = [i for p in (2, 1, 0) for i in ids[p::3]]
        claimed = await store.claim(limit=60)
        assert ids_of(claimed) == expected
        for delivery in claimed[::2]:
            await store.release(delivery)
        assert ids_of(await store.claim(limit=60)) == expected[::2]
