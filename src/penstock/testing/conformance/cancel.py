"""cancel: remove one message, in any state, from one queue or from all (S1, Q1, Q2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from penstock.errors import UnknownDelivery, UnknownMessage, UnknownQueue
from penstock.model.delivery import CancelReply, Extend, ReplaySource, Verdict
from penstock.model.message import MessageId
from penstock.model.queue import Ordering, Start
from penstock.model.states import State
from penstock.testing.conformance.harness import (
    OTHER_TENANT,
    TENANT,
    Conformance,
    Store,
    ids_of,
    msg,
)
from penstock.testing.conformance.ready import listen
from penstock.testing.laws import law

__all__ = ["TestCancel", "TestCancelEverywhere"]

NOTHING = CancelReply(0, ())
ONE = CancelReply(1, ("q",))


async def _delayed(store: Store) -> None:
    await store.nack(await store.claim_one(), "later", 60_000)


async def _in_flight(store: Store) -> None:
    await store.claim_one()


async def _done(store: Store) -> None:
    await store.ack(await store.claim_one(), b"ok")


async def _failed(store: Store) -> None:
    await store.fail_one()


async def _dead_delayed(store: Store) -> None:
    await store.fail_one()
    await store.nack(await store.claim_one("q.dlq"), "again", 60_000)


async def _dead_in_flight(store: Store) -> None:
    await store.fail_one()
    await store.claim_one("q.dlq")


async def _dead_done(store: Store) -> None:
    await store.fail_one()
    await store.ack(await store.claim_one("q.dlq"))


async def _expired(store: Store) -> None:
    store.clock.advance(120_000)
    await store.engine.sweep()


async def _available(store: Store) -> None:
    """Published, and nothing else."""


_STATES: dict[str, Callable[[Store], Awaitable[None]]] = {
    "available": _available,
    "delayed": _delayed,
    "in flight": _in_flight,
    "done": _done,
    "failed": _failed,
    "expired": _expired,
    "delayed dead letter": _dead_delayed,
    "dead letter in flight": _dead_in_flight,
    "acked dead letter": _dead_done,
}


class TestCancel(Conformance):
    """One queue."""

    @law("Q2")
    @pytest.mark.parametrize("state", _STATES)
    @pytest.mark.parametrize("named", [True, False], ids=["one queue", "every queue"])
    async def test_any_state(self, store: Store, state: str, named: bool) -> None:
        await store.queue()
        expires_at = store.clock.now() + 120_000
        (message_id,) = await store.publish(msg(b"x", expires_at=expires_at))
        await _STATES[state](store)
        queue = "q" if named else None
        assert await store.engine.cancel(TENANT, message_id, queue) == ONE
        assert await store.engine.cancel(TENANT, message_id, queue) == NOTHING
        assert await store.states(message_id) == {}
        assert await store.engine.history(TENANT, message_id) == ()
        for name in ("q", "q.dlq"):
            stats = await store.engine.stats(TENANT, name)
            assert (stats.depth, stats.done, stats.failed, stats.expired) == (0, 0, 0, 0)
            assert stats.in_flight_by_consumer == {}
            with pytest.raises(UnknownDelivery):
                await store.engine.result(TENANT, name, message_id)
        store.clock.advance(600_000)
        await store.engine.sweep()
        assert await store.claim(limit=9) == []
        assert await store.claim("q.dlq", limit=9) == []

    @law("S1")
    async def test_the_receipt_becomes_stale(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        delivery = await store.claim_one()
        await store.engine.cancel(TENANT, message_id, "q")
        assert (await store.extend(delivery, 1_000)).verdict is Verdict.STALE
        for settle in (store.ack, store.nack, store.reject, store.release):
            assert (await settle(delivery)).verdict is Verdict.STALE
        reply = await store.engine.settle(TENANT, "q", [Extend(delivery.receipt, 1_000)])
        assert [outcome.verdict for outcome in reply.outcomes] == [Verdict.STALE]

    @law("S1")
    async def test_an_ack_cannot_be_repeated(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        delivery = await store.claim_one()
        await store.ack(delivery)
        await store.engine.cancel(TENANT, message_id)
        assert (await store.ack(delivery)).verdict is Verdict.STALE

    @law("S1")
    async def test_a_receipt_from_before_stays_stale_after_a_replay(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        old = await store.claim_one()
        await store.engine.cancel(TENANT, message_id)
        reply = await store.engine.replay(TENANT, "q", ReplaySource.LOG, None, 9)
        assert reply.count == 1
        new = await store.claim_one()
        assert (new.message.id, new.attempts) == (message_id, 1)
        assert (await store.ack(old)).verdict is Verdict.STALE
        assert (await store.ack(new)).ok

    async def test_the_others_stay(self, store: Store) -> None:
        await store.queue()
        ids = await store.publish(*(b"%d" % n for n in range(9)))
        held = await store.claim(limit=3)
        for message_id in (ids[1], ids[4], ids[8]):
            assert await store.engine.cancel(TENANT, message_id, "q") == ONE
        assert (await store.ack(held[0])).ok
        assert (await store.ack(held[1])).verdict is Verdict.STALE
        assert (await store.nack(held[2], "again", 0)).ok
        assert ids_of(await store.claim(limit=9)) == [ids[2], ids[3], *ids[5:8]]

    @law("Q1")
    async def test_a_dead_letter_queue_names_dead_letters_only(self, store: Store) -> None:
        await store.queue()
        failed, waiting = await store.publish(b"x", b"y")
        await store.fail_one()
        assert await store.engine.cancel(TENANT, waiting, "q.dlq") == NOTHING
        assert await store.engine.cancel(TENANT, failed, "q.dlq") == ONE
        assert await store.states(failed) == {}
        assert await store.states(waiting) == {"q": State.AVAILABLE}

    @law("Q1")
    async def test_another_queue_keeps_its_delivery(self, store: Store) -> None:
        await store.queue("a")
        await store.queue("b")
        (message_id,) = await store.publish(b"x")
        assert await store.engine.cancel(TENANT, message_id, "a") == CancelReply(1, ("a",))
        assert await store.states(message_id) == {"b": State.AVAILABLE}
        assert ids_of(await store.claim("b")) == [message_id]

    @law("E1")
    async def test_what_is_unknown(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        with pytest.raises(UnknownQueue):
            await store.engine.cancel(TENANT, message_id, "nope")
        for queue in (None, "q"):
            with pytest.raises(UnknownMessage):
                await store.engine.cancel(TENANT, MessageId(message_id + 10**6), queue)
        assert await store.states(message_id) == {"q": State.AVAILABLE}

    @law("T1")
    async def test_another_tenant_has_no_such_message(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        with pytest.raises(UnknownMessage):
            await store.engine.cancel(OTHER_TENANT, message_id)
        assert await store.states(message_id) == {"q": State.AVAILABLE}

    @law("C4")
    @pytest.mark.parametrize("concurrency", [1, 2])
    @pytest.mark.parametrize("state", ["available", "delayed", "in flight"])
    async def test_a_partition_continues(self, store: Store, state: str, concurrency: int) -> None:
        await store.queue(ordering=Ordering.PARTITION, partition_concurrency=concurrency)
        first, second, other = await store.publish(
            msg(partition_key="p"), msg(partition_key="p"), msg(partition_key="r")
        )
        await store.engine.join(TENANT, "q", "c")
        if state != "available":
            held = await store.claim_one(consumer="c")
            assert held.message.id == first
            if state == "delayed":
                await store.nack(held, "later", 60_000)
        ear = listen(store)
        assert await store.engine.cancel(TENANT, first, "q") == ONE
        assert "q" in ear.heard()
        assert ids_of(await store.claim(limit=9, consumer="c")) == [second, other]
        stats = await store.engine.stats(TENANT, "q")
        assert [(p.partition, p.unsettled) for p in stats.partitions] == [("p", 1), ("r", 1)]

    async def test_a_key_takes_no_more_replacements(self, store: Store) -> None:
        await store.queue("a")
        await store.queue("b")
        (message_id,) = await store.publish(msg(b"1", key="k"))
        assert await store.publish(msg(b"2", key="k")) == [message_id]
        await store.engine.cancel(TENANT, message_id, "a")
        (new,) = await store.publish(msg(b"3", key="k"))
        assert new != message_id
        assert ids_of(await store.claim("a", limit=9)) == [new]
        assert ids_of(await store.claim("b", limit=9)) == [message_id, new]

    @pytest.mark.parametrize("held", [True, False], ids=["in flight", "waiting again"])
    async def test_a_key_that_was_claimed_takes_no_more(self, store: Store, held: bool) -> None:
        await store.queue("a")
        await store.queue("b")
        (message_id,) = await store.publish(msg(b"1", key="k"))
        delivery = await store.claim_one("a")
        if not held:
            await store.nack(delivery, "again", 0)
        await store.engine.cancel(TENANT, message_id, "a")
        (new,) = await store.publish(msg(b"2", key="k"))
        assert new != message_id
        assert ids_of(await store.claim("b", limit=9)) == [message_id, new]

    @law("C5")
    async def test_callers_that_wait_for_the_result_are_notified(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        await store.claim_one()
        ear = listen(store)
        await store.engine.cancel(TENANT, message_id)
        assert ear.ended_queues() == {"q"}

    async def test_depth_is_freed(self, store: Store) -> None:
        await store.queue(max_depth=1)
        (message_id,) = await store.publish(b"x")
        await store.engine.cancel(TENANT, message_id)
        assert len(await store.publish(b"y")) == 1


class TestCancelEverywhere(Conformance):
    """Every queue, in one commit."""

    async def test_every_queue_and_state(self, store: Store) -> None:
        for name in ("done", "failed", "held", "waits"):
            await store.queue(name)
        await store.queue("none", "FALSE")
        message_id, other = await store.publish(b"x", b"y")
        await store.ack(await store.claim_one("done"))
        await store.fail_one("failed")
        held = await store.claim_one("held")
        reply = await store.engine.cancel(TENANT, message_id)
        assert reply == CancelReply(4, ("done", "failed", "held", "waits"))
        assert (await store.ack(held)).verdict is Verdict.STALE
        assert await store.states(message_id) == {}
        assert set(await store.states(other)) == {"done", "failed", "held", "waits"}

    async def test_a_queue_that_is_not_routed_yet_is_pending(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        for name, filter_ in (("late", "TRUE"), ("never", "FALSE")):
            await store.queue(name, filter_, start=Start(Start.EARLIEST))
        reply = await store.engine.cancel(TENANT, message_id)
        assert reply == CancelReply(1, ("q",), ("late",))
        for name in ("late", "never"):
            await store.engine.route(TENANT, name, 10)
        assert await store.states(message_id) == {"late": State.AVAILABLE}
        assert await store.engine.cancel(TENANT, message_id) == CancelReply(1, ("late",))
        assert await store.engine.cancel(TENANT, message_id) == NOTHING

    async def test_a_named_queue_that_is_not_routed_yet(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        await store.queue("late", start=Start(Start.EARLIEST))
        reply = await store.engine.cancel(TENANT, message_id, "late")
        assert reply == CancelReply(0, (), ("late",))
        assert await store.engine.cancel(TENANT, message_id, "q") == ONE

    @law("G1")
    async def test_the_log_entry_stays_for_its_retention(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        await store.engine.cancel(TENANT, message_id)
        await store.engine.sweep()
        found = await store.engine.message(TENANT, message_id)
        assert (found.payload, found.deliveries) == (b"x", ())
