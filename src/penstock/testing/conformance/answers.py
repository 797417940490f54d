"""Replies of browsing, message, history and replay: every field and state, after every verb."""

from __future__ import annotations

import pytest

from penstock.model.delivery import ReplaySource, ResultStatus, Snapshot
from penstock.model.limits import MAX_ERROR_BYTES, MAX_EVENT_ERROR_CHARS, MAX_HISTORY_EVENTS
from penstock.model.message import Offset
from penstock.model.queue import Start
from penstock.model.states import State, Transition
from penstock.testing.conformance.harness import TENANT, Conformance, Store, msg
from penstock.testing.conformance.scenarios import (
    SCENARIOS,
    TICK,
    Actor,
    Scenario,
    Shown,
    events_of,
    play,
)
from penstock.testing.laws import law

__all__ = ["TestAnswers", "TestErrorsShown", "TestHistoryBounds", "TestReplaySample"]

T = Transition


def fields_of(snapshot: Snapshot) -> dict[str, object]:
    """The fields of a snapshot other than the message."""
    return {name: getattr(snapshot, name) for name in Shown._fields if name != "result"}


class TestAnswers(Conformance):
    """Every field in every state."""

    @law("D1")
    @pytest.mark.parametrize("name", SCENARIOS)
    async def test_each_field_after_each_verb(self, store: Store, name: str) -> None:
        scenario = SCENARIOS[name]
        actor = await play(store, scenario)
        await self._check(store, actor, scenario)
        if store.engine.capabilities.persistent:
            await store.reopen()
            await self._check(store, actor, scenario)

    async def _check(self, store: Store, actor: Actor, scenario: Scenario) -> None:
        await self._check_browsing(store, actor, scenario.shown)
        found = await store.engine.message(TENANT, actor.message_id)
        expected = scenario.shown.fields(actor.at)
        assert [fields_of(s) for s in found.deliveries] == [expected]
        await self._check_result(store, actor, scenario.shown)
        history = await store.engine.history(TENANT, actor.message_id)
        assert list(history) == events_of(actor, scenario)

    async def _check_browsing(self, store: Store, actor: Actor, shown: Shown) -> None:
        expected = [shown.fields(actor.at)]
        if shown.state is State.FAILED:
            expected.append({**expected[0], "queue": "q.dlq", "state": State.AVAILABLE})
        found = [
            snapshot
            for queue in ("q", "q.dlq")
            for state in State
            for snapshot in await store.browse(queue, state, payloads=True)
        ]
        assert [fields_of(s) for s in found] == expected
        assert {(s.message.id, s.payload) for s in found} == {(actor.message_id, b"body")}

    async def _check_result(self, store: Store, actor: Actor, shown: Shown) -> None:
        """A delivery in ``Q.dlq`` has failed in Q until it is acked."""
        found = {q: await store.engine.result(TENANT, q, actor.message_id) for q in ("q", "q.dlq")}
        status: ResultStatus | None = None
        if shown.state in (State.DONE, State.EXPIRED):
            status = ResultStatus(shown.state.value)
        elif shown.state is State.FAILED or shown.queue == "q.dlq":
            status = ResultStatus.FAILED
        if status is None:
            assert found == {"q": None, "q.dlq": None}
            return
        done = status is ResultStatus.DONE
        result = found["q"]
        assert result is not None
        assert (result.status, result.result) == (status, shown.result)
        assert (result.error, result.attempts) == (None if done else shown.error, shown.attempts)
        if shown.state is not State.DELAYED:  # A delayed dead letter shows when it is due.
            assert shown.at is not None
            assert result.at == actor.at(shown.at)
        assert found["q.dlq"] == (result if done and shown.queue == "q.dlq" else None)

    async def test_the_publish_of_a_queue_that_was_routed_later(self, store: Store) -> None:
        published_at = store.clock.now()
        (message_id,) = await store.publish(msg(deliver_at=published_at + 500))
        store.clock.advance(TICK)
        await store.queue(start=Start(Start.EARLIEST))
        await store.engine.route(TENANT, "q", 10)
        (event,) = await store.engine.history(TENANT, message_id)
        assert (event.at, event.state) == (published_at, State.DELAYED)
        (shown,) = await store.browse("q", State.AVAILABLE)
        assert shown.at is None

    async def test_the_publish_of_a_message_that_was_replaced(self, store: Store) -> None:
        await store.queue()
        await store.queue("red", "color = 'red'")
        published_at = store.clock.now()
        (message_id,) = await store.publish(msg(key="k"))
        store.clock.advance(TICK)
        assert await store.publish(msg(key="k", color="red")) == [message_id]
        events = await store.engine.history(TENANT, message_id)
        assert [(e.at, e.queue) for e in events] == [(published_at, "q"), (published_at, "red")]

    async def test_a_message_is_listed_by_the_names_it_is_shown_under(self, store: Store) -> None:
        """``q-a`` sorts between ``q`` and ``q.dlq``."""
        for name in ("q", "q-a"):
            await store.queue(name)
        (message_id,) = await store.publish(b"x")
        await store.fail_one("q")
        await store.claim_one("q.dlq")
        found = await store.engine.message(TENANT, message_id)
        assert [s.queue for s in found.deliveries] == ["q-a", "q.dlq"]

    async def test_read_history_by_queue_tells_queue_and_dead_letters_apart(
        self, store: Store
    ) -> None:
        actor = await play(store, SCENARIOS["dead letter nacked"])
        for queue in ("q", "q.dlq"):
            page = await store.engine.read_history(TENANT, Offset(0), 10, queue)
            expected = [
                e for e in events_of(actor, SCENARIOS["dead letter nacked"]) if e.queue == queue
            ]
            assert [entry.event for entry in page.entries] == expected


