"""Cursors that page through the deliveries of a queue in order.

Groups are sorted by their first members, and groups of one segment may interleave. So the
deliveries read so far are complete only up to the position of the last group: no later one has a
member before that. The rest waits for the next page. Groups in flight are sorted by claim numbers
instead, and are all read; there are only as many as consumers hold.

A cursor locks nothing. A caller that changes deliveries locks them by ``hold``, which finds a
delivery again if its group was split meanwhile, and drops those that have moved elsewhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from penstock.filters import Selection
from penstock.model.delivery import Snapshot
from penstock.model.message import Message, MessageId
from penstock.model.states import State
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Row, Session
from penstock.storage.sql.deliveries import (
    INDEX_BITS,
    LIVE,
    DeliveryGroup,
    DeliveryRecord,
    Phase,
    delivered,
    is_dead,
    message_id,
    segment_of,
    state_of,
)
from penstock.storage.sql.work import Work

__all__ = [
    "GroupCursor",
    "Item",
    "Position",
    "hold",
    "in_claim_order",
    "in_publish_order",
    "matching",
    "snapshot",
]

#: The position of a delivery in claim order: rank, message id (C4).
Position: TypeAlias = tuple[int, int]

#: Groups that the first page of a phase reads; later pages read enough groups for _PAGE deliveries.
#: A group may have 4,096 of them, so a page takes at most some 10 ms.
_FIRST_GROUPS: Final = 4
_MAX_GROUPS: Final = 500
_PAGE: Final = 2_000
_LAST_RANK: Final = 9
#: How often ``hold`` searches for deliveries that have moved.
_LOOKS: Final = 3


class Item(NamedTuple):
    """A delivery, and its group when it was read."""

    rank: int
    position: int
    group: DeliveryGroup

    @classmethod
    def of(cls, group: DeliveryGroup, message: MessageId) -> Item:
        """The delivery of a message, which is a member of the group."""
        moved = group.record.position
        return cls(group.rank, message if moved is None else moved, group)

    @property
    def message_id(self) -> MessageId:
        """The message of the delivery."""
        moved = self.group.record.position
        return MessageId(self.position) if moved is None else self.group.first

    @property
    def offset(self) -> int:
        """The offset of the message's newest entry."""
        return self.group.record.entry or self.message_id


_claim_order: Final[Callable[[Item], tuple[int, int]]] = itemgetter(0, 1)
_publish_order: Final[Callable[[Item], tuple[int, int]]] = itemgetter(1, 0)


def _items(groups: Iterable[DeliveryGroup], after: Position) -> Iterator[Item]:
    for group in groups:
        for index in group.members:
            item = Item.of(group, message_id(group.segment, index))
            if item[:2] > after:
                yield item


class _Pages:
    """The deliveries of one phase, in claim order, from a position to a rank."""

    def __init__(
        self, session: Session, queue: int, phase: Phase, after: Position, last_rank: int
    ) -> None:
        self._session = session
        self._queue = queue
        self._phase = phase
        self._passed = after
        # A group of the same segment that begins before the position may have members after it.
        self._last: Position = (after[0], (segment_of(after[1])[0] << INDEX_BITS) - 1)
        self._last_rank = last_rank
        self._waiting: list[Item] = []
        self._groups = _FIRST_GROUPS
        self.ended = False

    async def pull(self) -> list[Item]:
        """The next deliveries; empty at the end."""
        while not self.ended:
            rows = await self._read()
            groups = [DeliveryGroup.read(row) for row in rows]
            self._waiting += _items(groups, self._passed)
            self._waiting.sort(key=_claim_order)
            cut = len(self._waiting)
            if not self.ended:
                cut = bisect_right(self._waiting, self._last, key=_claim_order)
                sizes = sum(group.size for group in groups)
                wanted = _PAGE * len(groups) // sizes
                self._groups = min(max(wanted, 1), _MAX_GROUPS)
            if cut:
                ready, self._waiting = self._waiting[:cut], self._waiting[cut:]
                self._passed = ready[-1][:2]
                return ready
        return []

    async def _read(self) -> list[Row]:
        rank, row_key = self._last
        rows = await self._session.fetch(
            "list_groups",
            queue=self._queue,
            phase=int(self._phase),
            rank=rank,
            row_key=row_key,
            last_rank=self._last_rank,
            most=self._groups,
        )
        self.ended = len(rows) < self._groups
        if rows:
            self._last = (rows[-1][2], rows[-1][3])
        return rows


class _InFlightPages(_Pages):
    """The deliveries in flight, in claim order, from a position on."""

    def __init__(self, session: Session, queue: int, phase: Phase, after: Position) -> None:
        super().__init__(session, queue, phase, after, _LAST_RANK)
        self._last = (0, -1)
        self._groups = _MAX_GROUPS

    async def pull(self) -> list[Item]:
        """All deliveries in one page."""
        found: list[Item] = []
        while not self.ended:
            found += _items([DeliveryGroup.read(row) for row in await self._read()], self._passed)
        found.sort(key=_claim_order)
        return found


