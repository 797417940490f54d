"""Sequences of steps on a delivery, and what browsing, message and history must show afterwards.

A *scenario* is a list of steps on one message in its own queue. Time is counted in ticks of one
second: the message is published at tick 0, and each step happens one tick after the previous one
unless it says otherwise. The expected fields are spelled out, so every engine must show the same
ones, before and after it is reopened.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.model.delivery import Delivery, Event, ReplaySource
from penstock.model.message import MessageId
from penstock.model.states import State, Transition
from penstock.testing.conformance.harness import TENANT, Store, msg

__all__ = ["SCENARIOS", "TICK", "Actor", "Scenario", "Shown", "events_of", "play"]

TICK: Final = 1_000
#: The lease of a claim in ticks: a lapse is five ticks after the claim.
LEASE: Final = 5
#: The tick at which a message with a delay is due, or one with a ttl expires.
LATER: Final = 30
LEASE_EXPIRED: Final = "lease expired"

A, I, D = State.AVAILABLE, State.IN_FLIGHT, State.DELAYED  # noqa: E741
DONE, FAILED, EXPIRED = State.DONE, State.FAILED, State.EXPIRED
T = Transition


class Actor:
    """Runs the steps of one scenario."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.born = store.clock.now()
        self.claimed: Delivery | None = None
        self.message_id = MessageId(0)

    def at(self, ticks: int) -> int:
        return self.born + ticks * TICK

    @property
    def delivery(self) -> Delivery:
        assert self.claimed is not None
        return self.claimed

    async def pass_time(self, ticks: int, queue: str) -> None:
        """Move the clock, and let time take effect in the queue."""
        self.store.clock.advance(ticks * TICK)
        await self.store.claim(queue, 0)


Step: TypeAlias = Callable[[Actor], Coroutine[Any, Any, object]]


def claim(consumer: str, queue: str = "q") -> Step:
    async def step(actor: Actor) -> None:
        actor.store.clock.advance(TICK)
        actor.claimed = await actor.store.claim_one(queue, consumer=consumer, lease_ms=LEASE * TICK)

    return step


def claim_dead(consumer: str) -> Step:
    return claim(consumer, "q.dlq")


def _settling(
    settle: Callable[[Store, Delivery], Coroutine[Any, Any, object]],
) -> Step:
    async def step(actor: Actor) -> None:
        actor.store.clock.advance(TICK)
        await settle(actor.store, actor.delivery)

    return step


def ack(result: bytes | None = None) -> Step:
    return _settling(lambda store, delivery: store.ack(delivery, result))


def nack(error: str | None = None, delay: int | None = None) -> Step:
    delay_ms = None if delay is None else delay * TICK
    return _settling(lambda store, delivery: store.nack(delivery, error, delay_ms))


def reject(error: str | None = None) -> Step:
    return _settling(lambda store, delivery: store.reject(delivery, error))


def release() -> Step:
    return _settling(lambda store, delivery: store.release(delivery))


def extend(ticks: int) -> Step:
    return _settling(lambda store, delivery: store.extend(delivery, ticks * TICK))


def lapse(queue: str = "q") -> Step:
    return lambda actor: actor.pass_time(LEASE, queue)


def wait(ticks: int, queue: str = "q") -> Step:
    return lambda actor: actor.pass_time(ticks, queue)


def replay(source: ReplaySource, queue: str = "q") -> Step:
    async def step(actor: Actor) -> None:
        actor.store.clock.advance(TICK)
        reply = await actor.store.engine.replay(TENANT, queue, source, None, 10)
        assert reply.count == 1

    return step


def purge(state: State) -> Step:
    async def step(actor: Actor) -> None:
        actor.store.clock.advance(TICK)
        assert (await actor.store.engine.purge(TENANT, "q", state, None, 10)).count == 1

    return step


