"""Retention of the log: what may leave it, and how it does (G1, A1).

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
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from penstock.errors import StoreCorrupt
from penstock.model.limits import MAX_OFFSET
from penstock.model.message import Message, MessageId
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Row, Session
from penstock.storage.sql.runs import message_id, segment_of
from penstock.storage.sql.segments import Segment

__all__ = ["Keeping", "Old", "Removed", "remove", "share"]


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


class Old(NamedTuple):
    """A segment that is old enough."""

    number: int
    tenant: int
    entries: int

    @property
    def end(self) -> int:
        """The offset after its last entry."""
        return message_id(self.number, self.entries - 1) + 1


class Keeping(NamedTuple):
    """What has to stay of the tenants' logs, whether a queue has deliveries of it or not."""

    ends: dict[int, int]
    """By tenant, the lowest offset that is not routed, or not archived where it has to be."""
    settled: int

    @classmethod
    async def read(
        cls, session: Session, tenants: Iterable[int], settled: int, *, archive: bool
    ) -> Keeping:
        """As it is now."""
        ends = {}
        for tenant, archived, cursor in await session.fetch(
            "log_bounds", tenants=sorted(set(tenants))
        ):
            end = MAX_OFFSET if cursor is None else int(cursor)
            if archive:
                end = min(end, 0 if archived is None else int(archived) + 1)
            ends[tenant] = end
        return cls(ends, settled)

    def allows(self, one: Old) -> bool:
        """Whether all of the segment may go."""
        return one.number <= self.settled and one.end <= self.ends.get(one.tenant, 0)


class Removed(NamedTuple):
    """What one transaction did."""

    segments: list[Old]
    damage: list[StoreCorrupt]
    """What is wrong with segments that cannot be read; they stay (X1)."""


class _Contents(NamedTuple):
    """What the entries of a segment say of other messages and of keys."""

    segments: set[int]
    """Where the messages are that its entries replace."""
    messages: set[int]
    """Those messages."""
    keyed: list[int]
    """Its own messages that have a key."""


async def remove(core: Core, segments: Sequence[Old], settled: int) -> Removed:
    """Remove those that nothing needs now that they are locked."""
    archive = core.options.archive

    async def act(session: Session) -> Removed:
        await core.check_schema(session)
        locked = await session.fetch("lock_segments", numbers=[one.number for one in segments])
        rows, contents, damage = _read(locked)
        if not rows:
            return Removed([], damage)
        # In this order: see the head of the module.
        keeping = await Keeping.read(session, {row[1] for row in rows}, settled, archive=archive)
        wanted = {*contents, *(number for of in contents.values() for number in of.segments)}
        needed = {n for (n,) in await session.fetch("needed_segments", numbers=sorted(wanted))}
        going: dict[int, Old] = {}
        for number, tenant, _, entries, _ in rows:
            one, of = Old(number, tenant, entries), contents[number]
            if number in needed or of.segments & needed or not keeping.allows(one):
                continue
            if await _is_oldest(session, one, of, going):
                going[number] = one
        if going:
            await _delete(session, going, contents)
        return Removed(list(going.values()), damage)

    return await core.plainly(act, transaction=True)


def _read(rows: Sequence[Row]) -> tuple[list[Row], dict[int, _Contents], list[StoreCorrupt]]:
    """The rows that can be read, what they say, and what is wrong with the others."""
    readable: list[Row] = []
    contents: dict[int, _Contents] = {}
    damage: list[StoreCorrupt] = []
    for row in rows:
        try:
            contents[row[0]] = _contents(row)
        except StoreCorrupt as error:
            damage.append(error)
        else:
            readable.append(row)
    return readable, contents, damage


def _contents(row: Row) -> _Contents:
    number, tenant, published_at, _, heads = row
    found = _Contents(set(), set(), [])
    for index, head in enumerate(Segment.read(number, tenant, published_at, heads, None).heads):
        if head.id is not None:
            found.segments.add(segment_of(head.id)[0])
            found.messages.add(head.id)
        elif head.key is not None:
            found.keyed.append(message_id(number, index))
    return found


async def _is_oldest(session: Session, one: Old, of: _Contents, going: Collection[int]) -> bool:
    """Whether nothing is left from the messages that it replaces up to it."""
    if not of.segments:
        return True
    between = await session.fetch(
        "segments_between",
        tenant=one.tenant,
        first=min(of.segments),
        last=one.number,
        most=len(going) + 1,
    )
    return all(number in going for (number,) in between)


async def _delete(session: Session, going: dict[int, Old], contents: dict[int, _Contents]) -> None:
    keyed = [message for number in going for message in contents[number].keyed]
    if keyed:
        # A key whose message no queue has replaces nothing.
        await session.run("close_keys", messages=keyed)
    for number, one in going.items():
        messages = contents[number].messages
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
