"""The board of one tenant: the newest counts of every queue, and which of them changed when.

A version is one tick in which something changed. A viewer remembers the version that it has and is
sent the rows that are newer, so a viewer that reads slowly gets fewer, larger changes and the
server keeps nothing for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Self

from msgspec import Struct

from penstock.model.counts import QueueCounts

__all__ = ["COLUMNS", "NOTHING", "Board", "Deltas", "Level", "Row"]

#: The columns of a row, as the stream announces them.
COLUMNS: Final = (
    *("queue", "paused", "ordered", "behind"),
    *("delayed", "available", "in_flight", "done", "failed", "expired", "oldest_at"),
    *("entered_per_s", "claimed_per_s", "acked_per_s", "nacked_per_s", "failed_per_s"),
)
#: Names of deleted queues that are remembered for viewers; one that is older gets everything anew.
_MAX_REMOVED: Final = 10_000


class Level(Struct, frozen=True, gc=False):
    """Counts at one moment."""

    delayed: int
    available: int
    in_flight: int
    failed: int
    oldest_s: int

    @classmethod
    def of(cls, counts: QueueCounts, at: int) -> Self:
        """Those of one queue."""
        oldest_s = 0 if counts.oldest_at is None else (at - counts.oldest_at) // 1000
        return cls(counts.delayed, counts.available, counts.in_flight, counts.failed, oldest_s)


class Deltas(Struct, frozen=True, gc=False):
    """What happened in a queue between two readings."""

    entered: int = 0
    """Deliveries that became live: published, routed or replayed."""
    claimed: int = 0
    acked: int = 0
    nacked: int = 0
    failed: int = 0

    def plus(self, other: Deltas) -> Deltas:
        """What happened in two queues, or in two periods."""
        return Deltas(
            self.entered + other.entered,
            self.claimed + other.claimed,
            self.acked + other.acked,
            self.nacked + other.nacked,
            self.failed + other.failed,
        )


NOTHING: Final = Deltas()
_EMPTY: Final = QueueCounts(
    paused=False,
    ordered=False,
    behind=False,
    delayed=0,
    available=0,
    in_flight=0,
    done=0,
    failed=0,
    expired=0,
    oldest_at=None,
    grants=0,
    acks=0,
    nacks=0,
    failures=0,
)


class Row(Struct, array_like=True, gc=False):
    """One queue, in the order of ``COLUMNS``."""

    queue: str
    paused: bool
    ordered: bool
    behind: bool
    delayed: int
    available: int
    in_flight: int
    done: int
    failed: int
    expired: int
    oldest_at: int | None
    entered_per_s: float
    claimed_per_s: float
    acked_per_s: float
    nacked_per_s: float
    failed_per_s: float


class _Known:
    """A queue's newest reading."""

    __slots__ = ("at", "counts", "row", "version")

    def __init__(self, counts: QueueCounts, at: int, row: Row, version: int) -> None:
        self.counts = counts
        self.at = at
        self.row = row
        self.version = version


