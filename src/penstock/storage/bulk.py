"""Bulk reading: the verbs of the contract that read ranges of the log rather than one message.

Every engine implements ``read_log``, ``log_end`` and ``history``. The other verbs have correct but
slow defaults built on those; engines override them with faster versions.
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

#: The most pieces that ``log_splits`` cuts a range of the log into.
MAX_SPLITS: Final = 10_000


class BulkReading(ABC):
    """Part of the storage contract; ``penstock.storage.contract`` has the rules for all verbs."""

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
        """The offset after the last entry that retention has removed, or 0 if it has removed none.

        A reader that has read up to there has missed nothing, even if later offsets are unused.
        """

    async def log_start(self, tenant: str) -> Offset:
        """The offset of the first entry that is still stored; the end of an empty log."""
        page = await self.read_log(tenant, Offset(0), 1)
        return page.entries[0].message.offset if page.entries else await self.log_end(tenant)

    async def log_splits(
        self, tenant: str, start: Offset, end: Offset, entries: int
    ) -> tuple[Offset, ...]:
        """Offsets that cut the log from ``start`` to ``end`` into pieces of about ``entries``.

        The first is ``start``; the last is the lower of ``end`` and the end of the log. The result
        is ``start`` alone if there is nothing between. The pieces are larger if there would be more
        than ``MAX_SPLITS``. An engine with gaps between its offsets has to count entries.
        """
        last = min(end, await self.log_end(tenant))
        if last <= start:
            return (start,)
        first = min(max(start, await self.log_start(tenant)), last)
        step = max(entries, -((first - last) // MAX_SPLITS))
        return (start, *map(Offset, range(first + step, last, step)), last)

    async def read_log_columns(self, tenant: str, start: Offset, limit: int) -> LogColumns:
        """Like ``read_log``, but as columns; fewer entries if their metadata is large."""
        page = await self.read_log(tenant, start, limit)
        return LogColumns.of((entry.message for entry in page.entries), page.next_offset)

    async def read_payloads(
        self,
        tenant: str,
        offsets: Sequence[int],
        sizes: Sequence[int],  # noqa: ARG002  (for engines that must locate the payloads)
        checksums: Sequence[int],  # noqa: ARG002
    ) -> Sequence[bytes | memoryview] | None:
        """Payloads of entries that were read as columns, with verified checksums (P3, X1).

        The concatenated pieces are the payloads in order of offset; ``sizes`` says where each ends.
        Returns None if retention has removed some of them since. The caller must ensure that the
        offsets are the tenant's: they come from ``read_log_columns`` (T1).
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
        """The queue as it is now. The policy of ``Q.dlq`` is derived from Q's."""

    @abstractmethod
    async def history(self, tenant: str, message_id: MessageId) -> tuple[Event, ...]:
        """Every recorded transition of every delivery of the message."""

    async def read_history(
        self, tenant: str, start: Offset, limit: int, queue: str | None = None
    ) -> HistoryPage:
        """The transitions of the messages in ``limit`` log entries, in all queues or in ``queue``.

        Ordered by message, then as in ``history``. A message is at the offset where it was first
        published: the entry of a replacement has no history of its own.
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
                continue  # Retention has removed it meanwhile.
            found += [
                HistoryEntry(message.id, event) for event in events if queue in (None, event.queue)
            ]
        return HistoryPage(tuple(found), page.next_offset)
