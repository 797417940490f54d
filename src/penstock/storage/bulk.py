"""Reading in bulk: the verbs of the contract that are about all of the log, and not one message.

Every engine has ``read_log``, ``log_end`` and ``history``; the others follow from them, in a way
that is right and slow. Engines have quicker ways of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from penstock.errors import UnknownMessage
from penstock.model.columns import LogColumns
from penstock.model.delivery import Event, LogPage
from penstock.model.message import MessageId, Offset
from penstock.model.queue import QueueInfo
from penstock.model.reports import HistoryEntry, HistoryPage

__all__ = ["MAX_SPLITS", "BulkReading"]

#: Pieces that ``log_splits`` cuts a part of the log into.
MAX_SPLITS: Final = 10_000


class BulkReading(ABC):
    """A part of the contract; see ``penstock.storage.contract`` for the rules of all verbs."""

    @abstractmethod
    async def read_log(
        self, tenant: str, start: Offset, limit: int, *, payloads: bool = False
    ) -> LogPage:
        """Committed entries at or above ``start``, in order; the prefix is stable (L1, L2)."""

    @abstractmethod
    async def log_end(self, tenant: str) -> Offset:
        """The offset after the last committed entry of the tenant."""

    @abstractmethod
    async def log_trimmed(self, tenant: str) -> Offset:
        """The offset after the last entry that retention has removed; 0: it has removed none.

        Who has read up to there has missed nothing, even if offsets were left out since.
        """

    async def log_start(self, tenant: str) -> Offset:
        """The first offset that is still there; without any, where the log ends."""
        page = await self.read_log(tenant, Offset(0), 1)
        return page.entries[0].message.offset if page.entries else await self.log_end(tenant)

    async def log_splits(
        self, tenant: str, start: Offset, end: Offset, entries: int
    ) -> tuple[Offset, ...]:
        """Offsets that cut the log from ``start`` to ``end`` into pieces of about ``entries``.

        The first is ``start``, the last ``end`` or the end of the log, whichever is lower;
        ``start`` alone: there is nothing between. There are at most ``MAX_SPLITS`` pieces;
        where that is too few for ``entries``, they are larger. An engine whose offsets are
        not numbered one after the other has to count.
        """
        last = min(end, await self.log_end(tenant))
        if last <= start:
            return (start,)
        first = min(max(start, await self.log_start(tenant)), last)
        step = max(entries, -((first - last) // MAX_SPLITS))
        return (start, *map(Offset, range(first + step, last, step)), last)

    async def read_log_columns(self, tenant: str, start: Offset, limit: int) -> LogColumns:
        """What ``read_log`` gives, as columns; fewer where their metadata is large."""
        page = await self.read_log(tenant, start, limit)
        return LogColumns.of((entry.message for entry in page.entries), page.next_offset)

    async def read_payloads(
        self,
        tenant: str,
        offsets: Sequence[int],
        sizes: Sequence[int],  # noqa: ARG002  (for engines that have to look for the payloads)
        checksums: Sequence[int],  # noqa: ARG002
    ) -> Sequence[bytes | memoryview] | None:
        """The payloads of entries that were read as columns, in pieces, checked (P3, X1).

        The pieces, one after the other, are the payloads in order of offset; where each ends,
        ``sizes`` say. None: retention has removed some of them since. That the offsets are
        the tenant's is the caller's promise: they come from ``read_log_columns`` (T1).
        """
        found: dict[int, bytes | None] = dict.fromkeys(offsets)
        position = Offset(offsets[0]) if offsets else None
        while position is not None and position <= offsets[-1]:
            page = await self.read_log(tenant, position, len(offsets), payloads=True)
            for entry in page.entries:
                if entry.message.offset in found:
                    found[entry.message.offset] = entry.payload
            position = page.next_offset if page.entries else None
        pieces = [payload for payload in found.values() if payload is not None]
        return pieces if len(pieces) == len(offsets) else None

    @abstractmethod
    async def get_queue(self, tenant: str, name: str) -> QueueInfo:
        """The queue as it is. For ``Q.dlq`` the policy is derived from Q's."""

    @abstractmethod
    async def history(self, tenant: str, message_id: MessageId) -> tuple[Event, ...]:
        """Every transition of every delivery of the message that is still on record."""

    async def read_history(
        self, tenant: str, start: Offset, limit: int, queue: str | None = None
    ) -> HistoryPage:
        """The transitions of the messages among ``limit`` entries of the log, in all queues.

        Or in one. By message, and of each in the order of ``history``. A message stands where
        it was published: the entry of a replacement has no history of its own.
        """
        if queue is not None:
            await self.get_queue(tenant, queue)
        page = await self.read_log(tenant, start, limit)
        found: list[HistoryEntry] = []
        for message in (entry.message for entry in page.entries):
            if message.is_replacement:
                continue
            try:
                events = await self.history(tenant, message.id)
            except UnknownMessage:
                continue  # Retention was quicker.
            found += [
                HistoryEntry(message.id, event) for event in events if queue in (None, event.queue)
            ]
        return HistoryPage(tuple(found), page.next_offset)