class Board:
    """The queues of one tenant."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.version = 0
        self.queues: dict[str, _Known] = {}
        #: Queues that are listed but were not read yet.
        self.unread: dict[str, None] = {}
        #: Queues whose rates are not zero: the next reading shows that they ended.
        self.moving: set[str] = set()
        self.removed: dict[str, int] = {}
        #: Sums of what a ``Level`` counts, and when the oldest message of each queue was published.
        self._sums = [0, 0, 0, 0]
        self._oldest: dict[str, int] = {}
        #: What changed for the next version, and what the newest one changed.
        self._changed: list[_Known] = []
        self._latest: list[_Known] = []
        self.has_news = False
        self.news = asyncio.Event()
        """Set when there is a next version; each version has its own."""
        self.viewers = 0
        self.shared: tuple[int, list[bytes]] | None = None
        """A version, and what it changed, as viewers of everything get it."""
        self.listed_at: int | None = None
        #: Viewers whose version is older than this get everything.
        self.complete_since = 0

    def put(self, name: str, counts: QueueCounts | None, since: int, at: int) -> Deltas | None:
        """Record a reading; returns what happened since the last one, None if nothing is known.

        ``since`` is a moment at which the last reading was still true, for the rates.
        """
        known = self.queues.get(name)
        # A queue that appears after the others were listed is new: it began with nothing.
        is_new = known is None and self.listed_at is not None and name not in self.unread
        if name in self.unread:
            del self.unread[name]
            # Viewers learn that they have every queue, even if this one is gone.
            self.has_news |= not self.unread
        if counts is None:
            if known is not None:
                del self.queues[name]
                self._sum(known.counts, None, name)
                self.moving.discard(name)
                self._remember_removed(name)
            return None
        deltas = None if known is None else _deltas(known.counts, counts)
        if is_new:
            deltas = _deltas(_EMPTY, counts)
        seconds = (at - (since if known is None else max(since, known.at))) / 1000
        row = _row(name, counts, deltas or NOTHING, seconds)
        if deltas is None or deltas == NOTHING:
            self.moving.discard(name)
        else:
            self.moving.add(name)
        if known is not None and row == known.row:
            known.counts, known.at = counts, at
            return deltas
        self.removed.pop(name, None)
        changed = self.queues[name] = _Known(counts, at, row, self.version + 1)
        self._sum(None if known is None else known.counts, counts, name)
        self._changed.append(changed)
        self.has_news = True
        return deltas

    @property
    def is_complete(self) -> bool:
        """Whether every queue of the tenant has been read."""
        return self.listed_at is not None and not self.unread

    def compare(self, names: Iterable[str], now: int) -> None:
        """Compare with the tenant's queues: forget deleted ones, note those to read."""
        present = set(names)
        # Viewers of a tenant without queues wait for this.
        self.has_news |= self.listed_at is None
        self.listed_at = now
        for name in self.queues.keys() - present:
            self.put(name, None, 0, 0)
        for name in present - self.queues.keys():
            self.unread[name] = None

    def total(self, at: int) -> Level:
        """The counts of all queues together."""
        oldest = min(self._oldest.values(), default=at)
        delayed, available, in_flight, failed = self._sums
        return Level(delayed, available, in_flight, failed, max(0, at - oldest) // 1000)

    def _sum(self, old: QueueCounts | None, new: QueueCounts | None, name: str) -> None:
        for counts, sign in ((old, -1), (new, 1)):
            if counts is not None:
                self._sums[0] += sign * counts.delayed
                self._sums[1] += sign * counts.available
                self._sums[2] += sign * counts.in_flight
                self._sums[3] += sign * counts.failed
        if new is None or new.oldest_at is None:
            self._oldest.pop(name, None)
        else:
            self._oldest[name] = new.oldest_at

    def next_version(self) -> None:
        """Let viewers have what has changed."""
        self.version += 1
        self._latest, self._changed = self._changed, []
        self.has_news = False
        news, self.news = self.news, asyncio.Event()
        news.set()

    def rows_since(self, version: int, may_see: Callable[[str], bool] | None) -> Iterator[Row]:
        """The rows that changed after a version, of the queues that the viewer may see."""
        # A viewer usually has the version before the last: those rows are at hand.
        recent = version == self.version - 1
        for known in self._latest if recent else self.queues.values():
            name = known.row.queue
            # It may have changed again, or be gone, since the version was made.
            if recent and self.queues.get(name) is not known:
                continue
            if known.version > version and (may_see is None or may_see(name)):
                yield known.row

    def removed_since(self, version: int, may_see: Callable[[str], bool] | None) -> list[str]:
        """The queues that were deleted after a version."""
        return [
            name
            for name, at in self.removed.items()
            if at > version and (may_see is None or may_see(name))
        ]

    def _remember_removed(self, name: str) -> None:
        if len(self.removed) >= _MAX_REMOVED:
            self.removed.clear()
            self.complete_since = self.version + 1
        self.removed[name] = self.version + 1
        self.has_news = True


def _deltas(old: QueueCounts, new: QueueCounts) -> Deltas:
    acked = max(0, new.acks - old.acks)
    failed = max(0, new.failures - old.failures)
    live = new.delayed + new.available + new.in_flight
    was_live = old.delayed + old.available + old.in_flight
    left = acked + failed + max(0, new.expired - old.expired)
    return Deltas(
        max(0, live - was_live + left),
        max(0, new.grants - old.grants),
        acked,
        max(0, new.nacks - old.nacks),
        failed,
    )


def _rates(deltas: Deltas, seconds: float) -> tuple[float, float, float, float, float]:
    """The same per second, with one decimal place."""
    if seconds <= 0:
        return 0.0, 0.0, 0.0, 0.0, 0.0
    return (
        round(deltas.entered / seconds, 1),
        round(deltas.claimed / seconds, 1),
        round(deltas.acked / seconds, 1),
        round(deltas.nacked / seconds, 1),
        round(deltas.failed / seconds, 1),
    )


def _row(name: str, counts: QueueCounts, deltas: Deltas, seconds: float) -> Row:
    return Row(
        name,
        counts.paused,
        counts.ordered,
        counts.behind,
        counts.delayed,
        counts.available,
        counts.in_flight,
        counts.done,
        counts.failed,
        counts.expired,
        counts.oldest_at,
        *_rates(deltas, seconds),
    )
