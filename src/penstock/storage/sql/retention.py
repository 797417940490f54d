"""Retention of the log: which segments may be removed, and how (G1, A1).

A segment is removed when it is old enough, settled (L2) and archived, every queue's cursor is past
it, and no queue has a delivery of it, in any state. A replacement stays as long as a queue has the
message, and as long as the tenant's log has any segment between the two: so a message never loses
a newer entry before an older one.

Why this is safe under concurrency: three kinds of transactions create deliveries of a segment. The
publish that appends it has ended, because the segment is settled. A transaction that moves
deliveries has one before and after its commit, and every statement sees one of the two. A route
or a replay, which adds deliveries of old entries, first locks their segments by ``share``. Here
the segments are locked before anything is read. Either the other transaction has the lock, and
the segment is skipped; or it has committed, and the next statement sees its deliveries; or it
waits until the segment is gone, notices that, and adds nothing. Cursors are read before
deliveries, so everything that a cursor has passed is seen as a delivery.
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
    """Lock the messages' segments; returns the messages whose newest entries are in the log.

    They stay until this transaction commits. A caller that adds deliveries of existing entries
    must call this first, with the current messages, and add only those returned.
    """
    # Deliveries refer to the segment of the first entry, which may be gone before the newest.
    places = {one.id: (segment_of(one.offset)[0], segment_of(one.id)[0]) for one in messages}
    if not places:
        return set()
    numbers = sorted({number for both in places.values() for number in both})
    there = {number for (number,) in await session.fetch("share_segments", numbers=numbers)}
    return {message for message, (newest, _) in places.items() if newest in there}


class Old(NamedTuple):
    """A segment that is old enough to be removed."""

    number: int
    tenant: int
    entries: int

    @property
    def end(self) -> int:
        """The offset after its last entry."""
        return message_id(self.number, self.entries - 1) + 1


class Keeping(NamedTuple):
    """The part of the tenants' logs that must stay even without deliveries."""

    ends: dict[int, int]
    """By tenant, the lowest offset that is not routed, or not archived if that is required."""
    settled: int

    @classmethod
    async def read(
        cls, session: Session, tenants: Iterable[int], settled: int, *, archive: bool
    ) -> Keeping:
        """Read the current bounds."""
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
        """Whether the whole segment may be removed."""
        return one.number <= self.settled and one.end <= self.ends.get(one.tenant, 0)


class Removed(NamedTuple):
    """The result of one transaction."""

    segments: list[Old]
    damage: list[StoreCorrupt]
    """Errors of unreadable segments, which are kept (X1)."""


class _Contents(NamedTuple):
    """References of a segment's entries to other messages, and its keys."""

    segments: set[int]
    """The segments of the messages that its entries replace."""
    messages: set[int]
    """The messages that its entries replace."""
    keyed: list[int]
    """Its own messages that have a key."""


async def remove(core: Core, segments: Sequence[Old], settled: int) -> Removed:
    """Lock the segments, and remove those that nothing needs."""
    archive = core.options.archive

    async def act(session: Session) -> Removed:
        await core.check_schema(session)
        locked = await session.fetch("lock_segments", numbers=[one.number for one in segments])
        rows, contents, damage = _read(locked)
        if not rows:
            return Removed([], damage)
        # The order matters: see the module docstring.
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
    """The readable rows, their contents, and the errors of the others."""
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
    """Whether no segment is left between the messages that it replaces and itself."""
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
        # A key whose message is in no queue replaces nothing.
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
