"""Browses a whole queue page by page, and finds single deliveries again.

A *place* is a queue or its dead-letter queue, and a state: what one ``peek`` shows. A scan
keeps eight bytes per delivery: its message id, in claim order. It also keeps the cursors of
the pages, so that finding a suspect again takes one more page, and not another scan.

Places are browsed against the flow, settled ones first. So a delivery that moves meanwhile is
missed at worst, and not seen twice.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Iterator
from heapq import merge
from typing import Final

from msgspec import Struct

from penstock.model.delivery import Page, Snapshot
from penstock.model.limits import DLQ_SUFFIX, MAX_PRIORITY
from penstock.model.message import Message
from penstock.model.states import State
from penstock.verify.inspection import PAGE, Damaged, Gone, Inspection, Missing

__all__ = [
    "Place",
    "Scan",
    "Scans",
    "Turn",
    "browse",
    "failed_place",
    "find",
    "find_many",
    "home_of",
    "peek",
    "place_of",
    "places_of",
    "rank_of",
    "tally_ids",
]

#: Pages read to find one delivery again; new ones may have come before it.
_MAX_TURNS: Final = 20
#: Message ids compared before other tasks get their turn.
_TURN: Final = 10_000
#: Above every message id.
_LANE: Final = 10**18


class Place(Struct, frozen=True):
    """A queue and a state, which ``peek`` can show."""

    queue: str
    state: State

    def __str__(self) -> str:
        return f"{self.state.value} in {self.queue!r}"


def home_of(queue: str) -> str:
    """The queue of a dead-letter queue; any other queue itself."""
    return queue.removesuffix(DLQ_SUFFIX)


def failed_place(home: str) -> Place:
    """The place where the failed deliveries of a queue can be claimed (D1)."""
    return Place(home + DLQ_SUFFIX, State.AVAILABLE)


def places_of(home: str) -> tuple[Place, ...]:
    """All places of a queue, each delivery in exactly one, against the flow."""
    dead = home + DLQ_SUFFIX
    return (
        Place(home, State.DONE),
        Place(home, State.EXPIRED),
        Place(dead, State.DONE),
        Place(dead, State.IN_FLIGHT),
        Place(dead, State.AVAILABLE),
        Place(dead, State.DELAYED),
        Place(home, State.IN_FLIGHT),
        Place(home, State.AVAILABLE),
        Place(home, State.DELAYED),
    )


def place_of(snapshot: Snapshot) -> Place:
    """The place of a delivery; what failed in Q is available in ``Q.dlq``."""
    if snapshot.state is State.FAILED:
        return failed_place(home_of(snapshot.queue))
    return Place(snapshot.queue, snapshot.state)


def rank_of(message: Message) -> int:
    """The message's position in claim order (C4)."""
    return (MAX_PRIORITY - message.priority) * _LANE + message.id


class Scan:
    """The deliveries seen at one place."""

    def __init__(self, place: Place, *, moves_back: bool = False) -> None:
        self.place = place
        #: Whether retries wait behind other deliveries, so that ranks are in no order.
        self.moves_back = moves_back
        self.count = 0
        #: Whether the whole place could be read.
        self.complete = False
        self._lanes: dict[int, array[int]] = {}
        #: (rank of the delivery before the page, the page's cursor).
        self._pages: list[tuple[int, str | None]] = []

    def begin_page(self, before: int, cursor: str | None) -> None:
        """Begin a page, after the delivery of rank ``before``."""
        self._pages.append((before, cursor))

    def add(self, message: Message) -> None:
        """Add one delivery."""
        self.count += 1
        lane = self._lanes.get(message.priority)
        if lane is None:
            lane = self._lanes[message.priority] = array("Q")
        if lane and message.id < lane[-1]:
            # The order is wrong, which C4 reports; here it only has to be found again.
            lane.insert(bisect_left(lane, message.id), message.id)
        else:
            lane.append(message.id)

    def __contains__(self, message: Message) -> bool:
        lane = self._lanes.get(message.priority)
        if lane is None:
            return False
        position = bisect_left(lane, message.id)
        return position < len(lane) and lane[position] == message.id

    def ids(self) -> Iterator[int]:
        """Every message id, in order."""
        return merge(*self._lanes.values())

    def page_of(self, rank: int) -> tuple[int, str | None]:
        """The page with a delivery of that rank: the rank before the page, and its cursor."""
        if self.moves_back:
            return -1, None
        position = bisect_left(self._pages, rank, key=lambda page: page[0]) - 1
        return self._pages[position] if position >= 0 else (-1, None)


