"""Leases and time: exactly when deliveries lapse, become due or expire (C3)."""

from __future__ import annotations

import pytest

from penstock.model.delivery import Ack, Extend, Verdict
from penstock.model.queue import QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.contract import Outgoing
from penstock.testing.conformance.harness import TENANT, Conformance, Store, ids_of, msg
from penstock.testing.laws import law

__all__ = ["TestLeases", "TestTime"]


class TestLeases(Conformance):
    """A lease is clamped, and a lapsed one returns the delivery without any keeper."""

    async def test_the_default_is_the_lease_of_the_queue(self, store: Store) -> None:
        policy = QueuePolicy(lease_ms=7000)
        await store.engine.put_queue(TENANT, "q", policy, Start())
        await store.publish(b"x")
        delivery = await store.claim_one()
        assert delivery.lease_deadline == store.clock.now() + 7000

    @pytest.mark.parametrize(
        "asked, given", [(1, 1000), (1000, 1000), (1500, 1500), (5000, 5000), (5001, 5000)]
    )
    async def test_a_lease_is_clamped(self, store: Store, asked: int, given: int) -> None:
        policy = QueuePolicy(min_lease_ms=1000, max_lease_ms=5000)
        await store.engine.put_queue(TENANT, "q", policy, Start())
        await store.publish(b"x")
        delivery = await store.claim_one(lease_ms=asked)
        assert delivery.lease_deadline == store.clock.now() + given
        store.clock.advance(3)
        extended = await store.extend(delivery, asked)
        # Not longer than 5,000 ms since the claim.
        assert extended.until == store.clock.now() + min(given, 4997)

    @law("C5")
    async def test_extensions_end_at_the_longest_lease(self, store: Store) -> None:
        """A handler that hangs does not keep its delivery forever."""
        policy = QueuePolicy(max_lease_ms=5000)
        await store.engine.put_queue(TENANT, "q", policy, Start())
        await store.publish(b"x")
        delivery = await store.claim_one(lease_ms=3000)
        end = store.clock.now() + 5000
        store.clock.advance(2500)
        assert (await store.extend(delivery, 3000)).until == end
        store.clock.advance(2499)
        assert (await store.extend(delivery, 3000)).until == end
        store.clock.advance(1)
        assert (await store.extend(delivery, 3000)).verdict is Verdict.STALE
        again = await store.claim_one(consumer="other")
        assert again.message.id == delivery.message.id
        assert (await store.ack(delivery)).verdict is Verdict.STALE
        assert (await store.ack(again)).ok

    async def test_an_extension_too_late_aborts_a_settle_with_publish(self, store: Store) -> None:
        await store.engine.put_queue(TENANT, "q", QueuePolicy(max_lease_ms=5000), Start())
        await store.publish(b"x")
        delivery = await store.claim_one(lease_ms=5000)
        store.clock.advance(5000)
        end = await store.engine.log_end(TENANT)
        reply = await store.engine.settle(
            TENANT,
            "q",
            [Extend(delivery.receipt, 1000), Ack(delivery.receipt)],
            [Outgoing("t", [msg(b"y")])],
        )
        assert [o.verdict for o in reply.outcomes] == [Verdict.STALE, Verdict.ABORTED]
        assert await store.engine.log_end(TENANT) == end

    @law("C1")
    async def test_a_lease_is_live_until_its_deadline(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        first = await store.claim_one(lease_ms=1000, consumer="a")
        store.clock.advance(999)
        assert await store.claim(consumer="b") == []
        store.clock.advance(1)
        second = await store.claim_one(consumer="b")
        assert second.message.id == first.message.id
        assert second.receipt != first.receipt
        assert second.attempts == 2

    @law("C5")
    async def test_a_lapsed_delivery_comes_back_without_a_sweep(self, store: Store) -> None:
        """A lapsed lease redelivers by itself, any number of deliveries."""
        await store.queue(max_attempts=9)
        ids = await store.publish(*[b"x"] * 500)
        assert len(await store.claim(limit=500, lease_ms=1000)) == 500
        store.clock.advance(1000)
        assert ids_of(await store.claim(limit=500)) == ids

    async def test_a_lapse_leaves_no_backoff(self, store: Store) -> None:
        await store.engine.put_queue(TENANT, "q", QueuePolicy(), Start())
        await store.publish(b"x")
        await store.claim_one(lease_ms=1000)
        store.clock.advance(1000)
        assert (await store.claim_one()).attempts == 2

    @law("C2")
    async def test_lapses_use_up_the_attempts(self, store: Store) -> None:
        await store.queue(max_attempts=2)
        (message_id,) = await store.publish(b"x")
        for _ in range(2):
            await store.claim_one(lease_ms=1000)
            store.clock.advance(1000)
        assert await store.claim() == []
        (shown,) = await store.browse("q", State.FAILED)
        assert (shown.message.id, shown.attempts, shown.at) == (message_id, 2, store.clock.now())
        assert shown.error == "lease expired"
        assert (await store.engine.stats(TENANT, "q")).failures == 1

    @law("S1")
    async def test_a_lapsed_receipt_is_good_until_somebody_else_claims(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        delivery = await store.claim_one(lease_ms=1000)
        store.clock.advance(5000)
        assert (await store.engine.stats(TENANT, "q")).in_flight == 1
        assert (await store.ack(delivery)).state is State.DONE

    async def test_an_extended_lease_does_not_lapse(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        delivery = await store.claim_one(lease_ms=1000)
        store.clock.advance(900)
        outcome = await store.extend(delivery, 1000)
        assert (outcome.state, outcome.until) == (State.IN_FLIGHT, store.clock.now() + 1000)
        store.clock.advance(999)
        assert await store.claim() == []
        store.clock.advance(1)
        assert (await store.claim_one()).attempts == 2

    async def test_an_extend_may_shorten(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        delivery = await store.claim_one(lease_ms=60_000)
        await store.extend(delivery, 500)
        store.clock.advance(500)
        assert (await store.claim_one()).attempts == 2

    async def test_leases_lapse_one_by_one(self, store: Store) -> None:
        await store.queue()
        first, second = await store.publish(b"1", b"2")
        await store.claim_one(lease_ms=2000)
        await store.claim_one(lease_ms=1000)
        store.clock.advance(1000)
        assert ids_of(await store.claim(limit=9)) == [second]
        store.clock.advance(1000)
        assert ids_of(await store.claim(limit=9)) == [first]


class TestTime(Conformance):
    """C3: nothing before deliver_at, nothing after expires_at; both limits are exact."""

    @law("C3")
    async def test_nothing_before_deliver_at(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(msg(deliver_at=store.clock.now() + 100))
        store.clock.advance(99)
        assert await store.claim() == []
        assert await store.ids("q", State.DELAYED) == [message_id]
        store.clock.advance(1)
        assert ids_of(await store.claim()) == [message_id]

    @law("C3")
    async def test_nothing_at_or_after_expires_at(self, store: Store) -> None:
        await store.queue()
        now = store.clock.now()
        first, second = await store.publish(msg(expires_at=now + 100), msg(expires_at=now + 101))
        store.clock.advance(100)
        assert ids_of(await store.claim(limit=9)) == [second]
        (shown,) = await store.browse("q", State.EXPIRED)
        assert (shown.message.id, shown.at) == (first, now + 100)

    @law("C3")
    async def test_a_delayed_message_can_expire(self, store: Store) -> None:
        await store.queue()
        now = store.clock.now()
        (message_id,) = await store.publish(msg(deliver_at=now + 200, expires_at=now + 100))
        store.clock.advance(300)
        assert await store.claim() == []
        assert await store.ids("q", State.EXPIRED) == [message_id]

    @law("C3")
    async def test_in_flight_past_its_expiry_can_still_be_acked(self, store: Store) -> None:
        await store.queue()
        await store.publish(msg(expires_at=store.clock.now() + 100))
        delivery = await store.claim_one(lease_ms=60_000)
        store.clock.advance(200)
        await store.claim()
        assert (await store.ack(delivery)).state is State.DONE

    @law("C3")
    @pytest.mark.parametrize("way", ["nack", "nack with delay", "release", "lapse"])
    async def test_it_expires_instead_of_returning(self, store: Store, way: str) -> None:
        await store.queue()
        (message_id,) = await store.publish(msg(expires_at=store.clock.now() + 100))
        delivery = await store.claim_one(lease_ms=1000)
        store.clock.advance(1000)
        if way == "nack":
            assert (await store.nack(delivery, "e")).state is State.EXPIRED
        elif way == "nack with delay":
            assert (await store.nack(delivery, "e", 10)).state is State.EXPIRED
        elif way == "release":
            assert (await store.release(delivery)).state is State.EXPIRED
        assert await store.claim() == []
        assert await store.states(message_id) == {"q": State.EXPIRED}

    async def test_a_rejected_delivery_fails_whether_expired_or_not(self, store: Store) -> None:
        await store.queue()
        await store.publish(msg(expires_at=store.clock.now() + 100))
        delivery = await store.claim_one()
        store.clock.advance(200)
        assert (await store.reject(delivery)).state is State.FAILED

    async def test_out_of_attempts_is_failed_before_it_is_expired(self, store: Store) -> None:
        await store.queue(max_attempts=1)
        await store.publish(msg(expires_at=store.clock.now() + 100))
        delivery = await store.claim_one()
        store.clock.advance(200)
        assert (await store.nack(delivery)).state is State.FAILED

    async def test_other_verbs_report_what_is_stored(self, store: Store) -> None:
        """Time takes effect only at claim and sweep."""
        await store.queue()
        now = store.clock.now()
        await store.publish(msg(deliver_at=now + 10), msg(expires_at=now + 10))
        store.clock.advance(20)
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.delayed, stats.available, stats.expired) == (1, 1, 0)
        await store.claim(limit=0)
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.delayed, stats.available, stats.expired) == (0, 1, 1)

    async def test_time_takes_effect_in_a_paused_queue_too(self, store: Store) -> None:
        await store.queue(paused=True)
        await store.publish(msg(deliver_at=store.clock.now() + 10))
        store.clock.advance(10)
        assert await store.claim() == []
        assert (await store.engine.stats(TENANT, "q")).available == 1

    @law("Q1")
    async def test_time_takes_effect_in_the_claimed_queue_only(self, store: Store) -> None:
        await store.queue("a")
        await store.queue("b")
        await store.publish(msg(deliver_at=store.clock.now() + 10))
        store.clock.advance(10)
        await store.claim("a", 0)
        assert (await store.engine.stats(TENANT, "a")).available == 1
        assert (await store.engine.stats(TENANT, "b")).delayed == 1