class TestErrorsShown(Conformance):
    """Errors are bounded, and the same everywhere."""

    @law("D1")
    @pytest.mark.parametrize(
        "error, kept",
        [
            ("x" * MAX_ERROR_BYTES, "x" * MAX_ERROR_BYTES),
            ("x" * (MAX_ERROR_BYTES + 1), "x" * (MAX_ERROR_BYTES - 3) + "…"),
            ("é" * MAX_ERROR_BYTES, "é" * ((MAX_ERROR_BYTES - 3) // 2) + "…"),
            ("half \ud800 a character", "half ? a character"),
            ("", ""),
        ],
        ids=["longest", "too long", "too long in bytes", "surrogate", "empty"],
    )
    @pytest.mark.parametrize("verb", ["nack", "reject"])
    async def test_an_error_is_cut(self, store: Store, verb: str, error: str, kept: str) -> None:
        await store.queue(max_attempts=1)
        (message_id,) = await store.publish(b"x")
        delivery = await store.claim_one()
        await (store.nack if verb == "nack" else store.reject)(delivery, error)
        (shown,) = await store.browse("q", State.FAILED)
        assert shown.error == kept
        event = (await store.engine.history(TENANT, message_id))[-1]
        assert event.error == kept[:MAX_EVENT_ERROR_CHARS]


class TestHistoryBounds(Conformance):
    """The newest transitions are kept."""

    async def test_the_newest_events_are_kept(self, store: Store) -> None:
        await store.queue(max_attempts=1000)
        (message_id,) = await store.publish(b"x")
        expected: list[tuple[object, ...]] = []
        for n in range(MAX_HISTORY_EVENTS // 2 + 20):
            store.clock.advance(1)
            delivery = await store.claim_one(consumer=f"c{n}")
            expected.append((store.clock.now(), T.CLAIM, State.IN_FLIGHT, f"c{n}", None))
            store.clock.advance(1)
            await store.nack(delivery, f"e{n}")
            expected.append((store.clock.now(), T.NACK, State.AVAILABLE, f"c{n}", f"e{n}"))
        publish, *events = await store.engine.history(TENANT, message_id)
        assert publish.transition is T.PUBLISH
        assert [(e.at, e.transition, e.state, e.consumer, e.error) for e in events] == expected[
            -MAX_HISTORY_EVENTS:
        ]

    async def test_events_at_one_moment_keep_their_order(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        for _ in range(3):
            await store.fail_one()
            await store.engine.replay(TENANT, "q", ReplaySource.FAILED, None, 1)
        await store.ack(await store.claim_one())
        events = await store.engine.history(TENANT, message_id)
        assert [e.transition for e in events] == [
            T.PUBLISH,
            *[T.CLAIM, T.REJECT, T.REPLAY] * 3,
            T.CLAIM,
            T.ACK,
        ]

    @law("D1")
    async def test_an_error_outlives_its_event(self, store: Store) -> None:
        await store.queue(max_attempts=1000)
        (message_id,) = await store.publish(b"x")
        await store.nack(await store.claim_one(), "the only one")
        for _ in range(MAX_HISTORY_EVENTS + 5):
            store.clock.advance(1)
            await store.nack(await store.claim_one())
        (shown,) = await store.browse("q", State.AVAILABLE)
        assert shown.error == "the only one"
        events = await store.engine.history(TENANT, message_id)
        assert len(events) == 1 + MAX_HISTORY_EVENTS
        assert {e.error for e in events} == {None}


class TestReplaySample(Conformance):
    """The sample shows deliveries as the replay leaves them, or would leave them."""

    @pytest.mark.parametrize("dry_run", [False, True], ids=["moved", "dry run"])
    @pytest.mark.parametrize("source", [ReplaySource.FAILED, ReplaySource.LOG])
    async def test_each_field_of_the_sample(
        self, store: Store, source: ReplaySource, dry_run: bool
    ) -> None:
        await store.queue()
        ids = await store.publish(b"x", b"y")
        for _ in ids:
            await store.fail_one()
        store.clock.advance(TICK)
        reply = await store.engine.replay(TENANT, "q", source, None, 10, rate=2, dry_run=dry_run)
        due_at = store.clock.now() + 500
        assert [fields_of(s) for s in reply.sample] == [
            shown.fields(int)
            for shown in (Shown("q", State.AVAILABLE), Shown("q", State.DELAYED, at=due_at))
        ]

    @pytest.mark.parametrize("dry_run", [False, True], ids=["moved", "dry run"])
    async def test_of_a_dead_letter_queue_from_done(self, store: Store, dry_run: bool) -> None:
        await store.queue()
        await store.publish(b"x")
        await store.fail_one()
        await store.ack(await store.claim_one("q.dlq"))
        store.clock.advance(TICK)
        reply = await store.engine.replay(
            TENANT, "q.dlq", ReplaySource.DONE, None, 10, dry_run=dry_run
        )
        (shown,) = reply.sample
        expected = Shown("q.dlq", State.AVAILABLE, at=store.clock.now(), error="broken")
        assert fields_of(shown) == expected.fields(int)
