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
from typing import Final, NamedTuple

from penstock.errors import StoreCorrupt
from penstock.model.limits import MAX_OFFSET
from penstock.model.message import Message, MessageId
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Row, Session
from penstock.storage.sql.deliveries import message_id, segment_of
from penstock.storage.sql.segments import Segment

__all__ = ["DroppedQueues", "LogRetention", "forget_ids", "remove", "share"]


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

    return await core.run_without_tenant(act, transaction=True)


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
    number, tenant, published_at, _, metadata = row
    found = _Contents(set(), set(), [])
    for index, entry_metadata in enumerate(
        Segment.read(number, tenant, published_at, metadata, None).metadata
    ):
        if entry_metadata.id is not None:
            found.segments.add(segment_of(entry_metadata.id)[0])
            found.messages.add(entry_metadata.id)
        elif entry_metadata.key is not None:
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


# -- finding removable segments ------------------------------------------------------
# A segment is examined when it has become old enough. If a queue still has deliveries of it, it is
# examined again when retention removes some of those, which the sweep reports. If it is not
# archived or routed yet, it is examined again when the archive or the cursor has advanced.
# Everything else (a purge, a deleted queue, another server) is found by a scan in turn over all old
# segments: one page per sweep, and more while that finds something. So a segment pinned by one
# failed delivery is rarely re-examined.
#
# This state is local to one server and only decides where to search.

#: Segments that are examined in one statement, and removed in one transaction.
_PAGE: Final = 250
#: Entries that one transaction removes at most, if they are in more than one segment.
_MAX_ENTRIES: Final = 5_000
#: Pages of each kind that one sweep examines.
_MAX_PAGES: Final = 20
#: Segments that are remembered because deliveries of them were removed.
_MAX_FREED: Final = 100_000
#: How long a server may cache contents of segments that another one removed.
_REMEMBERED_MS: Final = 10_000


class _Page(NamedTuple):
    """Some segments, in order."""

    unused: list[Old]
    """Segments that are old enough and have no deliveries in any queue."""
    last: int
    """The last segment."""
    last_old: int
    """The last segment before the first that is too young."""
    is_last: bool
    """Whether all segments after it are too young."""


class _Done:
    """The progress and the remaining limit of a sweep."""

    def __init__(self, limit: int) -> None:
        self.left = limit
        self.removed = 0
        self.more = False


class LogRetention:
    """A server's memory of the segments that it has examined."""

    def __init__(self) -> None:
        #: Every segment up to here was examined when it was old enough.
        self._looked = 0
        #: Segments from which deliveries were removed.
        self._freed: set[int] = set()
        #: By tenant, the first segment that only its archive or a cursor retains.
        self._waiting: dict[int, Old] = {}
        #: The position of the scan over old segments.
        self._position = 0
        #: When old contents were last dropped from the cache.
        self._forgot_at = 0
        #: Unreadable segments that the last sweep found (X1).
        self.damage: list[StoreCorrupt] = []

    async def sweep(self, core: Core, limit: int, freed: Collection[int]) -> tuple[int, bool]:
        """Remove at most about ``limit`` entries; returns how many, and whether there are more.

        ``freed`` are segments from which the same sweep removed deliveries.
        """
        self.damage = []
        self._forget_contents(core)
        done = _Done(limit)
        self._freed.update(freed)
        await self._look_at_freed(core, done)
        await self._go_back(core)
        await self._look_at_old(core, done)
        await self._look_around(core, done)
        return done.removed, done.more

    def _forget_contents(self, core: Core) -> None:
        """Drop cached contents of segments that other servers may have removed by now."""
        now = core.clock.now()
        if not 0 <= now - self._forgot_at < _REMEMBERED_MS:
            self._forgot_at = now
            core.segments.forget_published(now - core.options.limits.log_retention_ms)

    # -- finding -----------------------------------------------------------------------

    async def _look_at_freed(self, core: Core, done: _Done) -> None:
        before = _before(core)
        numbers = sorted(self._freed)
        for start in range(0, len(numbers), _PAGE):
            part = numbers[start : start + _PAGE]
            rows = await core.fetch("look_at_segments", numbers=part, before=before)
            if not await self._remove(core, _page(rows, before, 0).unused, done):
                # The others wait for the next sweep; any beyond the bound, for the scan.
                self._freed = set(numbers[start : start + _MAX_FREED])
                return
        self._freed.clear()

    async def _go_back(self, core: Core) -> None:
        """Re-examine segments that were not archived or routed, if that has advanced."""
        if not self._waiting:
            return
        keeping = await _keeping(core, list(self._waiting.values()))
        for tenant, one in list(self._waiting.items()):
            if keeping.allows(one):
                self._looked = min(self._looked, one.number - 1)
                del self._waiting[tenant]

    async def _look_at_old(self, core: Core, done: _Done) -> None:
        """Examine segments that have become old enough."""
        before = _before(core)
        for _ in range(_MAX_PAGES):
            page = await _look(core, self._looked, before)
            if not await self._remove(core, page.unused, done):
                return
            self._looked = page.last_old
            if page.is_last:
                return
        done.more = done.more or done.removed > 0

    async def _look_around(self, core: Core, done: _Done) -> None:
        """Re-examine some segments that were examined before."""
        if not self._looked:
            return
        before = _before(core)
        for _ in range(_MAX_PAGES):
            removed = done.removed
            page = await _look(core, self._position, before)
            if not await self._remove(core, page.unused, done):
                return
            at_end = page.is_last or page.last >= self._looked
            self._position = 0 if at_end else page.last
            if at_end or done.removed == removed:
                return
        done.more = True

    # -- removing ----------------------------------------------------------------------

    async def _remove(self, core: Core, unused: Sequence[Old], done: _Done) -> bool:
        """Remove segments that no queue needs, if they may go; returns whether all fit."""
        if not unused:
            return True
        keeping = await _keeping(core, unused)
        going = []
        for one in unused:
            if keeping.allows(one):
                going.append(one)
            else:
                first = self._waiting.setdefault(one.tenant, one)
                self._waiting[one.tenant] = min(first, one)
        while going:
            if done.left <= 0:
                done.more = True
                return False
            step, going = _step(going, done.left)
            gone = await remove(core, step, keeping.settled)
            self.damage += gone.damage
            core.segments.forget([one.number for one in gone.segments])
            entries = sum(one.entries for one in gone.segments)
            done.removed += entries
            done.left -= entries
        return True


