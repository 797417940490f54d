"""Histories: the lives of messages, of one or of all in a part of the log.

What is on record of a delivery stands in four places: the message itself says when it was
published, the attempts record who claimed it, the trail what ended that, and the done record
when it was acked. For many messages each place is read once, in order of message id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from penstock.model.columns import LogColumns
from penstock.model.delivery import Attempt, Event
from penstock.model.limits import MAX_PRIORITY
from penstock.model.message import Message
from penstock.model.states import State, Transition
from penstock.storage.keyvalue.browse import snapshots_of
from penstock.storage.keyvalue.keys import (
    EXPONENT_SHIFT,
    LANE_SPAN,
    NUMBER_MASK,
    message_id_of,
)
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.records import decode_attempts
from penstock.storage.keyvalue.settled import SettledShelf
from penstock.storage.keyvalue.trail import Mark, Trail

__all__ = ["Published", "histories_in", "history_in"]

#: What ends a grant and is kept in the trail.
_ENDINGS: Final = frozenset(
    {Transition.ACK, Transition.NACK, Transition.RELEASE, Transition.LAPSE, Transition.REJECT}
)


class Published:
    """Messages whose histories are read: when each was published and first due, and its lane."""

    __slots__ = ("ids", "lanes", "times")

    def __init__(self, columns: LogColumns) -> None:
        rows = zip(
            columns.id, columns.offset, columns.published_at, columns.deliver_at, strict=True
        )
        # A replacement's history is with the entry that it replaced.
        self.times = {number: (at, due) for number, offset, at, due in rows if number == offset}
        self.ids: Sequence[int] = list(self.times)
        self.lanes = sorted({MAX_PRIORITY - priority for priority in columns.priority})


def history_in(queue: Queue, message: Message) -> Iterator[Event]:
    """Every transition of one message in one queue that is still on record, in order."""
    place = next(snapshots_of(queue, message), None)
    if place is None:
        return
    attempts = queue.stage.get(queue.keys.attempts + message.id.to_bytes(8, "big"))
    done = place.state is State.DONE and place.at is not None
    yield from _life(
        queue,
        (message.published_at, message.deliver_at),
        attempts,
        queue.trail(message.id),
        (place.queue, place.at or 0) if done else None,
    )


def histories_in(queue: Queue, messages: Published) -> Iterator[tuple[int, list[Event]]]:
    """(message id, every transition on record) of those of the messages that the queue has."""
    if not messages.ids:
        return
    low, high = messages.ids[0], messages.ids[-1] + 1
    held = _held(queue, messages, low, high)
    if not held:
        return
    attempts = _by_id(queue, queue.keys.attempts, low, high)
    trails = _by_id(queue, queue.keys.trail, low, high)
    for message_id, done in held.items():
        times = messages.times.get(message_id)
        if times is not None:
            trail = Trail.decode(trails.get(message_id))
            yield message_id, list(_life(queue, times, attempts.get(message_id), trail, done))


def _held(
    queue: Queue, messages: Published, low: int, high: int
) -> dict[int, tuple[str, int] | None]:
    """The messages with low <= id < high that are in the queue, and where and when they were acked.

    In the order of ``snapshots_of``: what is live, done or expired, then the dead letters.
    """
    held: dict[int, tuple[str, int] | None] = {}
    base = queue.policy.bucket_size << EXPONENT_SHIFT
    for first in (lane * LANE_SPAN for lane in messages.lanes):
        start, end = base + first + low, base + first + high
        if queue.available_count:
            for entry in queue.shelf.walk(start - 1):
                if entry.claim_id >= end:
                    break
                held[entry.message_id] = None
        if queue.delayed_count:
            place = queue.keys.place
            span = (place + start.to_bytes(8, "big"), place + end.to_bytes(8, "big"))
            for key, _ in queue.stage.scan(*span):
                held[message_id_of(int.from_bytes(key[-8:], "big"))] = None
        if queue.done_count:
            for message_id, at in _settled(queue.done, first + low, first + high):
                held[message_id] = (queue.name, at)
        if queue.expired_count:
            for message_id, _ in _settled(queue.expired, first + low, first + high):
                held[message_id] = None
    for entry in queue.claims.values():
        if low <= entry.message_id < high:
            held[entry.message_id] = None
    if queue.dead is not None:
        for message_id, done in _held(queue.dead, messages, low, high).items():
            held.setdefault(message_id, done)
    return held


def _settled(shelf: SettledShelf, low: int, high: int) -> Iterator[tuple[int, int]]:
    for item in shelf.walk(low - 1):
        if item.claim_id & NUMBER_MASK >= high:
            return
        yield item.message_id, item.at


def _by_id(queue: Queue, prefix: bytes, low: int, high: int) -> Mapping[int, bytes]:
    pairs = queue.stage.scan(prefix + low.to_bytes(8, "big"), prefix + high.to_bytes(8, "big"))
    return {int.from_bytes(key[-8:], "big"): value for key, value in pairs}


def _life(
    queue: Queue,
    times: tuple[int, int],
    attempts: bytes | None,
    trail: Trail,
    done: tuple[str, int] | None,
) -> Iterator[Event]:
    published_at, deliver_at = times
    yield Event(
        at=published_at,
        queue=queue.name,
        transition=Transition.PUBLISH,
        state=State.DELAYED if deliver_at > published_at else State.AVAILABLE,
    )
    yield from _interleave(queue.name, decode_attempts(attempts), trail.marks)
    if done is not None:
        name, at = done
        yield Event(at=at, queue=name, transition=Transition.ACK, state=State.DONE)


def _interleave(queue: str, attempts: list[Attempt], marks: tuple[Mark, ...]) -> Iterator[Event]:
    """Grants and marks by time; what ended a grant comes between it and the next."""
    position = 0
    held = False
    for attempt in attempts:
        while position < len(marks) and marks[position].at <= attempt.claimed_at:
            ends = marks[position].transition in _ENDINGS
            if ends and not held:
                break
            held = held and not ends
            yield _event(queue, marks[position])
            position += 1
        yield Event(
            at=attempt.claimed_at,
            queue=queue,
            transition=Transition.CLAIM,
            state=State.IN_FLIGHT,
            consumer=attempt.consumer,
        )
        held = True
    for mark in marks[position:]:
        yield _event(queue, mark)


def _event(queue: str, mark: Mark) -> Event:
    return Event(
        at=mark.at,
        queue=queue,
        transition=mark.transition,
        state=mark.state,
        error=mark.error,
    )
