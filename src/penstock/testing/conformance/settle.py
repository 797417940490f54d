"""settle: ack, nack, reject, release, extend; and publishing in the same commit."""

from __future__ import annotations

import pytest

from penstock.errors import QueueFull, UnknownQueue
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
from penstock.model.queue import Backoff, QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.contract import Outgoing
from penstock.testing.conformance.harness import (
    OTHER_TENANT,
    TENANT,
    Conformance,
    Store,
    ids_of,
    msg,
)

__all__ = ["TestAck", "TestNack", "TestRelease", "TestSettleAndPublish", "TestStaleReceipts"]


class TestAck(Conformance):
    """Done, once."""

    async def test_s2_an_acked_delivery_is_never_delivered_again(self, store: Store) -> None:
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
        assert (result.result, result.done_at) == (b"first", store.clock.now() - 10)

    async def test_repeating_in_one_call_is_a_success(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        ack = Ack((await store.claim_one()).receipt)
        reply = await store.engine.settle(TENANT, "q", [ack, ack])
        assert [o.verdict for o in reply.outcomes] == [Verdict.OK, Verdict.OK]
        assert (await store.engine.stats(TENANT, "q")).acks == 1

    async def test_s1_an_older_receipt_cannot_repeat_the_ack(self, store: Store) -> None:
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
    """Again later, or failed."""

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

    async def test_c2_the_last_attempt_fails(self, store: Store) -> None:
        """Attempts are counted at the claim only: five means five deliveries, not three."""
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

    async def test_reject_fails_at_once(self, store: Store) -> None:
        await store.queue(max_attempts=5)
        await store.publish(b"x")
        outcome = await store.reject(await store.claim_one(), "poison")
        assert (outcome.state, outcome.until) == (State.FAILED, None)
        (shown,) = await store.browse("q", State.FAILED)
        assert (shown.attempts, shown.error, shown.at) == (1, "poison", store.clock.now())
        assert await store.claim() == []

    async def test_q1_a_failure_touches_no_other_queue(self, store: Store) -> None:
        """A dead letter that is taken out of a shared log is lost to the other queues."""
        await store.queue("a")
        await store.queue("b")
        (message_id,) = await store.publish(b"x")
        before = await store.picture("b")
        await store.fail_one("a")
        assert await store.picture("b") == before
        assert await store.states(message_id) == {"a": State.FAILED, "b": State.AVAILABLE}
        assert (await store.claim_one("b")).payload == b"x"


class TestRelease(Conformance):
    """Handed back, and not counted."""

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


class TestStaleReceipts(Conformance):
    """S1: only the current receipt settles; a stale one changes nothing."""

    @staticmethod
    def every_verb(delivery: Delivery) -> list[Ack | Nack | Reject | Release | Extend]:
        r = delivery.receipt
        return [Ack(r, b"z"), Nack(r, "z"), Reject(r, "z"), Release(r), Extend(r, 60_000)]

    async def test_s1_stale_receipt_changes_nothing(self, store: Store) -> None:
        """A zombie's settlement must not expose or finish its successor's message."""
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

    @pytest.mark.parametrize("way", ["nack", "nack with delay", "reject", "release", "sweep"])
    async def test_s1_a_receipt_dies_with_its_claim(self, store: Store, way: str) -> None:
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

    async def test_s1_one_bad_receipt_does_not_abort_the_others(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"1", b"2")
        first, second = await store.claim(limit=2)
        reply = await store.engine.settle(
            TENANT, "q", [Ack(first.receipt), Ack(Receipt("")), Ack(second.receipt)]
        )
        assert [o.ok for o in reply.outcomes] == [True, False, True]
        assert (await store.engine.stats(TENANT, "q")).done == 2

    @pytest.mark.parametrize("receipt", ["", "x", "0", "ü\x00", "a" * 5000, "1:2:3", "1.2.3", "-1"])
    async def test_s1_no_text_is_a_receipt_by_accident(self, store: Store, receipt: str) -> None:
        await store.queue()
        await store.publish(b"x")
        await store.claim_one()
        assert (await store.settle(Ack(Receipt(receipt)))).verdict is Verdict.STALE

    async def test_q1_a_receipt_belongs_to_its_queue(self, store: Store) -> None:
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

    async def test_t1_a_receipt_belongs_to_its_tenant(self, store: Store) -> None:
        for tenant in (TENANT, OTHER_TENANT):
            await store.queue(tenant=tenant)
            await store.publish(b"x", tenant=tenant)
        mine = await store.claim_one()
        theirs = await store.claim_one(tenant=OTHER_TENANT)
        for settlement in self.every_verb(mine):
            assert (await store.settle(settlement, tenant=OTHER_TENANT)).verdict is Verdict.STALE
        assert (await store.settle(Ack(theirs.receipt), tenant=OTHER_TENANT)).ok
        assert (await store.ack(mine)).ok

    async def test_s1_a_receipt_is_stale_after_a_replay(self, store: Store) -> None:
        """Attempts start again at a replay; receipts do not (C1)."""
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

    async def test_s1_a_receipt_is_stale_after_its_queue_is_made_again(self, store: Store) -> None:
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
