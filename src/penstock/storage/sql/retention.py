"""Retention of the log: segments that nothing needs any more are removed (G1, A1).

A segment goes when it is old enough, settled (L2) and archived, every queue's cursor is past it,
and no queue has a delivery of it, in whatever state. An entry that replaced a message stays as
long as a queue has the message, and as long as the tenant's log has anything between the two: so
a message never loses a newer entry before an older one.

Why it is right while others work. Three kinds of transactions make deliveries of a segment. The
publish that appends it has ended, because the segment is settled. Those that move deliveries
have one before and after their commit, and every statement sees one of the two. And those that
add deliveries of old entries, a route or a replay, first lock their segments, by ``share``. Here
the segments are locked before anything is asked: either the others have the lock, then the
segment is passed by; or they had it and are committed, then their deliveries are seen by the
statement that comes after; or they wait until the segment is gone, are told so, and add nothing.
Cursors are read before deliveries, so whatever a cursor has passed is seen as a delivery.

What is kept long, by one failed delivery, is not looked at over and over. A server remembers how
far it removed segments and goes on there; beside that it looks at one page a sweep of everything
else, in turn. A segment that cannot be read is kept, and told of when the others are done (X1).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from penstock.errors import StoreCorrupt
from penstock.model.limits import MAX_OFFSET
from penstock.model.message import Message, MessageId
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Row, Session
from penstock.storage.sql.runs import message_id, segment_of
from penstock.storage.sql.segments import Segment

__all__ = ["Retention", "share"]

#: Segments that are looked at at once, and removed by one transaction.
_PAGE: Final = 250
#: Entries that one transaction removes, if they are of more than one segment.
_MAX_ENTRIES: Final = 5_000
#: Pages that one sweep looks at as long as it finds something to remove.
_MAX_PAGES: Final = 20
#: How long a server may remember segments that another one removed.
_REMEMBERED_MS: Final = 10_000


async def share(session: Session, messages: Iterable[Message]) -> set[MessageId]:
    """Those of these messages whose newest entries are in the log, and stay until this commits.

    Whoever adds deliveries of entries that are in the log already asks this first, about the
    messages as they are now, and adds only what it gives.
    """
    # The first entry's segment is what deliveries refer to; it may be gone before the newest.
    places = {one.id: (segment_of(one.offset)[0], segment_of(one.id)[0]) for one in messages}
    if not places:
        return set()
    numbers = sorted({number for both in places.values() for number in both})
    there = {number for (number,) in await session.fetch("share_segments", numbers=numbers)}
    return {message for message, (newest, _) in places.items() if newest in there}


class _Old(NamedTuple):
    """A segment that is old enough."""

    number: int
    tenant: int
    entries: int

    @property
    def end(self) -> int:
        """The offset after its last entry."""
        return message_id(self.number, self.entries - 1) + 1


class _Page(NamedTuple):
    """Some segments in a row."""

    unused: list[_Old]
    """Those that are old enough and that no queue has deliveries of."""
    last: int
    is_last: bool
    """Whether what comes after it, if anything does, is too young."""


class _Bounds(NamedTuple):
    """What is to be kept of the tenants' logs."""

    ends: dict[int, int]
    """By tenant, the lowest offset that has to stay."""

    @classmethod
    async def read(cls, session: Session, tenants: Iterable[int], *, archive: bool) -> _Bounds:
        """As they are now."""
        rows = await session.fetch("log_bounds", tenants=sorted(set(tenants)))
        ends = {}
        for tenant, archived, cursor in rows:
            end = MAX_OFFSET if cursor is None else int(cursor)
            if archive:
                end = min(end, 0 if archived is None else int(archived) + 1)
            ends[tenant] = end
        return cls(ends)

    def may_go(self, segment: _Old) -> bool:
        """Whether all of the segment is routed, and archived where that is asked for."""
        return segment.end <= self.ends.get(segment.tenant, 0)


class Retention:
    """What a server remembers of the log that it has looked through."""

    def __init__(self) -> None:
        #: The last segment that was removed. What comes after it is likely to go next.
        self._removed = 0
        #: Where the look at everything else stands.
        self._position = 0
        #: When old segments were forgotten.
        self._forgot_at = 0
        #: What the last sweep found that cannot be read.
        self.damage: list[StoreCorrupt] = []

    async def sweep(self, core: Core, limit: int) -> tuple[int, bool]:
        """Remove up to about ``limit`` entries; how many it were, and whether there are more."""
        self.damage = []
        self._forget_old(core)
        removed = 0
        for _ in range(_MAX_PAGES):
            page = await _look(core, self._removed)
            gone, more = await self._remove(core, page, limit - removed)
            removed += gone
            if more:
                return removed, True
            if not gone:
                break
        else:
            return removed, True
        if self._removed or not page.is_last:
            other = await _look(core, self._position)
            self._position = 0 if other.is_last else other.last
            gone, more = await self._remove(core, other, limit - removed)
            removed += gone
            return removed, more
        return removed, False

    def _forget_old(self, core: Core) -> None:
        """Do not remember what others may remove by now."""
        now = core.clock.now()
        if not 0 <= now - self._forgot_at < _REMEMBERED_MS:
            self._forgot_at = now
            core.segments.forget_published(now - core.options.limits.log_retention_ms)

    async def _remove(self, core: Core, page: _Page, limit: int) -> tuple[int, bool]:
        """Remove what may go; how many entries it were, and whether that was not all."""
        going = await _settled(core, page.unused)
        removed = 0
        while going:
            if removed >= limit:
                return removed, True
            step, going = _step(going, limit - removed)
            gone, damage = await _remove(core, step)
            self.damage += damage
            core.segments.forget([one.number for one in gone])
            removed += sum(one.entries for one in gone)
            if gone:
                self._removed = max(self._removed, gone[-1].number)
        return removed, False


