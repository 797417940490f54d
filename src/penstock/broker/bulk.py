"""Bulk reads for servers: pages of columns, payloads and histories.

These are not verbs of the public API, which has ``read_log`` and ``queue_history``; a server
makes Arrow streams from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.broker.scope import Scope, check_count, check_offset
from penstock.model.columns import LogColumns
from penstock.model.limits import check_queue_name
from penstock.model.reports import HistoryPage

__all__ = ["READ_BATCH", "Bulk"]

#: Log entries that one read returns at most.
READ_BATCH: Final = 10_000


class Bulk(Scope):
    """Pages of the log and of its delivery histories."""

    async def read_log_columns(self, start: int, *, limit: int = READ_BATCH) -> LogColumns:
        """Committed log entries from an offset on, as columns."""
        offset = check_offset("start", start)
        check_count("limit", limit, READ_BATCH)
        return await self._engine.read_log_columns(self.tenant, offset, limit)

    async def read_payloads(
        self, offsets: Sequence[int], sizes: Sequence[int], checksums: Sequence[int]
    ) -> Sequence[bytes | memoryview] | None:
        """The payloads of entries read as columns, in order; None if some are gone."""
        return await self._engine.read_payloads(self.tenant, offsets, sizes, checksums)

    async def read_history(
        self, start: int, *, limit: int = READ_BATCH, queue: str | None = None
    ) -> HistoryPage:
        """The transitions, in one queue or in all, of ``limit`` entries from an offset on."""
        offset = check_offset("start", start)
        check_count("limit", limit, READ_BATCH)
        if queue is not None:
            check_queue_name(queue)
        return await self._engine.read_history(self.tenant, offset, limit, queue)