class GroupCursor:
    """Several phases or ranks merged, each delivery once."""

    def __init__(self, parts: Sequence[_Pages], order: Callable[[Item], tuple[int, int]]) -> None:
        self._parts = [(part, list[Item]()) for part in parts]
        self._order = order
        self._ready: list[Item] = []
        self._seen: MessageId | None = None

    async def take(self, most: int) -> list[Item]:
        """The next deliveries, at most this many; empty at the end."""
        while len(self._ready) < most and self._parts:
            await self._fill()
        taken = self._ready[:most]
        del self._ready[:most]
        return taken

    async def _fill(self) -> None:
        """Merge the deliveries up to which every part was read."""
        for part, found in self._parts:
            if not found:
                found.extend(await part.pull())
        self._parts = [(part, found) for part, found in self._parts if found]
        order = self._order
        bounds = [order(found[-1]) for part, found in self._parts if not part.ended]
        bound = min(bounds, default=None)
        ready: list[Item] = []
        for _, found in self._parts:
            cut = len(found) if bound is None else bisect_right(found, bound, key=order)
            ready += found[:cut]
            del found[:cut]
        ready.sort(key=order)
        for item in ready:
            # A delivery that changed its phase between two pages is in both.
            if item.message_id != self._seen:
                self._seen = item.message_id
                self._ready.append(item)


def in_claim_order(
    session: Session, queue: int, phases: Sequence[Phase], after: Position | None = None
) -> GroupCursor:
    """The deliveries in these phases, by rank and message, after a position."""
    start = (0, -1) if after is None else after
    parts = [
        _InFlightPages(session, queue, phase, start)
        if phase in (Phase.IN_FLIGHT, Phase.DEAD_IN_FLIGHT)
        else _Pages(session, queue, phase, start, _LAST_RANK)
        for phase in phases
    ]
    return GroupCursor(parts, _claim_order)


def in_publish_order(session: Session, queue: int, phase: Phase) -> GroupCursor:
    """The deliveries in a phase, by message, regardless of rank."""
    ranks = range(_LAST_RANK + 1)
    parts = [_Pages(session, queue, phase, (rank, -1), rank) for rank in ranks]
    return GroupCursor(parts, _publish_order)


async def matching(
    core: Core, session: Session, tenant: int, items: Sequence[Item], where: Selection | None
) -> list[tuple[Item, Message]]:
    """The deliveries that the filter takes, with their messages.

    A delivery whose entry left the log has been removed since it was read.
    """
    messages = await core.segments.messages(session, tenant, {item.offset for item in items})
    return [
        (item, message)
        for item in items
        if (message := messages.get(item.offset)) is not None
        and (where is None or where.matches(message))
    ]


async def hold(work: Work, items: Sequence[Item], phases: Sequence[Phase]) -> dict[MessageId, Item]:
    """Lock these deliveries of one queue; returns those that are still in the phases, by message.

    ``work`` holds their groups from here on. A group that another transaction split while this one
    waited for its lock is found by its segment.
    """
    wanted = {item.message_id for item in items}
    found: dict[MessageId, Item] = {}

    def keep(groups: Iterable[DeliveryGroup]) -> None:
        for group in groups:
            for message in group.ids():
                if message in wanted:
                    found[message] = Item.of(group, message)

    row_keys: defaultdict[tuple[int, Phase], set[tuple[int, int]]] = defaultdict(set)
    for item in items:
        assert item.group.row_key is not None
        row_keys[item.group.queue, item.group.phase].add((item.rank, item.group.row_key))
    for (queue, phase), keys in sorted(row_keys.items()):
        keep(await work.lock_groups(queue, phase, keys))
    for _ in range(_LOOKS):
        missing = {segment_of(message)[0] for message in wanted - found.keys()}
        if not missing:
            break
        rows = await work.session.fetch(
            "lock_segment_groups",
            queues=sorted({queue for queue, _ in row_keys}),
            segments=sorted(missing),
            phases=[int(phase) for phase in phases],
        )
        split_off = work.hold_new(rows)
        if not split_off:
            break
        keep(split_off)
    return found


# -- deliveries as peek and message show them ----------------------------------------


def snapshot(
    queue: Queue,
    phase: Phase,
    record: DeliveryRecord,
    message: Message,
    *,
    failed: bool = False,
    payload: bytes | None = None,
) -> Snapshot:
    """The delivery of a message; ``failed`` shows a dead letter as its queue sees it (D1)."""
    state = State.FAILED if failed else state_of(phase)
    return Snapshot(
        queue=queue.shown_as(dead=is_dead(phase) and not failed),
        message=delivered(message, record),
        state=state,
        attempts=record.attempts,
        released=record.released if phase in LIVE or state is State.IN_FLIGHT else 0,
        at=record.due_at if state is State.DELAYED else record.at,
        claimed_at=record.claimed_at,
        lease_deadline=record.deadline,
        consumer=record.consumer,
        error=record.error,
        payload=payload,
    )