def _before(core: Core) -> int:
    """Segments published at or before this time are old enough."""
    return core.clock.now() - core.options.limits.log_retention_ms


async def _look(core: Core, after: int, before: int) -> _Page:
    """The page of segments after this one."""
    rows = await core.fetch("old_segments", after=after, before=before, most=_PAGE)
    return _page(rows, before, after)


def _page(rows: Sequence[Row], before: int, after: int) -> _Page:
    unused = [
        Old(number, tenant, entries)
        for number, tenant, published_at, entries, needed_by in rows
        if published_at <= before and needed_by is None
    ]
    last_old = after
    for number, _, published_at, *_ in rows:
        if published_at > before:
            break
        last_old = number
    last = rows[-1][0] if rows else after
    return _Page(unused, last, last_old, len(rows) < _PAGE or last_old < last)


async def _keeping(core: Core, segments: Sequence[Old]) -> Keeping:
    """The part of these tenants' logs that must stay."""
    settled = (await core.stable()).settled
    tenants = {one.tenant for one in segments}
    return await core.run_without_tenant(
        lambda session: Keeping.read(session, tenants, settled, archive=core.options.archive)
    )


def _step(segments: Sequence[Old], limit: int) -> tuple[list[Old], list[Old]]:
    """The segments for one transaction, at least one, and the rest."""
    entries = 0
    for index, one in enumerate(segments):
        if entries >= min(limit, _MAX_ENTRIES):
            return list(segments[:index]), list(segments[index:])
        entries += one.entries
    return list(segments), []


# -- old ids, and rows of deleted queues ---------------------------------------------
# A deleted queue is unreachable immediately; its rows are removed here in batches. The queue is
# remembered for a while after that, because a publish with an older catalog may still add to it.

#: Rows that one transaction removes at most.
_MAX_ROWS: Final = 5_000
#: Rows of deleted queues that one sweep removes at most.
_MAX_SWEPT: Final = 50_000
#: Deleted queues per list statement, and how many of them one sweep examines.
_MAX_LISTED: Final = 1_000
_MAX_QUEUES: Final = 50
#: How long a deleted queue is remembered. No transaction lasts that long.
_DROPPED_MS: Final = 3_600_000
#: How long a deleted queue without rows is not examined again.
_PAUSE_MS: Final = 60_000

_STATEMENTS: Final = (
    "remove_dropped_groups",
    "remove_dropped_tallies",
    "remove_dropped_partition_tallies",
    "remove_dropped_partitions",
    "remove_dropped_owners",
    "remove_dropped_replays",
)


async def forget_ids(core: Core, limit: int) -> tuple[int, bool]:
    """Delete up to ``limit`` ids; returns how many, and whether there may be more."""
    now = core.clock.now()
    forgotten = 0
    while forgotten < limit:
        most = min(_MAX_ROWS, limit - forgotten)
        gone = await _run(core, "forget_overdue_ids", now=now, most=most)
        forgotten += gone
        if gone < most:
            return forgotten, False
    return forgotten, True


class DroppedQueues:
    """A server's memory of the deleted queues that it has examined."""

    def __init__(self) -> None:
        self._after = 0
        #: When a queue was last found to have no rows.
        self._clean: dict[int, int] = {}

    async def sweep(self, core: Core) -> bool:
        """Remove rows of deleted queues; returns whether there are more."""
        now, after = core.clock.now(), self._after
        listed = await core.fetch("dropped_queues", after=after, most=_MAX_LISTED)
        self._after = listed[-1][0] if len(listed) == _MAX_LISTED else 0
        due = [(queue, at) for queue, at in listed if self._is_due(queue, at, now)]
        left = _MAX_SWEPT
        for queue, at in due[:_MAX_QUEUES]:
            removed = await _remove(core, queue, left)
            left -= removed
            if left <= 0:
                return True
            if removed:
                continue
            self._clean[queue] = now
            if at + _DROPPED_MS <= now:
                await _run(core, "forget_dropped", queue=queue)
                del self._clean[queue]
        return len(due) > _MAX_QUEUES

    def _is_due(self, queue: int, at: int, now: int) -> bool:
        clean = self._clean.get(queue)
        return clean is None or at + _DROPPED_MS <= now or not 0 <= now - clean < _PAUSE_MS


async def _remove(core: Core, queue: int, limit: int) -> int:
    """Remove up to ``limit`` rows of the queue; returns how many."""
    removed = await _run(core, "clear_consumers", queue=queue)
    removed += await _run(core, "clear_limits", queue=queue)
    for statement in _STATEMENTS:
        while removed < limit:
            most = min(_MAX_ROWS, limit - removed)
            gone = await _run(core, statement, queue=queue, most=most)
            removed += gone
            if gone < most:
                break
    return removed


async def _run(core: Core, statement: str, **parameters: object) -> int:
    """Run a statement as its own transaction; returns how many rows it changed."""
    return await core.run_without_tenant(lambda session: session.run(statement, **parameters))