class Shown(NamedTuple):
    """The fields of one delivery; times are ticks."""

    queue: str
    state: State
    attempts: int = 0
    released: int = 0
    at: int | None = None
    claimed_at: int | None = None
    lease_deadline: int | None = None
    consumer: str | None = None
    error: str | None = None
    result: bytes | None = None

    def fields(self, at: Callable[[int], int]) -> dict[str, object]:
        """The fields of the snapshot; ``at`` converts a tick to a time."""
        fields = self._asdict()
        del fields["result"]
        for name in ("at", "claimed_at", "lease_deadline"):
            fields[name] = None if fields[name] is None else at(fields[name])
        return fields


class Happened(NamedTuple):
    """The fields of one event after the publish; the time is a tick."""

    at: int
    queue: str
    transition: Transition
    state: State
    consumer: str | None = None
    error: str | None = None


class Scenario(NamedTuple):
    """Steps, and the expected fields and events."""

    steps: Sequence[Step]
    shown: Shown
    history: Sequence[Happened] = ()
    delay: int | None = None
    ttl: int | None = None
    max_attempts: int = 5


CLAIM = Happened(1, "q", T.CLAIM, I, "ann")
REJECT = Happened(2, "q", T.REJECT, FAILED, "ann", "bad")
DEAD_CLAIM = Happened(3, "q.dlq", T.CLAIM, I, "medic")
#: Steps that lead into the dead-letter queue.
FAIL = (claim("ann"), reject("bad"))
DEAD = (*FAIL, claim_dead("medic"))
DEAD_HISTORY = (CLAIM, REJECT, DEAD_CLAIM)