async def _look(core: Core, after: int) -> _Page:
    """The page of segments after this one."""
    before = core.clock.now() - core.options.limits.log_retention_ms
    rows = await core.plainly(
        lambda session: session.fetch("old_segments", after=after, before=before, most=_PAGE)
    )
    old = [row for row in rows if row[2] <= before]
    return _Page(
        [_Old(row[0], row[1], row[3]) for row in old if row[4] is None],
        rows[-1][0] if rows else after,
        len(rows) < _PAGE or len(old) < len(rows),
    )


async def _settled(core: Core, segments: Sequence[_Old]) -> list[_Old]:
    """Those that may go as far as can be told before they are locked."""
    if not segments:
        return []
    bounds = await core.plainly(
        lambda session: _Bounds.read(
            session, {one.tenant for one in segments}, archive=core.options.archive
        )
    )
    going = [one for one in segments if bounds.may_go(one)]
    if not going:
        return []
    settled = (await core.stable()).settled
    return [one for one in going if one.number <= settled]


def _step(segments: Sequence[_Old], limit: int) -> tuple[list[_Old], list[_Old]]:
    """What one transaction should try to remove, and the rest. It is one segment at least."""
    entries = 0
    for index, one in enumerate(segments):
        if entries >= min(limit, _MAX_ENTRIES):
            return list(segments[:index]), list(segments[index:])
        entries += one.entries
    return list(segments), []


async def _remove(core: Core, segments: Sequence[_Old]) -> tuple[list[_Old], list[StoreCorrupt]]:
    """Remove those that nothing needs now that they are locked; which these are."""

    async def act(session: Session) -> tuple[list[_Old], list[StoreCorrupt]]:
        locked = await session.fetch("lock_segments", numbers=[one.number for one in segments])
        rows, replaced, damage = _read(locked)
        if not rows:
            return [], damage
        # In this order: see the head of the module.
        bounds = await _Bounds.read(session, {row[1] for row in rows}, archive=core.options.archive)
        wanted = {*replaced, *(s for of in replaced.values() for s in of.segments)}
        needed = {s for (s,) in await session.fetch("needed_segments", numbers=sorted(wanted))}
        going: dict[int, _Old] = {}
        for number, tenant, _, entries, _ in rows:
            one = _Old(number, tenant, entries)
            segment = replaced[number]
            if number in needed or segment.segments & needed or not bounds.may_go(one):
                continue
            if await _is_oldest(session, one, segment, going):
                going[number] = one
        if going:
            await _delete(session, going, replaced)
        return list(going.values()), damage

    return await core.plainly(act, transaction=True)


class _Replaced(NamedTuple):
    """What the entries of a segment say of other messages and of keys."""

    segments: set[int]
    """Where the messages are that its entries replace."""
    messages: set[int]
    """Those messages."""
    keyed: list[int]
    """Its own messages that have a key."""


def _read(rows: Sequence[Row]) -> tuple[list[Row], dict[int, _Replaced], list[StoreCorrupt]]:
    """The rows that can be read, what they say, and what is wrong with the others."""
    readable: list[Row] = []
    replaced: dict[int, _Replaced] = {}
    damage: list[StoreCorrupt] = []
    for row in rows:
        try:
            replaced[row[0]] = _replaced(row)
        except StoreCorrupt as error:
            damage.append(error)
        else:
            readable.append(row)
    return readable, replaced, damage


def _replaced(row: Row) -> _Replaced:
    number, tenant, published_at, _, heads = row
    found = _Replaced(set(), set(), [])
    for index, head in enumerate(Segment.read(number, tenant, published_at, heads, None).heads):
        if head.id is not None:
            found.segments.add(segment_of(head.id)[0])
            found.messages.add(head.id)
        elif head.key is not None:
            found.keyed.append(message_id(number, index))
    return found


async def _is_oldest(
    session: Session, one: _Old, replaced: _Replaced, going: Collection[int]
) -> bool:
    """Whether nothing is left from the messages that it replaces up to it."""
    if not replaced.segments:
        return True
    between = await session.fetch(
        "segments_between",
        tenant=one.tenant,
        first=min(replaced.segments),
        last=one.number,
        most=len(going) + 1,
    )
    return all(number in going for (number,) in between)


async def _delete(session: Session, going: dict[int, _Old], replaced: dict[int, _Replaced]) -> None:
    keyed = [message for number in going for message in replaced[number].keyed]
    if keyed:
        # A key whose message no queue has replaces nothing.
        await session.run("close_keys", messages=keyed)
    for number, one in going.items():
        messages = replaced[number].messages
        if messages:
            await session.run(
                "forget_newest",
                messages=sorted(messages),
                first=message_id(number, 0),
                last=one.end,
            )
    await session.run("remove_segments", numbers=sorted(going))
    ends: dict[int, int] = {}
    for one in going.values():
        ends[one.tenant] = max(one.end, ends.get(one.tenant, 0))
    for tenant, end in sorted(ends.items()):
        await session.run("trim_log", tenant=tenant, through=end)
