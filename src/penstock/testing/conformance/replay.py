"""replay: from failed, done or the log, back to available, once per replay id."""

from __future__ import annotations

import pytest

from penstock.errors import Conflict, UnknownQueue
from penstock.filters import parse
from penstock.model.delivery import ReplaySource, Verdict
from penstock.model.message import MessageId
from penstock.model.queue import Start
from penstock.model.states import State
from penstock.testing.conformance.harness import TENANT, Conformance, Store, ids_of, msg
from penstock.testing.laws import law

__all__ = ["TestReplay", "TestReplayFromLog", "TestReplayIds"]

FAILED, DONE, LOG = ReplaySource.FAILED, ReplaySource.DONE, ReplaySource.LOG


async def failed(store: Store, count: int) -> list[MessageId]:
    """Publish and reject some messages, numbered by the header n."""
    ids = await store.publish(*(msg(n=n) for n in range(count)))
    for _ in ids:
        await store.fail_one()
    return ids


class TestReplay(Conformance):
    """What replay moves."""

    async def test_failed_become_available_with_attempts_0(self, store: Store) -> None:
        await store.queue(max_attempts=2)
        ids = await failed(store, 3)
        reply = await store.engine.replay(TENANT, "q", FAILED, None, 100)
        assert (reply.count, reply.skipped) == (3, 0)
        assert [s.message.id for s in reply.sample] == ids
        shown = await store.browse("q", State.AVAILABLE)
        assert [(s.message.id, s.attempts) for s in shown] == [(i, 0) for i in ids]
        assert await store.browse("q", State.FAILED) == []
        assert await store.claim("q.dlq") == []
        claimed = await store.claim(limit=9)
        assert [d.attempts for d in claimed] == [1, 1, 1]
        assert (await store.nack(claimed[0])).state is State.AVAILABLE

    @law("C2")
    async def test_released_grants_are_forgotten_too(self, store: Store) -> None:
        await store.queue(max_attempts=2)
        await store.publish(b"x")
        for _ in range(3):
            await store.release(await store.claim_one())
        await store.fail_one()
        await store.engine.replay(TENANT, "q", FAILED, None, 9)
        assert (await store.nack(await store.claim_one())).state is State.AVAILABLE
        assert (await store.nack(await store.claim_one())).state is State.FAILED

    @law("C4")
    async def test_replay_keeps_the_old_place(self, store: Store) -> None:
        await store.queue()
        ids = await failed(store, 2)
        later = await store.publish(b"x", b"y")
        await store.engine.replay(TENANT, "q", FAILED, None, 9)
        assert ids_of(await store.claim(limit=9)) == [*ids, *later]

    async def test_done_become_available(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        delivery = await store.claim_one()
        await store.ack(delivery, b"r")
        reply = await store.engine.replay(TENANT, "q", DONE, None, 9)
        assert reply.count == 1
        assert await store.engine.result(TENANT, "q", message_id) is None
        assert (await store.ack(delivery)).verdict is Verdict.STALE
        again = await store.claim_one()
        assert (again.message.id, again.attempts) == (message_id, 1)
        assert (await store.engine.stats(TENANT, "q")).done == 0

    @pytest.mark.parametrize("source", [FAILED, DONE, LOG])
    async def test_a_replayed_delivery_begins_without_an_error(
        self, store: Store, source: ReplaySource
    ) -> None:
        await store.queue()
        await store.publish(b"x")
        await store.nack(await store.claim_one(), "old")
        if source is FAILED:
            await store.fail_one(error="older")
        else:
            await store.ack(await store.claim_one())
        await store.engine.replay(TENANT, "q", source, None, 9)
        (shown,) = await store.browse("q", State.AVAILABLE)
        assert (shown.error, shown.attempts) == (None, 0)
        await store.reject(await store.claim_one())
        (shown,) = await store.browse("q", State.FAILED)
        assert (shown.error, shown.attempts) == (None, 1)

    @law("S2")
    async def test_only_the_selected_source_moves(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"1", b"2")
        await store.ack(await store.claim_one())
        await store.fail_one()
        await store.engine.replay(TENANT, "q", FAILED, None, 9)
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.done, stats.failed, stats.available) == (1, 0, 1)

    async def test_in_publish_order_up_to_the_limit(self, store: Store) -> None:
        """Publish order, not claim order: replay begins with the oldest."""
        await store.queue()
        low, high, low2 = await store.publish(msg(priority=1), msg(priority=9), msg(priority=1))
        for _ in range(3):
            await store.fail_one()
        reply = await store.engine.replay(TENANT, "q", FAILED, None, 2)
        assert (reply.count, [s.message.id for s in reply.sample]) == (2, [low, high])
        assert await store.ids("q", State.FAILED) == [low2]

    async def test_where_selects(self, store: Store) -> None:
        await store.queue()
        ids = await failed(store, 4)
        reply = await store.engine.replay(TENANT, "q", FAILED, parse("n IN (1, 3)"), 9)
        assert (reply.count, reply.skipped) == (2, 0)
        assert await store.ids("q", State.AVAILABLE) == ids[1::2]
        assert await store.ids("q", State.FAILED) == ids[::2]

    async def test_a_dry_run_changes_nothing(self, store: Store) -> None:
        await store.queue()
        ids = await failed(store, 12)
        before = await store.picture("q")
        reply = await store.engine.replay(TENANT, "q", FAILED, None, 100, dry_run=True)
        assert (reply.count, [s.message.id for s in reply.sample]) == (12, ids[:10])
        reply = await store.engine.replay(TENANT, "q", FAILED, None, 5, dry_run=True)
        assert (reply.count, [s.message.id for s in reply.sample]) == (5, ids[:5])
        assert await store.picture("q") == before

    async def test_rate_spreads_them(self, store: Store) -> None:
        await store.queue()
        ids = await failed(store, 5)
        now = store.clock.now()
        await store.engine.replay(TENANT, "q", FAILED, None, 9, rate=3)
        delayed = await store.browse("q", State.DELAYED)
        assert [(s.message.id, s.at) for s in delayed] == [
            (ids[1], now + 333),
            (ids[2], now + 666),
            (ids[3], now + 1000),
            (ids[4], now + 1333),
        ]
        assert ids_of(await store.claim(limit=9)) == ids[:1]
        store.clock.advance(666)
        assert ids_of(await store.claim(limit=9)) == ids[1:3]

    @law("C3")
    @pytest.mark.parametrize("source", [FAILED, DONE, LOG])
    async def test_what_is_past_its_expiry_is_skipped(
        self, store: Store, source: ReplaySource
    ) -> None:
        await store.queue()
        soon = store.clock.now() + 100
        await store.publish(msg(expires_at=soon), msg(expires_at=soon + 1))
        for _ in range(2):
            if source is DONE:
                await store.ack(await store.claim_one())
            else:
                await store.fail_one()
        store.clock.advance(100)
        reply = await store.engine.replay(TENANT, "q", source, None, 9)
        assert (reply.count, reply.skipped) == (1, 1)
        assert (await store.engine.stats(TENANT, "q")).available == 1

    async def test_the_dead_letter_queue_replays_to_its_queue(self, store: Store) -> None:
        await store.queue()
        ids = await failed(store, 2)
        reply = await store.engine.replay(TENANT, "q.dlq", FAILED, None, 9)
        assert reply.count == 2
        assert ids_of(await store.claim(limit=9)) == ids

    async def test_done_in_the_dead_letters_goes_back_there(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await failed(store, 1)
        await store.ack(await store.claim_one("q.dlq"))
        assert (await store.engine.replay(TENANT, "q", DONE, None, 9)).count == 0
        assert (await store.engine.replay(TENANT, "q.dlq", DONE, None, 9)).count == 1
        assert await store.ids("q", State.FAILED) == [message_id]
        assert ids_of(await store.claim("q.dlq")) == [message_id]

    async def test_dead_letters_have_no_log(self, store: Store) -> None:
        await store.queue()
        with pytest.raises(Conflict):
            await store.engine.replay(TENANT, "q.dlq", LOG, None, 9)

    async def test_in_flight_in_the_dead_letters_is_left_alone(self, store: Store) -> None:
        await store.queue()
        await failed(store, 1)
        delivery = await store.claim_one("q.dlq")
        for source in (FAILED, DONE, LOG):
            assert (await store.engine.replay(TENANT, "q", source, None, 9)).count == 0
        assert (await store.ack(delivery)).ok

    async def test_replay_ignores_max_depth(self, store: Store) -> None:
        await store.queue(max_depth=1)
        for _ in range(3):
            await store.publish(b"x")
            await store.fail_one()
        assert (await store.engine.replay(TENANT, "q", FAILED, None, 9)).count == 3

    async def test_nothing_to_replay(self, store: Store) -> None:
        await store.queue()
        for source in ReplaySource:
            reply = await store.engine.replay(TENANT, "q", source, None, 9)
            assert (reply.count, reply.sample, reply.skipped) == (0, (), 0)
        with pytest.raises(UnknownQueue):
            await store.engine.replay(TENANT, "nope", FAILED, None, 9)

    @law("Q1")
    async def test_replay_touches_no_other_queue(self, store: Store) -> None:
        await store.queue("q")
        await store.queue("b")
        await failed(store, 2)
        await store.fail_one("b")
        before = await store.picture("b")
        await store.engine.replay(TENANT, "q", FAILED, None, 9)
        await store.engine.replay(TENANT, "q", LOG, None, 9)
        assert await store.picture("b") == before


class TestReplayIds(Conformance):
    """The same replay id moves a message once."""

    async def test_the_same_id_moves_nothing_twice(self, store: Store) -> None:
        await store.queue()
        ids = await failed(store, 3)
        first = await store.engine.replay(TENANT, "q", FAILED, None, 9, replay_id="r")
        assert (first.count, first.skipped) == (3, 0)
        await store.fail_one()
        again = await store.engine.replay(TENANT, "q", FAILED, None, 9, replay_id="r")
        assert (again.count, again.skipped) == (0, 1)
        assert await store.ids("q", State.FAILED) == ids[:1]
        other = await store.engine.replay(TENANT, "q", FAILED, None, 9, replay_id="s")
        assert (other.count, other.skipped) == (1, 0)

    async def test_an_interrupted_replay_goes_on(self, store: Store) -> None:
        await store.queue()
        ids = await failed(store, 5)
        for expected in (2, 2, 1, 0):
            reply = await store.engine.replay(TENANT, "q", FAILED, None, 2, replay_id="r")
            assert reply.count == expected
        assert await store.ids("q", State.AVAILABLE) == ids

    async def test_marked_ones_do_not_use_up_the_limit(self, store: Store) -> None:
        await store.queue()
        ids = await failed(store, 3)
        await store.engine.replay(TENANT, "q", FAILED, None, 1, replay_id="r")
        await store.fail_one()
        reply = await store.engine.replay(TENANT, "q", FAILED, None, 1, replay_id="r")
        assert (reply.count, reply.skipped) == (1, 1)
        assert await store.ids("q", State.AVAILABLE) == ids[1:2]

    async def test_a_dry_run_marks_nothing(self, store: Store) -> None:
        await store.queue()
        await failed(store, 2)
        for _ in range(2):
            reply = await store.engine.replay(
                TENANT, "q", FAILED, None, 9, replay_id="r", dry_run=True
            )
            assert reply.count == 2
        assert (await store.engine.replay(TENANT, "q", FAILED, None, 9, replay_id="r")).count == 2
        await store.fail_one()
        reply = await store.engine.replay(TENANT, "q", FAILED, None, 9, replay_id="r", dry_run=True)
        assert (reply.count, reply.skipped) == (0, 1)

    async def test_ids_belong_to_a_queue(self, store: Store) -> None:
        await store.queue("q")
        await store.queue("b")
        await store.publish(b"x")
        await store.fail_one("q")
        await store.fail_one("b")
        for queue in ("q", "b"):
            reply = await store.engine.replay(TENANT, queue, FAILED, None, 9, replay_id="r")
            assert reply.count == 1

    async def test_an_id_counts_for_every_source(self, store: Store) -> None:
        await store.queue()
        await failed(store, 1)
        await store.engine.replay(TENANT, "q", FAILED, None, 9, replay_id="r")
        await store.ack(await store.claim_one())
        for source in (DONE, LOG):
            reply = await store.engine.replay(TENANT, "q", source, None, 9, replay_id="r")
            assert (reply.count, reply.skipped) == (0, 1)


class TestReplayFromLog(Conformance):
    """Log entries that the queue's filter takes and that are not live in it."""

    async def test_history_from_before_the_queue(self, store: Store) -> None:
        ids = await store.publish(*(msg(n=n) for n in range(4)))
        await store.queue(filter="n > 0")
        reply = await store.engine.replay(TENANT, "q", LOG, parse("n < 3"), 9)
        assert (reply.count, [s.message.id for s in reply.sample]) == (2, ids[1:3])
        assert ids_of(await store.claim(limit=9)) == ids[1:3]

    async def test_every_settled_state_comes_back_and_live_ones_stay(self, store: Store) -> None:
        await store.queue()
        now = store.clock.now()
        done, dead, purged, flight, waiting, delayed = await store.publish(
            *(msg(n=n) for n in range(5)), msg(n=5, deliver_at=now + 50)
        )
        await store.ack(await store.claim_one())
        await store.fail_one()
        await store.engine.purge(TENANT, "q", State.AVAILABLE, None, 1)
        held = await store.claim_one()
        assert held.message.id == flight
        reply = await store.engine.replay(TENANT, "q", LOG, None, 9)
        assert [s.message.id for s in reply.sample] == [done, dead, purged]
        assert await store.ids("q", State.AVAILABLE) == [done, dead, purged, waiting]
        assert await store.ids("q", State.DELAYED) == [delayed]
        assert (await store.ack(held)).ok
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.done, stats.failed) == (1, 0)

    @law("C3")
    async def test_deliver_at_still_holds(self, store: Store) -> None:
        due = store.clock.now() + 100
        (message_id,) = await store.publish(msg(deliver_at=due))
        await store.queue()
        await store.engine.replay(TENANT, "q", LOG, None, 9)
        assert await store.claim() == []
        (shown,) = await store.browse("q", State.DELAYED)
        assert (shown.message.id, shown.at) == (message_id, due)

    async def test_expired_ones_are_skipped(self, store: Store) -> None:
        await store.queue()
        await store.publish(msg(expires_at=store.clock.now() + 10))
        store.clock.advance(10)
        await store.claim()
        reply = await store.engine.replay(TENANT, "q", LOG, None, 9)
        assert (reply.count, reply.skipped) == (0, 1)
        assert (await store.engine.stats(TENANT, "q")).expired == 1

    async def test_what_is_not_routed_yet_is_not_replayed(self, store: Store) -> None:
        ids = await store.publish(*[b"x"] * 4)
        await store.queue(start=Start(Start.EARLIEST))
        assert (await store.engine.replay(TENANT, "q", LOG, None, 9)).count == 0
        await store.engine.route(TENANT, "q", 2)
        await store.engine.purge(TENANT, "q", State.AVAILABLE, None, 9)
        assert (await store.engine.replay(TENANT, "q", LOG, None, 9)).count == 2
        assert (await store.engine.route(TENANT, "q", 9)).assigned == 2
        assert await store.ids("q", State.AVAILABLE) == ids

    async def test_a_replaced_message_is_replayed_once_as_it_is_now(self, store: Store) -> None:
        await store.queue("keeper")
        await store.publish(msg(b"1", key="k", color="red"))
        (message_id,) = await store.publish(msg(b"2", key="k", color="blue"))
        await store.queue("red", "color = 'red'")
        await store.queue("blue", "color = 'blue'")
        assert (await store.engine.replay(TENANT, "red", LOG, None, 9)).count == 0
        assert (await store.engine.replay(TENANT, "blue", LOG, None, 9)).count == 1
        claimed = await store.claim("blue", 9)
        assert [(d.message.id, d.payload) for d in claimed] == [(message_id, b"2")]

    async def test_done_in_the_dead_letters_comes_back_to_the_queue(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await failed(store, 1)
        await store.ack(await store.claim_one("q.dlq"))
        assert (await store.engine.replay(TENANT, "q", LOG, None, 9)).count == 1
        assert await store.states(message_id) == {"q": State.AVAILABLE}
        assert (await store.engine.stats(TENANT, "q.dlq")).done == 0
