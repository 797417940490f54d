"""Browsing: read deliveries by state or by message, consuming nothing."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from operator import itemgetter
from typing import Final, TypeVar, assert_never

from msgspec.structs import replace

from penstock.filters import Filter
from penstock.model.delivery import Page, Snapshot
from penstock.model.message import Message
from penstock.model.states import State
from penstock.storage.keyvalue.entry import Entry
from penstock.storage.keyvalue.keys import (
    EXPONENT_SHIFT,
    LANE_SPAN,
    LANES,
    NUMBER_MASK,
)
from penstock.storage.keyvalue.metadata import decode_metadata
from penstock.storage.keyvalue.payloads import read_payload
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.settled import Settled
from penstock.storage.keyvalue.trail import Trail

__all__ = [
    "MAX_SCAN",
    "SLICE_BYTES",
    "in_publish_order",
    "in_slice",
    "peek",
    "snapshots",
    "snapshots_of",
]

S = TypeVar("S", Snapshot, Snapshot | None)

#: The most deliveries that one page examines, in slices.
MAX_SCAN: Final = 10_000
#: Payloads that are read in one slice: some milliseconds. One alone may be larger.
SLICE_BYTES: Final = 2 * 1024 * 1024
#: Headers that are decoded in one slice: some milliseconds.
_SLICE_HEADERS: Final = 1_000


def peek(
    queue: Queue,
    state: State,
    where: Filter | None,
    limit: int,
    cursor: str | None,
    scan: int,
    *,
    payloads: bool,
) -> Page:
    """A page of the deliveries in ``state``, in claim order; examines at most ``scan``.

    The page also ends after ``SLICE_BYTES`` of payloads, and after as many headers as one slice
    decodes.
    """
    after = -1 if cursor is None else int(cursor, 16)
    items: list[Snapshot] = []
    position = after
    remaining, headers = SLICE_BYTES, _SLICE_HEADERS
    for looked, (number, snapshot) in enumerate(snapshots(queue, state, after)):
        if len(items) == limit or looked == scan or remaining < 0 or headers < 0:
            return Page(tuple(items), f"{position:x}")
        position = number
        headers -= len(snapshot.message.headers)
        if where is None or where.matches(snapshot.message):
            if payloads:
                remaining -= snapshot.message.size
            items.append(_with_payload(queue, snapshot) if payloads else snapshot)
    return Page(tuple(items), None)


def snapshots(
    queue: Queue, state: State, after: int, before: int = NUMBER_MASK
) -> Iterator[tuple[int, Snapshot]]:
    """(number, snapshot) of deliveries with after < number < before, in order."""
    base = queue.policy.bucket_size << EXPONENT_SHIFT
    start = -1 if after < 0 else base + after
    end = base + before
    match state:
        case State.AVAILABLE:
            for entry in queue.shelf.walk(start, end):
                yield entry.claim_id & NUMBER_MASK, _waiting(queue, entry, state)
        case State.IN_FLIGHT:
            for entry in queue.shelf.walk_held(start, end):
                yield entry.claim_id & NUMBER_MASK, _held(queue, entry)
        case State.DELAYED:
            first = queue.keys.place + (start + 1).to_bytes(8, "big")
            for key, _ in queue.stage.scan(first, queue.keys.place + end.to_bytes(8, "big")):
                found = queue.find_delayed(int.from_bytes(key[-8:], "big"))
                assert found is not None
                due_at, entry = found
                number = entry.claim_id & NUMBER_MASK
                yield number, _waiting(queue, entry, state, at=due_at)
        case State.DONE:
            for item in queue.done.walk(after, before):
                yield item.claim_id & NUMBER_MASK, _settled(queue, item, state)
        case State.EXPIRED:
            for item in queue.expired.walk(after, before):
                yield item.claim_id & NUMBER_MASK, _settled(queue, item, state)
        case State.FAILED:
            if queue.dead is not None:
                for entry in queue.dead.shelf.walk(start, end):
                    yield entry.claim_id & NUMBER_MASK, _failed(queue, entry)
        case _:
            assert_never(state)


def in_slice(found: Iterator[tuple[int, S]], most: int) -> tuple[list[tuple[int, S]], bool]:
    """The next deliveries, as many as one slice processes; and whether there may be more."""
    some: list[tuple[int, S]] = []
    headers = _SLICE_HEADERS
    for pair in found:
        some.append(pair)
        if pair[1] is not None:
            headers -= len(pair[1].message.headers)
        if len(some) == most or headers < 0:
            return some, True
    return some, False


def in_publish_order(queue: Queue, state: State, after: int) -> Iterator[tuple[int, Snapshot]]:
    """(message id, snapshot) of deliveries with an id above ``after``, of any priority."""
    return merge(*(_lane(queue, state, lane, after) for lane in range(LANES)), key=itemgetter(0))


def _lane(queue: Queue, state: State, lane: int, after: int) -> Iterator[tuple[int, Snapshot]]:
    base = lane * LANE_SPAN
    for number, snapshot in snapshots(queue, state, base + after, base + LANE_SPAN):
        yield number - base, snapshot


def snapshots_of(queue: Queue, message: Message) -> Iterator[Snapshot]:
    """The delivery of a message in a queue or its dead-letter queue: at most one.

    If it is in flight, it has the receipt of the claim.
    """
    claim_id = queue.claim_id(message.priority, message.id)
    found = _live(queue, claim_id)
    if found is not None:
        yield found
        return
    for shelf, state in ((queue.done, State.DONE), (queue.expired, State.EXPIRED)):
        item = shelf.find(message.priority, message.id)
        if item is not None:
            yield _settled(queue, item, state)
            return
    if queue.dead is None:
        return
    entry = queue.dead.shelf.find(claim_id)
    if entry is not None:
        yield _failed(queue, entry)
        return
    yield from snapshots_of(queue.dead, message)


def _live(queue: Queue, claim_id: int) -> Snapshot | None:
    held = queue.shelf.held(claim_id)
    if held is not None:
        return _held(queue, held, receipt=True)
    delayed = queue.find_delayed(claim_id)
    if delayed is not None:
        return _waiting(queue, delayed[1], State.DELAYED, at=delayed[0])
    waiting = queue.shelf.find(claim_id)
    return None if waiting is None else _waiting(queue, waiting, State.AVAILABLE)


def _waiting(queue: Queue, entry: Entry, state: State, at: int | None = None) -> Snapshot:
    dead = queue.is_dead_letter
    # A delivery without grants has no trail, unless it was replayed within the dead-letter queue.
    trail = queue.trail(entry.message_id) if dead or entry.attempts else Trail()
    return Snapshot(
        queue=queue.name,
        message=entry.message,
        state=state,
        attempts=entry.attempts,
        released=0 if dead else trail.released,
        at=entry.at if dead and at is None else at,
        error=trail.last_error,
    )


def _failed(queue: Queue, entry: Entry) -> Snapshot:
    """A dead letter as a failed delivery of its parent queue."""
    assert queue.dead is not None
    shown = _waiting(queue.dead, entry, State.FAILED)
    return replace(shown, queue=queue.name)


def _held(queue: Queue, entry: Entry, *, receipt: bool = False) -> Snapshot:
    dead = queue.is_dead_letter
    # A first grant has no trail: there was no earlier transition.
    trail = queue.trail(entry.message_id) if dead or entry.attempts > 1 else Trail()
    return Snapshot(
        queue=queue.name,
        message=entry.message,
        state=State.IN_FLIGHT,
        attempts=entry.attempts,
        at=entry.at if dead else None,
        claimed_at=entry.claimed_at,
        lease_deadline=entry.deadline,
        consumer=entry.consumer,
        error=trail.last_error,
        released=trail.released,
        receipt=entry.receipt if receipt else None,
    )


def _settled(queue: Queue, item: Settled, state: State) -> Snapshot:
    return Snapshot(
        queue=queue.name,
        message=decode_metadata(item.message_id, item.metadata),
        state=state,
        attempts=item.attempts,
        at=item.at,
        error=queue.trail(item.message_id).last_error if item.attempts else None,
    )


def _with_payload(queue: Queue, snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, payload=read_payload(queue.stage.get, snapshot.message))
