"""Trimming the log: where to search for removable segments, so that few are examined twice.

A segment is examined when it has become old enough. If a queue still has deliveries of it, it is
examined again when retention removes some of those, which the sweep reports. If it is not archived
or routed yet, it is examined again when the archive or the cursor has advanced. Everything else (a
purge, a deleted queue, another server) is found by a scan in turn over all old segments: one page
per sweep, and more while that finds something. So a segment pinned by one failed delivery is
rarely re-examined.

This state is local to one server and decides nothing: ``retention`` decides what is removed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from penstock.errors import StoreCorrupt
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Row
from penstock.storage.sql.retention import Keeping, Old, remove

__all__ = ["Trimming"]

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


class Trimming:
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
            page = await _look_at(core, part, before)
            if not await self._remove(core, page.unused, done):
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
    rows = await core.plainly(
        lambda session: session.fetch("old_segments", after=after, before=before, most=_PAGE)
    )
    return _page(rows, before, after)


async def _look_at(core: Core, numbers: Sequence[int], before: int) -> _Page:
    """A page of these segments."""
    rows = await core.plainly(
        lambda session: session.fetch("look_at_segments", numbers=numbers, before=before)
    )
    return _page(rows, before, 0)


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
    return await core.plainly(
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
