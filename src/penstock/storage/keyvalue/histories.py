"""Histories: the transitions of one message, or of all messages in a range of the log.

A delivery's history comes from four records: the message has the publish time, the attempts record
the grants, the trail what ended them, and the done record the ack. For many messages each kind of
record is read once, in order of message id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from penstock.model.columns import LogColumns
from penstock.model.delivery import Attempt, Event
from penstock.model.limits import (
    DLQ_SUFFIX,
    MAX_EVENT_ERROR_CHARS,
    MAX_HISTORY_EVENTS,
    MAX_PRIORITY,
)
from penstock.model.message import Message
from penstock.model.states import State, Transition
from penstock.storage.keyvalue.browse import snapshots_of
from penstock.storage.keyvalue.keys import (
    EXPONENT_SHIFT,
    LANE_SPAN,
    message_id_of,
)
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.records import decode_attempts
from penstock.storage.keyvalue.settled import SettledShelf
from penstock.storage.keyvalue.trail import Mark, Trail

__all__ = ["Place", "Published", "histories_in", "history_in", "transitions"]

#: Transitions in the trail that end a grant.
_ENDINGS: Final = frozenset(
    {Transition.ACK, Transition.NACK, Transition.RELEASE, Transition.LAPSE, Transition.REJECT}
)


class Published:
    """The messages whose histories are read: their publish and first due times, and lanes."""

    __slots__ = ("ids", "lanes", "times")

    def __init__(self, columns: LogColumns) -> None:
        rows = zip(
            columns.id, columns.offset, columns.published_at, columns.deliver_at, strict=True
        )
        # A replacement's history belongs to the entry that it replaced.
        self.times = {number: (at, due) for number, offset, at, due in rows if number == offset}
        self.ids: Sequence[int] = list(self.times)
        self.lanes = sorted({MAX_PRIORITY - priority for priority in columns.priority})


class Place(NamedTuple):
    """The state of a delivery, as far as its history depends on it."""

    dead: bool = False
    in_flight: bool = False
    done_at: int | None = None


def history_in(queue: Queue, message: Message) -> Iterator[Event]:
    """Every recorded transition of one message in one queue, in order."""
    shown = next(snapshots_of(queue, message), None)
    if shown is None:
        return
    place = Place(
        dead=shown.queue != queue.name,
        in_flight=shown.state is State.IN_FLIGHT,
        done_at=shown.at if shown.state is State.DONE else None,
    )
    attempts = queue.stage.get(queue.keys.attempts + message.id.to_bytes(8, "big"))
    times = (message.published_at, message.deliver_at)
    yield from transitions(queue, times, attempts, queue.trail(message.id), place)


def histories_in(queue: Queue, messages: Published) -> Iterator[tuple[int, list[Event]]]:
    """(message id, every recorded transition) of the messages that the queue has."""
    if not messages.ids:
        return
    low, high = messages.ids[0], messages.ids[-1] + 1
    places = _places(queue, messages, low, high)
    if not places:
        return
    attempts = _by_id(queue, queue.keys.attempts, low, high)
    trails = _by_id(queue, queue.keys.trail, low, high)
    for message_id, place in places.items():
        times = messages.times.get(message_id)
        if times is not None:
            trail = Trail.decode(trails.get(message_id))
            tried = attempts.get(message_id)
            yield message_id, list(transitions(queue, times, tried, trail, place))


def _places(queue: Queue, messages: Published, low: int, high: int) -> dict[int, Place]:
    """The states of the queue's messages with low <= id < high.

    In the order of ``snapshots_of``: live, done or expired, then dead letters.
    """
    places: dict[int, Place] = {}
    dead = queue.is_dead_letter
    waiting, in_flight = Place(dead), Place(dead, in_flight=True)
    base = queue.policy.bucket_size << EXPONENT_SHIFT
    for first in (lane * LANE_SPAN for lane in messages.lanes):
        start, end = base + first + low, base + first + high
        if queue.available_count:
            for entry in queue.shelf.walk(start - 1, end):
                places[entry.message_id] = waiting
        if queue.delayed_count:
            place = queue.keys.place
            span = (place + start.to_bytes(8, "big"), place + end.to_bytes(8, "big"))
            for key, _ in queue.stage.scan(*span):
                places[message_id_of(int.from_bytes(key[-8:], "big"))] = waiting
        if queue.done_count:
            for message_id, at in _settled(queue.done, first + low, first + high):
                places[message_id] = Place(dead, done_at=at)
        if queue.expired_count:
            for message_id, _ in _settled(queue.expired, first + low, first + high):
                places[message_id] = waiting
    if queue.positions is not None:
        for key in queue.positions.between(low, high):
            places[int.from_bytes(key[-8:], "big")] = waiting
    for entry in queue.claims.values():
        if low <= entry.message_id < high:
            places[entry.message_id] = in_flight
    if queue.dead is not None:
        for message_id, place_there in _places(queue.dead, messages, low, high).items():
            places.setdefault(message_id, place_there)
    return places


def _settled(shelf: SettledShelf, low: int, high: int) -> Iterator[tuple[int, int]]:
    for item in shelf.walk(low - 1, high):
        yield item.message_id, item.at


def _by_id(queue: Queue, prefix: bytes, low: int, high: int) -> Mapping[int, bytes]:
    pairs = queue.stage.scan(prefix + low.to_bytes(8, "big"), prefix + high.to_bytes(8, "big"))
    return {int.from_bytes(key[-8:], "big"): value for key, value in pairs}


def transitions(
    queue: Queue, times: tuple[int, int], attempts: bytes | None, trail: Trail, place: Place
) -> Iterator[Event]:
    """The history of a delivery whose message was published and first due at these times."""
    published_at, deliver_at = times
    yield Event(
        at=published_at,
        queue=queue.name,
        transition=Transition.PUBLISH,
        state=State.DELAYED if deliver_at > published_at else State.AVAILABLE,
    )
    backwards = _newest_first(queue.name, decode_attempts(attempts), trail.marks, place)
    yield from reversed(list(islice(backwards, MAX_HISTORY_EVENTS)))


def _newest_first(
    queue: str, attempts: list[Attempt], marks: Sequence[Mark], place: Place
) -> Iterator[Event]:
    """Grants and marks, newest first.

    The newest records are never cut off, so each ending belongs to the newest remaining grant.
    Times do not matter: several events may share one.
    """
    if place.in_flight and attempts:
        yield _claim(queue, attempts.pop(), dead=place.dead)
    if place.done_at is not None:
        acked = Mark(place.done_at, Transition.ACK, State.DONE, None, place.dead)
        marks = (*marks, acked)
    for mark in reversed(marks):
        if mark.transition not in _ENDINGS or not attempts:
            yield _event(queue, mark, None)
            continue
        attempt = attempts.pop()
        yield _event(queue, mark, attempt.consumer)
        yield _claim(queue, attempt, dead=mark.dead)
    while attempts:
        yield _claim(queue, attempts.pop(), dead=False)


def _claim(queue: str, attempt: Attempt, *, dead: bool) -> Event:
    return Event(
        at=attempt.claimed_at,
        queue=queue + DLQ_SUFFIX if dead else queue,
        transition=Transition.CLAIM,
        state=State.IN_FLIGHT,
        consumer=attempt.consumer,
    )


def _event(queue: str, mark: Mark, consumer: str | None) -> Event:
    return Event(
        at=mark.at,
        queue=queue + DLQ_SUFFIX if mark.dead else queue,
        transition=mark.transition,
        state=mark.state,
        consumer=consumer,
        error=None if mark.error is None else mark.error[:MAX_EVENT_ERROR_CHARS],
    )