SCENARIOS: Final = {
    "available": Scenario([], Shown("q", A)),
    "delayed": Scenario([], Shown("q", D, at=LATER), delay=LATER),
    "due": Scenario([wait(LATER)], Shown("q", A), delay=LATER),
    "claimed": Scenario([claim("ann")], Shown("q", I, 1, 0, None, 1, 6, "ann"), [CLAIM]),
    "extended": Scenario(
        [claim("ann"), extend(9)], Shown("q", I, 1, 0, None, 1, 11, "ann"), [CLAIM]
    ),
    "acked": Scenario(
        [claim("ann"), ack()],
        Shown("q", DONE, 1, at=2),
        [CLAIM, Happened(2, "q", T.ACK, DONE, "ann")],
    ),
    "acked with a result": Scenario(
        [claim("ann"), ack(b"ok")],
        Shown("q", DONE, 1, at=2, result=b"ok"),
        [CLAIM, Happened(2, "q", T.ACK, DONE, "ann")],
    ),
    "nacked": Scenario(
        [claim("ann"), nack("e1")],
        Shown("q", A, 1, error="e1"),
        [CLAIM, Happened(2, "q", T.NACK, A, "ann", "e1")],
    ),
    "nacked with a delay": Scenario(
        [claim("ann"), nack("e1", 7)],
        Shown("q", D, 1, at=9, error="e1"),
        [CLAIM, Happened(2, "q", T.NACK, D, "ann", "e1")],
    ),
    "nacked with a delay, and due": Scenario(
        [claim("ann"), nack("e1", 7), wait(7)],
        Shown("q", A, 1, error="e1"),
        [CLAIM, Happened(2, "q", T.NACK, D, "ann", "e1")],
    ),
    "nacked without an error after one with": Scenario(
        [claim("ann"), nack("e1"), claim("bob"), nack()],
        Shown("q", A, 2, error="e1"),
        [
            CLAIM,
            Happened(2, "q", T.NACK, A, "ann", "e1"),
            Happened(3, "q", T.CLAIM, I, "bob"),
            Happened(4, "q", T.NACK, A, "bob"),
        ],
    ),
    "acked after a nack": Scenario(
        [claim("ann"), nack("e1"), claim("bob"), ack()],
        Shown("q", DONE, 2, at=4, error="e1"),
        [
            CLAIM,
            Happened(2, "q", T.NACK, A, "ann", "e1"),
            Happened(3, "q", T.CLAIM, I, "bob"),
            Happened(4, "q", T.ACK, DONE, "bob"),
        ],
    ),
    "released": Scenario(
        [claim("ann"), release()],
        Shown("q", A, 1, 1),
        [CLAIM, Happened(2, "q", T.RELEASE, A, "ann")],
    ),
    "claimed after a release": Scenario(
        [claim("ann"), release(), claim("bob")],
        Shown("q", I, 2, 1, None, 3, 8, "bob"),
        [CLAIM, Happened(2, "q", T.RELEASE, A, "ann"), Happened(3, "q", T.CLAIM, I, "bob")],
    ),
    "lapsed": Scenario(
        [claim("ann"), lapse()],
        Shown("q", A, 1),
        [CLAIM, Happened(6, "q", T.LAPSE, A, "ann")],
    ),
    "claimed after a lapse": Scenario(
        [claim("ann"), lapse(), claim("bob")],
        Shown("q", I, 2, 0, None, 7, 12, "bob"),
        [CLAIM, Happened(6, "q", T.LAPSE, A, "ann"), Happened(7, "q", T.CLAIM, I, "bob")],
    ),
    "rejected": Scenario(FAIL, Shown("q", FAILED, 1, at=2, error="bad"), [CLAIM, REJECT]),
    "rejected without an error after a nack with": Scenario(
        [claim("ann"), nack("e1"), claim("bob"), reject()],
        Shown("q", FAILED, 2, at=4, error="e1"),
        [
            CLAIM,
            Happened(2, "q", T.NACK, A, "ann", "e1"),
            Happened(3, "q", T.CLAIM, I, "bob"),
            Happened(4, "q", T.REJECT, FAILED, "bob"),
        ],
    ),
    "nacked for the last time": Scenario(
        [claim("ann"), nack("e1")],
        Shown("q", FAILED, 1, at=2, error="e1"),
        [CLAIM, Happened(2, "q", T.NACK, FAILED, "ann", "e1")],
        max_attempts=1,
    ),
    "lapsed for the last time": Scenario(
        [claim("ann"), lapse()],
        Shown("q", FAILED, 1, at=6, error=LEASE_EXPIRED),
        [CLAIM, Happened(6, "q", T.LAPSE, FAILED, "ann", LEASE_EXPIRED)],
        max_attempts=1,
    ),
    "expired while available": Scenario(
        [wait(LATER)],
        Shown("q", EXPIRED, at=LATER),
        [Happened(LATER, "q", T.EXPIRE, EXPIRED)],
        ttl=LATER,
    ),
    "expired while delayed": Scenario(
        [wait(LATER)],
        Shown("q", EXPIRED, at=LATER),
        [Happened(LATER, "q", T.EXPIRE, EXPIRED)],
        ttl=LATER,
        delay=LATER + 1,
    ),
    "expired after a nack": Scenario(
        [claim("ann"), nack("e1"), wait(LATER)],
        Shown("q", EXPIRED, 1, at=LATER + 2, error="e1"),
        [CLAIM, Happened(2, "q", T.NACK, A, "ann", "e1"), Happened(32, "q", T.EXPIRE, EXPIRED)],
        ttl=LATER,
    ),
    "expired by a nack": Scenario(
        [claim("ann"), nack("e1")],
        Shown("q", EXPIRED, 1, at=2, error="e1"),
        [CLAIM, Happened(2, "q", T.NACK, EXPIRED, "ann", "e1")],
        ttl=2,
    ),
    "expired by a release": Scenario(
        [claim("ann"), release()],
        Shown("q", EXPIRED, 1, at=2),
        [CLAIM, Happened(2, "q", T.RELEASE, EXPIRED, "ann")],
        ttl=2,
    ),
    "expired by a lapse": Scenario(
        [claim("ann"), lapse()],
        Shown("q", EXPIRED, 1, at=6),
        [CLAIM, Happened(6, "q", T.LAPSE, EXPIRED, "ann")],
        ttl=3,
    ),
    "dead letter claimed": Scenario(
        DEAD, Shown("q.dlq", I, 2, 0, 2, 3, 8, "medic", "bad"), DEAD_HISTORY
    ),
    "dead letter extended": Scenario(
        [*DEAD, extend(9)], Shown("q.dlq", I, 2, 0, 2, 3, 13, "medic", "bad"), DEAD_HISTORY
    ),
    "dead letter nacked": Scenario(
        [*DEAD, nack("worse")],
        Shown("q", FAILED, 2, at=2, error="worse"),
        [*DEAD_HISTORY, Happened(4, "q.dlq", T.NACK, A, "medic", "worse")],
    ),
    "dead letter nacked without an error": Scenario(
        [*DEAD, nack()],
        Shown("q", FAILED, 2, at=2, error="bad"),
        [*DEAD_HISTORY, Happened(4, "q.dlq", T.NACK, A, "medic")],
    ),
    "dead letter nacked with a delay": Scenario(
        [*DEAD, nack("worse", 7)],
        Shown("q.dlq", D, 2, at=11, error="worse"),
        [*DEAD_HISTORY, Happened(4, "q.dlq", T.NACK, D, "medic", "worse")],
    ),
    "dead letter nacked with a delay, and due": Scenario(
        [*DEAD, nack("worse", 7), wait(7, "q.dlq")],
        Shown("q", FAILED, 2, at=2, error="worse"),
        [*DEAD_HISTORY, Happened(4, "q.dlq", T.NACK, D, "medic", "worse")],
    ),
    "dead letter rejected": Scenario(
        [*DEAD, reject("worse")],
        Shown("q", FAILED, 2, at=2, error="worse"),
        [*DEAD_HISTORY, Happened(4, "q.dlq", T.REJECT, A, "medic", "worse")],
    ),
    "dead letter released": Scenario(
        [*DEAD, release()],
        Shown("q", FAILED, 2, at=2, error="bad"),
        [*DEAD_HISTORY, Happened(4, "q.dlq", T.RELEASE, A, "medic")],
    ),
    "dead letter claimed after a release": Scenario(
        [*DEAD, release(), claim_dead("surgeon")],
        Shown("q.dlq", I, 3, 1, 2, 5, 10, "surgeon", "bad"),
        [
            *DEAD_HISTORY,
            Happened(4, "q.dlq", T.RELEASE, A, "medic"),
            Happened(5, "q.dlq", T.CLAIM, I, "surgeon"),
        ],
    ),
    "dead letter lapsed": Scenario(
        [*DEAD, lapse("q.dlq")],
        Shown("q", FAILED, 2, at=2, error="bad"),
        [*DEAD_HISTORY, Happened(8, "q.dlq", T.LAPSE, A, "medic")],
    ),
    "dead letter acked": Scenario(
        [*DEAD, ack(b"mended")],
        Shown("q.dlq", DONE, 2, at=4, error="bad", result=b"mended"),
        [*DEAD_HISTORY, Happened(4, "q.dlq", T.ACK, DONE, "medic")],
    ),
    "replayed from failed": Scenario(
        [*FAIL, replay(ReplaySource.FAILED)],
        Shown("q", A),
        [CLAIM, REJECT, Happened(3, "q", T.REPLAY, A)],
    ),
    "replayed from failed by its dead-letter queue": Scenario(
        [*FAIL, replay(ReplaySource.FAILED, "q.dlq")],
        Shown("q", A),
        [CLAIM, REJECT, Happened(3, "q", T.REPLAY, A)],
    ),
    "claimed after a replay": Scenario(
        [*FAIL, replay(ReplaySource.FAILED), claim("bob")],
        Shown("q", I, 1, 0, None, 4, 9, "bob"),
        [CLAIM, REJECT, Happened(3, "q", T.REPLAY, A), Happened(4, "q", T.CLAIM, I, "bob")],
    ),
    "failed again after a replay": Scenario(
        [*FAIL, replay(ReplaySource.FAILED), claim("bob"), reject()],
        Shown("q", FAILED, 1, at=5),
        [
            CLAIM,
            REJECT,
            Happened(3, "q", T.REPLAY, A),
            Happened(4, "q", T.CLAIM, I, "bob"),
            Happened(5, "q", T.REJECT, FAILED, "bob"),
        ],
    ),
    "replayed from done": Scenario(
        [claim("ann"), ack(b"ok"), replay(ReplaySource.DONE)],
        Shown("q", A),
        [CLAIM, Happened(2, "q", T.ACK, DONE, "ann"), Happened(3, "q", T.REPLAY, A)],
    ),
    "replayed from the log when done": Scenario(
        [claim("ann"), ack(b"ok"), replay(ReplaySource.LOG)],
        Shown("q", A),
        [CLAIM, Happened(2, "q", T.ACK, DONE, "ann"), Happened(3, "q", T.REPLAY, A)],
    ),
    "replayed from the log when failed": Scenario(
        [*FAIL, replay(ReplaySource.LOG)],
        Shown("q", A),
        [CLAIM, REJECT, Happened(3, "q", T.REPLAY, A)],
    ),
    "replayed from the log when purged": Scenario(
        [purge(A), replay(ReplaySource.LOG)],
        Shown("q", A),
        [Happened(2, "q", T.REPLAY, A)],
    ),
    "dead letter replayed from done": Scenario(
        [*DEAD, ack(b"mended"), replay(ReplaySource.DONE, "q.dlq")],
        Shown("q", FAILED, 0, at=5, error="bad"),
        [
            *DEAD_HISTORY,
            Happened(4, "q.dlq", T.ACK, DONE, "medic"),
            Happened(5, "q.dlq", T.REPLAY, A),
        ],
    ),
    "dead letter claimed after a replay from done": Scenario(
        [*DEAD, ack(), replay(ReplaySource.DONE, "q.dlq"), claim_dead("surgeon")],
        Shown("q.dlq", I, 1, 0, 5, 6, 11, "surgeon", "bad"),
        [
            *DEAD_HISTORY,
            Happened(4, "q.dlq", T.ACK, DONE, "medic"),
            Happened(5, "q.dlq", T.REPLAY, A),
            Happened(6, "q.dlq", T.CLAIM, I, "surgeon"),
        ],
    ),
    "dead letter replayed from the log when done": Scenario(
        [*DEAD, ack(b"mended"), replay(ReplaySource.LOG), claim("bob")],
        Shown("q", I, 1, 0, None, 6, 11, "bob"),
        [
            *DEAD_HISTORY,
            Happened(4, "q.dlq", T.ACK, DONE, "medic"),
            Happened(5, "q", T.REPLAY, A),
            Happened(6, "q", T.CLAIM, I, "bob"),
        ],
    ),
}


async def play(store: Store, scenario: Scenario) -> Actor:
    """Publish the message, and run the steps."""
    await store.queue(max_attempts=scenario.max_attempts)
    actor = Actor(store)
    (actor.message_id,) = await store.publish(
        msg(
            b"body",
            deliver_at=None if scenario.delay is None else actor.at(scenario.delay),
            expires_at=None if scenario.ttl is None else actor.at(scenario.ttl),
        )
    )
    for step in scenario.steps:
        await step(actor)
    return actor


def events_of(actor: Actor, scenario: Scenario) -> list[Event]:
    """The whole expected history, including the publish."""
    state = A if scenario.delay is None else D
    publish = Event(at=actor.born, queue="q", transition=T.PUBLISH, state=state)
    return [
        publish,
        *(
            Event(
                at=actor.at(happened.at),
                queue=happened.queue,
                transition=happened.transition,
                state=happened.state,
                consumer=happened.consumer,
                error=happened.error,
            )
            for happened in scenario.history
        ),
    ]