class Scans:
    """The deliveries seen in one queue and its dead-letter queue."""

    def __init__(self, home: str, *, moves_back: bool = False) -> None:
        self.home = home
        waiting = (Place(home, State.AVAILABLE), Place(home, State.DELAYED)) if moves_back else ()
        self.by_place = {
            place: Scan(place, moves_back=place in waiting) for place in places_of(home)
        }
        #: Seen as failed in the queue itself; must equal its dead letters.
        self.failed = Scan(Place(home, State.FAILED))

    @property
    def complete(self) -> bool:
        """Whether every place could be read to its end."""
        return all(scan.complete for scan in self.by_place.values())

    @property
    def count(self) -> int:
        """The number of deliveries seen."""
        return sum(scan.count for scan in self.by_place.values())

    def of(self, place: Place) -> Scan:
        """The scan of a place."""
        if place == self.failed.place:
            return self.failed
        return self.by_place.get(place) or Scan(place)

    def where(self, message: Message) -> list[Place]:
        """The places where a message was seen."""
        return [place for place, scan in self.by_place.items() if message in scan]


class Turn(Struct, frozen=True):
    """One page, and its position."""

    before: int
    """The rank of the delivery before it; -1 if there is none."""
    cursor: str | None
    page: Page | Missing
    """Missing: there are no more pages, for this reason."""


async def peek(
    work: Inspection,
    place: Place,
    cursor: str | None,
    *,
    limit: int = PAGE,
    payloads: bool = False,
) -> Page | Missing:
    """One page of a place."""
    call = work.store.peek(place.queue, place.state, limit=limit, cursor=cursor, payloads=payloads)
    return await work.look(call)


async def browse(work: Inspection, place: Place) -> AsyncIterator[Turn]:
    """The pages of a place.

    Around damage it reads one delivery at a time, so that all before it are seen.
    """
    cursor: str | None = None
    before, singly = -1, 0
    while True:
        limit = 1 if singly else PAGE
        page = await peek(work, place, cursor, limit=limit)
        if isinstance(page, Damaged) and not singly:
            singly = PAGE
            continue
        yield Turn(before, cursor, page)
        if isinstance(page, Missing) or page.cursor is None:
            return
        if page.cursor == cursor:
            yield Turn(before, cursor, Damaged("the same page is returned repeatedly"))
            return
        singly = max(0, singly - 1)
        cursor = page.cursor
        if page.items:
            before = max(before, rank_of(page.items[-1].message))
        # An embedded store may have answered without ever suspending.
        await asyncio.sleep(0)


async def tally_ids(scans: Iterable[Scan]) -> AsyncIterator[tuple[int, int]]:
    """(message id, number of places where it was seen), for every message."""
    last = count = 0
    for number, message_id in enumerate(merge(*(scan.ids() for scan in scans))):
        if message_id != last:
            if count:
                yield last, count
            last, count = message_id, 0
        count += 1
        if number % _TURN == _TURN - 1:
            await asyncio.sleep(0)
    if count:
        yield last, count


async def find(work: Inspection, scan: Scan, message: Message) -> Snapshot | Missing:
    """The delivery's current snapshot at the scan's place; ``Gone`` if it is not there."""
    return (await find_many(work, scan, [message]))[message.id]


async def find_many(
    work: Inspection, scan: Scan, messages: Iterable[Message]
) -> dict[int, Snapshot | Missing]:
    """``find`` for several messages, by id; those of one page cost one call."""
    found: dict[int, Snapshot | Missing] = {}
    left = sorted(messages, key=rank_of)
    cursor: str | None = None
    passed, turns = -2, 0  # Below the rank before the first page.
    while left:
        before, start = scan.page_of(rank_of(left[0]))
        if before > passed:
            cursor, passed, turns = start, before, 0
        page = await peek(work, scan.place, cursor)
        turns += 1
        if isinstance(page, Missing) or turns > _MAX_TURNS:
            answer = page if isinstance(page, Missing) else Missing()
            return found | {message.id: answer for message in left}
        shown = {item.message.id: item for item in page.items}
        if page.items:
            passed = max(passed, rank_of(page.items[-1].message))
        is_last, cursor = page.cursor is None, page.cursor
        for message in left:
            if message.id in shown:
                found[message.id] = shown[message.id]
            elif is_last or (not scan.moves_back and rank_of(message) <= passed):
                found[message.id] = Gone()
        left = [message for message in left if message.id not in found]
    return found
