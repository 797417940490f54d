"""Q.dlq: deliveries that failed in Q can be read, claimed and settled there (D1)."""

from __future__ import annotations

import pytest

from penstock.errors import BadName, Conflict, UnknownQueue
from penstock.model.delivery import Ack, ReplaySource, Verdict
from penstock.model.limits import MAX_ATTEMPTS
from penstock.model.message import MessageId
from penstock.model.queue import Backoff, Ordering, QueuePolicy, Start
from penstock.model.states import State
from penstock.testing.conformance.harness import TENANT, Conformance, Store, ids_of, msg
from penstock.testing.laws import law

__all__ = ["TestDeadLetter", "TestDeadLetterQueue", "TestNoDeadLetters"]


async def failed(store: Store, count: int = 1) -> list[MessageId]:
    """Publish and reject some messages."""
    ids = await store.publish(*[b"body"] * count)
    for _ in ids:
        await store.fail_one()
    return ids


class TestDeadLetter(Conformance):
    """Dead-lettering loses nothing."""

    @law("D1")
    async def test_payload_error_and_history_are_readable(self, store: Store) -> None:
        await store.queue(max_attempts=2)
        (message_id,) = await store.publish(msg(b"body", color="red", partition_key="p"))
        original = (await store.engine.message(TENANT, message_id)).message
        await store.nack(await store.claim_one(consumer="a"), "first")
        failed_at = store.clock.advance(10)
        await store.nack(await store.claim_one(consumer="b"), "second")
        store.clock.advance(10)
        (shown,) = await store.browse("q", State.FAILED, payloads=True)
        assert (shown.queue, shown.state, shown.attempts) == ("q", State.FAILED, 2)
        assert (shown.error, shown.at, shown.payload) == ("second", failed_at, b"body")
        assert shown.message == original
        (letter,) = await store.browse("q.dlq", State.AVAILABLE, payloads=True)
        assert (letter.queue, letter.state) == ("q.dlq", State.AVAILABLE)
        assert (letter.attempts, letter.error, letter.payload) == (2, "second", b"body")
        assert letter.message == original
        claims = [
            (e.at, e.consumer)
            for e in await store.engine.history(TENANT, message_id)
            if e.transition == "claim"
        ]
        assert claims == [(failed_at - 10, "a"), (failed_at, "b")]

    @law("D1")
    async def test_a_dead_letter_can_be_claimed_with_its_payload(self, store: Store) -> None:
        await store.queue()
        ids = await failed(store, 3)
        claimed = await store.claim("q.dlq", 9)
        assert ids_of(claimed) == ids
        assert [d.payload for d in claimed] == [b"body"] * 3
        assert {d.queue for d in claimed} == {"q.dlq"}
        assert [d.attempts for d in claimed] == [2, 2, 2]

    @law("D1")
    async def test_a_claimed_dead_letter_says_how_it_failed(self, store: Store) -> None:
        await store.queue(max_attempts=2)
        await store.publish(*[b"x"] * 3)
        first, second, third = await store.claim(limit=3)
        assert (first.error, first.failed_at, first.original_queue) == (None, None, None)
        await store.reject(first, "poison")
        failed_at = store.clock.now()
        await store.nack(second, "once")
        store.clock.advance(5)
        again = await store.claim_one()
        assert (again.error, again.failed_at, again.original_queue) == (None, None, None)
        await store.nack(again)
        await store.reject(third)
        dead = await store.claim("q.dlq", limit=3)
        assert [(d.error, d.failed_at, d.attempts) for d in dead] == [
            ("poison", failed_at, 2),
            ("once", failed_at + 5, 3),
            (None, failed_at + 5, 2),
        ]
        assert {(d.queue, d.original_queue, d.message.topic) for d in dead} == {
            ("q.dlq", "q", "orders")
        }
        store.clock.advance(10)
        await store.nack(dead[0], "still", delay_ms=0)
        (back,) = await store.claim("q.dlq")
        assert (back.error, back.failed_at, back.attempts) == ("still", failed_at, 3)

    async def test_dead_letters_come_in_claim_order_too(self, store: Store) -> None:
        await store.queue()
        low, high, low2 = await store.publish(msg(priority=1), msg(priority=8), msg(priority=1))
        for _ in range(3):
            await store.fail_one()
        assert ids_of(await store.claim("q.dlq", 9)) == [high, low, low2]

    async def test_two_messages_with_one_key_can_both_fail(self, store: Store) -> None:
        """A unique index over the dead letters would refuse the second forever."""
        await store.queue()
        for _ in range(2):
            await store.publish(msg(key="k", id=None))
            await store.fail_one()
        assert len(await store.claim("q.dlq", 9)) == 2

    async def test_one_message_can_fail_again_after_a_replay(self, store: Store) -> None:
        await store.queue()
        ids = await failed(store)
        await store.engine.replay(TENANT, "q", ReplaySource.FAILED, None, 9)
        await store.fail_one(error="again")
        (shown,) = await store.browse("q", State.FAILED)
        assert ([shown.message.id], shown.error, shown.attempts) == (ids, "again", 1)
        assert (await store.engine.stats(TENANT, "q")).failures == 2

    @law("D1")
    async def test_an_ack_ends_it_in_the_dead_letter_queue(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await failed(store)
        delivery = await store.claim_one("q.dlq")
        assert (await store.ack(delivery, b"fixed")).state is State.DONE
        assert (await store.ack(delivery)).state is State.DONE
        own = await store.engine.stats(TENANT, "q")
        letters = await store.engine.stats(TENANT, "q.dlq")
        assert (own.done, own.failed, own.acks) == (0, 0, 0)
        assert (letters.done, letters.acks, letters.grants) == (1, 1, 1)
        assert await store.claim("q.dlq") == []
        assert await store.claim("q") == []
        result = await store.engine.result(TENANT, "q.dlq", message_id)
        assert result is not None
        assert result.result == b"fixed"
        assert await store.engine.result(TENANT, "q", message_id) == result
        assert await store.states(message_id) == {"q.dlq": State.DONE}

    @law("D1")
    @pytest.mark.parametrize("way", ["nack", "reject", "release", "lapse"])
    async def test_every_other_way_leads_back(self, store: Store, way: str) -> None:
        """max_attempts does not apply to dead letters: they never run out."""
        policy = QueuePolicy(max_attempts=1, backoff=Backoff(base_ms=60_000, max_ms=60_000))
        await store.engine.put_queue(TENANT, "q", policy, Start())
        (message_id,) = await failed(store)
        for attempt in range(2, 7):
            delivery = await store.claim_one("q.dlq", lease_ms=1000)
            assert (delivery.message.id, delivery.attempts) == (message_id, attempt)
            if way == "nack":
                assert (await store.nack(delivery, "still")).state is State.AVAILABLE
            elif way == "reject":
                assert (await store.reject(delivery, "still")).state is State.AVAILABLE
            elif way == "release":
                assert (await store.release(delivery)).state is State.AVAILABLE
            else:
                store.clock.advance(1000)
        await store.claim("q.dlq", 0)
        (shown,) = await store.browse("q", State.FAILED)
        assert shown.attempts == 6
        assert shown.error == ("still" if way in ("nack", "reject") else "broken")
        assert (await store.engine.stats(TENANT, "q")).failures == 1

    async def test_a_nack_with_a_delay_waits_there(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await failed(store)
        outcome = await store.nack(await store.claim_one("q.dlq"), delay_ms=500)
        assert (outcome.state, outcome.until) == (State.DELAYED, store.clock.now() + 500)
        assert await store.claim("q.dlq") == []
        assert await store.states(message_id) == {"q.dlq": State.DELAYED}
        own = await store.engine.stats(TENANT, "q")
        assert (own.failed, own.delayed) == (1, 0)
        assert (await store.engine.stats(TENANT, "q.dlq")).delayed == 1
        store.clock.advance(500)
        assert ids_of(await store.claim("q.dlq")) == [message_id]

    async def test_a_dead_letter_does_not_expire(self, store: Store) -> None:
        await store.queue()
        await store.publish(msg(expires_at=store.clock.now() + 100))
        await store.fail_one()
        store.clock.advance(1000)
        await store.sweep_all()
        delivery = await store.claim_one("q.dlq")
        assert (await store.nack(delivery)).state is State.AVAILABLE
        assert len(await store.claim("q.dlq")) == 1

    async def test_in_flight_there_is_shown_there(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await failed(store)
        assert await store.states(message_id) == {"q": State.FAILED}
        await store.claim_one("q.dlq", consumer="medic")
        assert await store.states(message_id) == {"q.dlq": State.IN_FLIGHT}
        assert await store.ids("q", State.FAILED) == []
        own = await store.engine.stats(TENANT, "q")
        letters = await store.engine.stats(TENANT, "q.dlq")
        assert (own.failed, own.in_flight, own.in_flight_by_consumer) == (1, 0, {})
        assert (letters.in_flight, letters.in_flight_by_consumer) == (1, {"medic": 1})

    @law("S1")
    async def test_receipts_of_queue_and_dead_letters_do_not_mix(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        own = await store.fail_one()
        letter = await store.claim_one("q.dlq")
        for queue, receipt in [
            ("q", own.receipt),
            ("q.dlq", own.receipt),
            ("q", letter.receipt),
        ]:
            assert (await store.settle(Ack(receipt), queue)).verdict is Verdict.STALE
        assert (await store.ack(letter)).ok

    async def test_a_lapse_there_needs_a_claim_there(self, store: Store) -> None:
        await store.queue()
        await failed(store)
        await store.claim_one("q.dlq", lease_ms=1000)
        store.clock.advance(1000)
        await store.claim("q")
        assert (await store.engine.stats(TENANT, "q.dlq")).in_flight == 1
        await store.claim("q.dlq", 0)
        assert (await store.engine.stats(TENANT, "q.dlq")).available == 1


class TestDeadLetterQueue(Conformance):
    """The dead-letter queue as a queue."""

    async def test_its_policy_is_derived(self, store: Store) -> None:
        await store.queue(
            filter="color = 'red'", max_attempts=3, ordering=Ordering.PARTITION, done_retention_s=7
        )
        own = await store.engine.get_queue(TENANT, "q")
        info = await store.engine.get_queue(TENANT, "q.dlq")
        assert (info.tenant, info.name) == (TENANT, "q.dlq")
        assert info.policy.filter == "color = 'red'"
        assert info.policy.max_attempts == MAX_ATTEMPTS
        assert info.policy.ordering is Ordering.NONE
        assert info.policy.done_retention_s == 7
        assert not info.policy.paused
        assert info.created_at == own.created_at

    async def test_it_is_paused_apart(self, store: Store) -> None:
        await store.queue()
        await failed(store)
        await store.publish(b"x")
        await store.engine.pause(TENANT, "q.dlq", True)
        assert (await store.engine.get_queue(TENANT, "q.dlq")).policy.paused
        assert not (await store.engine.get_queue(TENANT, "q")).policy.paused
        assert await store.claim("q.dlq") == []
        assert len(await store.claim("q")) == 1
        await store.engine.pause(TENANT, "q.dlq", False)
        await store.engine.pause(TENANT, "q", True)
        assert len(await store.claim("q.dlq")) == 1

    async def test_it_cannot_be_put_or_deleted(self, store: Store) -> None:
        await store.queue()
        with pytest.raises(BadName):
            await store.queue("q.dlq")
        with pytest.raises(BadName):
            await store.engine.delete_queue(TENANT, "q.dlq")

    async def test_it_is_neither_routed_nor_joined(self, store: Store) -> None:
        await store.queue(ordering=Ordering.PARTITION)
        with pytest.raises(Conflict):
            await store.engine.route(TENANT, "q.dlq", 10)
        with pytest.raises(Conflict):
            await store.engine.join(TENANT, "q.dlq", "c")

    async def test_it_is_not_listed(self, store: Store) -> None:
        await store.queue()
        await failed(store)
        assert [q.name for q in await store.engine.list_queues(TENANT)] == ["q"]

    async def test_there_is_none_without_its_queue(self, store: Store) -> None:
        await store.queue()
        await failed(store)
        await store.engine.delete_queue(TENANT, "q")
        for call in (
            store.engine.get_queue(TENANT, "q.dlq"),
            store.engine.stats(TENANT, "q.dlq"),
            store.claim("q.dlq"),
            store.browse("q.dlq", State.AVAILABLE),
        ):
            with pytest.raises(UnknownQueue):
                await call
        await store.queue()
        assert await store.claim("q.dlq") == []

    async def test_it_has_nothing_failed_or_expired(self, store: Store) -> None:
        await store.queue()
        await failed(store, 2)
        assert await store.browse("q.dlq", State.FAILED) == []
        assert await store.browse("q.dlq", State.EXPIRED) == []
        stats = await store.engine.stats(TENANT, "q.dlq")
        assert (stats.available, stats.failed, stats.failures) == (2, 0, 0)

    async def test_its_watermark_and_lag(self, store: Store) -> None:
        await store.queue()
        first, second = await failed(store, 2)
        end = await store.engine.log_end(TENANT)
        stats = await store.engine.stats(TENANT, "q.dlq")
        assert (stats.watermark, stats.lag) == (first - 1, 2)
        await store.ack(await store.claim_one("q.dlq"))
        stats = await store.engine.stats(TENANT, "q.dlq")
        assert (stats.watermark, stats.lag) == (second - 1, 1)
        await store.ack(await store.claim_one("q.dlq"))
        stats = await store.engine.stats(TENANT, "q.dlq")
        assert (stats.watermark, stats.lag) == (end - 1, 0)
        assert (await store.engine.stats(TENANT, "q")).watermark == end - 1


class TestNoDeadLetters(Conformance):
    """With ``dead_letters: false`` a delivery that fails is removed."""

    @law("S3")
    @pytest.mark.parametrize("way", ["nack", "reject", "lapse at a claim", "lapse at a sweep"])
    @pytest.mark.parametrize("ordering", Ordering)
    async def test_what_fails_is_removed(self, store: Store, way: str, ordering: Ordering) -> None:
        await store.queue(max_attempts=1, dead_letters=False, ordering=ordering)
        (message_id,) = await store.publish(b"x")
        delivery = await store.claim_one(lease_ms=1000)
        if way == "nack":
            assert (await store.nack(delivery, "bad")).state is State.FAILED
        elif way == "reject":
            assert (await store.reject(delivery, "bad")).state is State.FAILED
        else:
            store.clock.advance(1000)
            if way == "lapse at a sweep":
                await store.sweep_all()
            else:
                assert await store.claim() == []
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.failures, stats.failed, stats.depth, stats.lag) == (1, 0, 0, 0)
        assert await store.claim("q.dlq") == []
        assert await store.states(message_id) == {}
        assert (await store.ack(delivery)).verdict is Verdict.STALE
        events = await store.engine.history(TENANT, message_id)
        assert [event.queue for event in events] == []

    @law("S2")
    async def test_a_queue_that_catches_up_does_not_take_it_again(self, store: Store) -> None:
        """A removed message whose entry the router has not passed yet would come back."""
        await store.queue("a", "topic = 'orders'")
        await store.publish(msg(b"1", key="k1"), msg(b"2", key="k2"))
        await store.queue("late", start=Start(Start.EARLIEST), dead_letters=False)
        await store.engine.route(TENANT, "late", 1)
        await store.publish(msg(b"3", key="k1"))
        for delivery in await store.claim("late", 9):
            await store.reject(delivery, "bad")
        while (await store.engine.route(TENANT, "late", 100)).cursor is not None:
            pass
        seen = [delivery.payload for delivery in await store.claim("late", 9)]
        assert b"3" not in seen

    async def test_a_lowered_limit_removes_too(self, store: Store) -> None:
        await store.queue(max_attempts=5, dead_letters=False)
        ids = await store.publish(b"a", b"b")
        await store.nack(await store.claim_one())
        await store.queue(max_attempts=1, dead_letters=False)
        assert ids_of(await store.claim(limit=2)) == ids[1:]
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.failures, stats.failed, stats.in_flight) == (1, 0, 1)

    @law("Q1")
    async def test_other_queues_keep_the_message(self, store: Store) -> None:
        await store.queue("a", dead_letters=False)
        await store.queue("b")
        (message_id,) = await store.publish(b"x")
        await store.fail_one("a")
        assert await store.states(message_id) == {"b": State.AVAILABLE}
        await store.fail_one("b")
        assert await store.states(message_id) == {"b": State.FAILED}

    async def test_dead_letters_that_exist_stay(self, store: Store) -> None:
        await store.queue()
        first, second = await store.publish(b"a", b"b")
        await store.fail_one()
        await store.queue(dead_letters=False)
        await store.fail_one()
        assert ids_of(await store.claim("q.dlq", limit=2)) == [first]
        assert await store.states(second) == {}

    async def test_the_log_can_bring_it_back(self, store: Store) -> None:
        await store.queue(dead_letters=False)
        (message_id,) = await store.publish(b"x")
        await store.fail_one()
        reply = await store.engine.replay(TENANT, "q", ReplaySource.LOG, None, 10)
        assert reply.count == 1
        again = await store.claim_one()
        assert (again.message.id, again.attempts) == (message_id, 1)

    async def test_the_successor_in_its_partition_follows(self, store: Store) -> None:
        await store.queue(dead_letters=False, ordering=Ordering.PARTITION)
        ids = await store.publish(msg(partition_key="a"), msg(partition_key="a"))
        assert (await store.fail_one()).message.id == ids[0]
        assert ids_of(await store.claim(limit=9)) == ids[1:]
