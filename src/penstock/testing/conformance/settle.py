"""settle: ack, nack, reject, release, extend."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import UnknownQueue
from penstock.model.delivery import (
    Ack,
    Extend,
    Nack,
    Receipt,
    Reject,
    Release,
    Verdict,
)
from penstock.model.queue import Backoff
from penstock.model.states import State
from penstock.testing.conformance.harness import (
    TENANT,
    Conformance,
    Store,
    msg,
)
from penstock.testing.laws import law

__all__ = ["TestAck", "TestExtend", "TestNack", "TestRelease"]


class TestAck(Conformance):
    """Done, exactly once."""

    @law("S2")
    async def test_an_acked_delivery_is_never_delivered_again(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        outcome = await store.ack(await store.claim_one(lease_ms=1000))
        assert (outcome.verdict, outcome.state, outcome.until) == (Verdict.OK, State.DONE, None)
        store.clock.advance(100_000)
        assert await store.claim(limit=9) == []
        (shown,) = await store.browse("q", State.DONE)
        assert (shown.message.id, shown.attempts) == (message_id, 1)
        assert shown.at == store.clock.now() - 100_000

    async def test_repeating_an_ack_is_a_success(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        delivery = await store.claim_one()
        await store.ack(delivery, b"first")
        store.clock.advance(10)
        again = await store.ack(delivery, b"second")
        assert (again.verdict, again.state) == (Verdict.OK, State.DONE)
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.acks, stats.done) == (1, 1)
        result = await store.engine.result(TENANT, "q", message_id)
        assert result is not None
        assert (result.result, result.at) == (b"first", store.clock.now() - 10)

    async def test_repeating_in_one_call_is_a_success(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        ack = Ack((await store.claim_one()).receipt)
        reply = await store.engine.settle(TENANT, "q", [ack, ack])
        assert [o.verdict for o in reply.outcomes] == [Verdict.OK, Verdict.OK]
        assert (await store.engine.stats(TENANT, "q")).acks == 1

    @law("S1")
    async def test_an_older_receipt_cannot_repeat_the_ack(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        old = await store.claim_one()
        await store.nack(old)
        new = await store.claim_one()
        await store.ack(new)
        assert (await store.ack(old)).verdict is Verdict.STALE
        assert (await store.ack(new)).verdict is Verdict.OK

    async def test_only_an_ack_repeats_an_ack(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        delivery = await store.claim_one()
        await store.ack(delivery)
        receipt = delivery.receipt
        for settlement in (Nack(receipt), Reject(receipt), Release(receipt), Extend(receipt, 1000)):
            assert (await store.settle(settlement)).verdict is Verdict.STALE
        assert (await store.engine.stats(TENANT, "q")).done == 1

    async def test_a_repeated_ack_is_stale_once_the_record_is_gone(self, store: Store) -> None:
        await store.queue(done_retention_s=1)
        await store.publish(b"x")
        delivery = await store.claim_one()
        await store.ack(delivery)
        store.clock.advance(1000)
        await store.sweep_all()
        assert (await store.ack(delivery)).verdict is Verdict.STALE

    async def test_outcomes_come_in_the_order_of_the_settlements(self, store: Store) -> None:
        await store.queue()
        await store.publish(*[b"x"] * 5)
        a, b, c, d, e = await store.claim(limit=5)
        reply = await store.engine.settle(
            TENANT,
            "q",
            [
                Reject(c.receipt),
                Ack(a.receipt),
                Nack(Receipt("never-was")),
                Release(d.receipt),
                Nack(b.receipt, delay_ms=50),
                Extend(e.receipt, 7000),
            ],
        )
        now = store.clock.now()
        assert [(o.receipt, o.verdict, o.state, o.until) for o in reply.outcomes] == [
            (c.receipt, Verdict.OK, State.FAILED, None),
            (a.receipt, Verdict.OK, State.DONE, None),
            ("never-was", Verdict.STALE, None, None),
            (d.receipt, Verdict.OK, State.AVAILABLE, None),
            (b.receipt, Verdict.OK, State.DELAYED, now + 50),
            (e.receipt, Verdict.OK, State.IN_FLIGHT, now + 7000),
        ]

    async def test_settlements_of_one_receipt_are_applied_in_order(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        receipt = (await store.claim_one()).receipt
        reply = await store.engine.settle(
            TENANT, "q", [Extend(receipt, 5000), Nack(receipt), Ack(receipt)]
        )
        assert [o.verdict for o in reply.outcomes] == [Verdict.OK, Verdict.OK, Verdict.STALE]
        assert (await store.engine.stats(TENANT, "q")).available == 1

    async def test_nothing_to_settle(self, store: Store) -> None:
        await store.queue()
        reply = await store.engine.settle(TENANT, "q", [])
        assert (reply.outcomes, reply.published) == ((), ())

    async def test_an_unknown_queue(self, store: Store) -> None:
        with pytest.raises(UnknownQueue):
            await store.engine.settle(TENANT, "nope", [Ack(Receipt("r"))])


class TestNack(Conformance):
    """Retried later, or failed."""

    async def test_backoff_doubles_with_the_attempts(self, store: Store) -> None:
        """Jitter is half of the ceiling here: 500, 1000, 2000, 2500, 2500 ms."""
        await store.queue(max_attempts=9, backoff=Backoff(base_ms=1000, max_ms=5000))
        await store.publish(b"x")
        for wait_ms in (500, 1000, 2000, 2500, 2500):
            outcome = await store.nack(await store.claim_one())
            assert outcome.state is State.DELAYED
            assert outcome.until == store.clock.now() + wait_ms
            store.clock.advance(wait_ms - 1)
            assert await store.claim() == []
            store.clock.advance(1)

    async def test_a_given_delay_beats_the_backoff(self, store: Store) -> None:
        await store.queue(backoff=Backoff(base_ms=1000, max_ms=5000))
        await store.publish(b"x")
        outcome = await store.nack(await store.claim_one(), delay_ms=10)
        assert (outcome.state, outcome.until) == (State.DELAYED, store.clock.now() + 10)
        store.clock.advance(10)
        outcome = await store.nack(await store.claim_one(), delay_ms=0)
        assert outcome.state is State.AVAILABLE
        assert (await store.claim_one()).attempts == 3

    async def test_no_backoff_is_available_at_once(self, store: Store) -> None:
        await store.queue(backoff=Backoff(base_ms=0, max_ms=0))
        await store.publish(b"x")
        outcome = await store.nack(await store.claim_one(), "e")
        assert outcome.state is State.AVAILABLE
        (shown,) = await store.browse("q", State.AVAILABLE)
        assert (shown.attempts, shown.error, shown.at) == (1, "e", None)
        assert (shown.claimed_at, shown.consumer, shown.lease_deadline) == (None, None, None)

    @law("C2")
    async def test_the_last_attempt_fails(self, store: Store) -> None:
        """Attempts are counted only at the claim: five means five deliveries, not three."""
        await store.queue(max_attempts=5)
        await store.publish(b"x")
        states = [(await store.nack(await store.claim_one(), f"e{n}")).state for n in range(5)]
        assert states == [State.AVAILABLE] * 4 + [State.FAILED]
        (shown,) = await store.browse("q", State.FAILED)
        assert (shown.attempts, shown.error) == (5, "e4")
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.grants, stats.nacks, stats.failures, stats.failed) == (5, 5, 1, 1)

    async def test_a_single_attempt(self, store: Store) -> None:
        await store.queue(max_attempts=1)
        await store.publish(b"x")
        assert (await store.nack(await store.claim_one(), delay_ms=99)).state is State.FAILED

    async def test_max_attempts_of_the_present_policy_counts(self, store: Store) -> None:
        await store.queue(max_attempts=5)
        await store.publish(b"x")
        await store.nack(await store.claim_one())
        await store.queue(max_attempts=2)
        assert (await store.nack(await store.claim_one())).state is State.FAILED

    async def test_a_nack_without_an_error_reports_none(self, store: Store) -> None:
        await store.queue(max_attempts=1)
        await store.publish(b"x")
        await store.nack(await store.claim_one())
        (shown,) = await store.browse("q", State.FAILED)
        assert shown.error is None

    @law("E1")
    async def test_an_error_that_cannot_be_encoded_fails_no_other_caller(
        self, store: Store
    ) -> None:
        """Concurrent calls share a commit, and the text of one must not affect the others."""
        await store.queue(max_attempts=9)
        await store.publish(*[b"x"] * 6)
        held = await store.claim(limit=6)
        errors = ["plain", "half \ud800", "nul \x00", "\udfff\ud800", "ü", None]
        replies = await asyncio.gather(
            *(
                store.engine.settle(TENANT, "q", [Nack(delivery.receipt, error, 0)])
                for delivery, error in zip(held, errors, strict=True)
            )
        )
        assert [reply.outcomes[0].verdict for reply in replies] == [Verdict.OK] * 6
        shown = await store.browse("q", State.AVAILABLE)
        kept = ["plain", "half ?", "nul \x00", "??", "ü", None]
        assert [item.error for item in shown] == kept

    async def test_reject_fails_at_once(self, store: Store) -> None:
        await store.queue(max_attempts=5)
        await store.publish(b"x")
        outcome = await store.reject(await store.claim_one(), "poison")
        assert (outcome.state, outcome.until) == (State.FAILED, None)
        (shown,) = await store.browse("q", State.FAILED)
        assert (shown.attempts, shown.error, shown.at) == (1, "poison", store.clock.now())
        assert await store.claim() == []

    @law("Q1")
    async def test_a_failure_touches_no_other_queue(self, store: Store) -> None:
        """A dead letter that is removed from a shared log is lost to the other queues."""
        await store.queue("a")
        await store.queue("b")
        (message_id,) = await store.publish(b"x")
        before = await store.picture("b")
        await store.fail_one("a")
        assert await store.picture("b") == before
        assert await store.states(message_id) == {"a": State.FAILED, "b": State.AVAILABLE}
        assert (await store.claim_one("b")).payload == b"x"


class TestRelease(Conformance):
    """Returned, and not counted as an attempt."""

    async def test_released_grants_do_not_count(self, store: Store) -> None:
        await store.queue(max_attempts=2)
        await store.publish(b"x")
        for attempt in (1, 2, 3):
            delivery = await store.claim_one()
            assert delivery.attempts == attempt
            assert (await store.release(delivery)).state is State.AVAILABLE
        assert (await store.nack(await store.claim_one())).state is State.AVAILABLE
        last = await store.claim_one()
        assert last.attempts == 5
        assert (await store.nack(last)).state is State.FAILED

    async def test_a_release_is_available_at_once(self, store: Store) -> None:
        await store.queue(backoff=Backoff(base_ms=60_000, max_ms=60_000))
        await store.publish(b"x")
        outcome = await store.release(await store.claim_one())
        assert (outcome.state, outcome.until) == (State.AVAILABLE, None)
        assert (await store.claim_one()).attempts == 2

    async def test_a_release_is_no_nack(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        await store.release(await store.claim_one())
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.grants, stats.nacks, stats.acks) == (1, 0, 0)

    async def test_a_release_with_a_delay_postpones(self, store: Store) -> None:
        """The delivery is delayed until it is due, and the grant uses no attempt."""
        await store.queue(max_attempts=1)
        (message_id,) = await store.publish(b"x")
        outcome = await store.release(await store.claim_one(), delay_ms=700)
        due = store.clock.now() + 700
        assert (outcome.state, outcome.until) == (State.DELAYED, due)
        (shown,) = await store.browse("q", State.DELAYED)
        assert (shown.message.id, shown.at, shown.attempts, shown.released) == (
            message_id,
            due,
            1,
            1,
        )
        assert await store.engine.next_due(TENANT, "q") == due
        store.clock.advance(699)
        assert await store.claim() == []
        store.clock.advance(1)
        assert (await store.nack(await store.claim_one())).state is State.FAILED

    async def test_a_release_without_a_delay_to_wait_for(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        outcome = await store.release(await store.claim_one(), delay_ms=0)
        assert (outcome.state, outcome.until) == (State.AVAILABLE, None)

    @law("C3")
    async def test_a_postponed_delivery_expires(self, store: Store) -> None:
        await store.queue()
        await store.publish(msg(expires_at=store.clock.now() + 100))
        held = await store.claim_one()
        assert (await store.release(held, delay_ms=5000)).state is State.DELAYED
        store.clock.advance(100)
        assert await store.claim() == []
        assert len(await store.browse("q", State.EXPIRED)) == 1

    async def test_a_postponed_dead_letter_stays_failed(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        await store.fail_one()
        dead = await store.claim_one("q.dlq")
        assert (await store.release(dead, delay_ms=300)).state is State.DELAYED
        assert (await store.engine.stats(TENANT, "q")).failed == 1
        assert await store.claim("q.dlq") == []
        store.clock.advance(300)
        assert (await store.claim_one("q.dlq")).attempts == 3


class TestExtend(Conformance):
    """A longer lease."""

    async def test_without_a_lease_it_is_the_lease_of_the_queue(self, store: Store) -> None:
        await store.queue(lease_ms=9_000, max_lease_ms=20_000)
        await store.publish(b"x")
        delivery = await store.claim_one(lease_ms=2_000)
        store.clock.advance(1_500)
        outcome = await store.extend(delivery)
        assert (outcome.state, outcome.until) == (State.IN_FLIGHT, store.clock.now() + 9_000)
        store.clock.advance(8_999)
        assert await store.claim() == []
        store.clock.advance(1)
        assert (await store.claim_one()).attempts == 2

    async def test_the_lease_of_the_queue_is_clamped_too(self, store: Store) -> None:
        await store.queue(lease_ms=9_000, max_lease_ms=5_000)
        await store.publish(b"x")
        delivery = await store.claim_one(lease_ms=1_000)
        outcome = await store.extend(delivery)
        assert outcome.until == delivery.claimed_at + 5_000
