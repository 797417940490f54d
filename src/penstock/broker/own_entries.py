"""Log entries that a caller may read without a grant on the whole log (T1).

A job that is repeated has to read its earlier work: a consumer reads the messages that its queue
handed out, a publisher the batch that it published. Both page through the log here and get only
their own entries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from penstock.broker.publish import check_batch_id
from penstock.broker.scope import Scope, check_count, check_offset
from penstock.errors import UnknownMessage
from penstock.model.delivery import LogPage
from penstock.model.limits import DLQ_SUFFIX, MAX_PAGE, check_name, check_queue_name
from penstock.model.message import Message

__all__ = ["OwnEntries"]

#: Payload bytes per page; a larger entry is a page of its own.
_PAGE_BYTES: Final = 16 * 1024 * 1024


class OwnEntries(Scope):
    """The log entries of one queue or one batch, with payloads."""

    async def queue_log(self, queue: str, start: int, *, limit: int = MAX_PAGE) -> LogPage:
        """Entries from an offset on whose messages have, or had, deliveries in the queue.

        Only while these are on record. ``limit`` counts the log entries that are scanned.
        """
        check_queue_name(queue)
        home = queue.removesuffix(DLQ_SUFFIX)
        await self._engine.get_queue(self.tenant, home)

        async def own(messages: Sequence[Message]) -> set[int]:
            first, count = messages[0].offset, len(messages)
            history = await self._engine.read_history(self.tenant, first, count, home)
            ids = {entry.message_id for entry in history.entries}
            return {
                message.offset
                for message in messages
                if message.id in ids
                # Its history is stored under its first offset.
                or (message.is_replacement and await self._is_in(home, message))
            }

        return await self._own_page(start, limit, own)

    async def batch_log(
        self, topic: str, batch_id: str, start: int, *, limit: int = MAX_PAGE
    ) -> LogPage:
        """Entries from an offset on that were published to a topic under a batch id.

        Only while the id is remembered. ``limit`` counts the log entries that are scanned.
        """
        check_name(topic, "topic")
        check_batch_id(batch_id, None)
        published = await self._engine.batch(self.tenant, topic, batch_id)
        offsets = {int(one.offset) for one in published or ()}

        async def own(messages: Sequence[Message]) -> set[int]:
            return {message.offset for message in messages if message.offset in offsets}

        return await self._own_page(start, limit, own)

    async def _is_in(self, queue: str, message: Message) -> bool:
        try:
            found = await self._engine.message(self.tenant, message.id)
        except UnknownMessage:
            return False  # Retention has removed it meanwhile.
        return any(one.queue.removesuffix(DLQ_SUFFIX) == queue for one in found.deliveries)

    async def _own_page(
        self, start: int, limit: int, own: Callable[[Sequence[Message]], Awaitable[set[int]]]
    ) -> LogPage:
        offset = check_offset("start", start)
        check_count("limit", limit, MAX_PAGE)
        page = await self._engine.read_log(self.tenant, offset, limit)
        if not page.entries:
            return page
        offsets = await own([entry.message for entry in page.entries])
        fitting, remaining = 0, _PAGE_BYTES
        for entry in page.entries:
            remaining -= entry.message.size if entry.message.offset in offsets else 0
            if remaining < 0 and fitting:
                break
            fitting += 1
        full = await self._engine.read_log(self.tenant, offset, fitting, payloads=True)
        kept = tuple(entry for entry in full.entries if entry.message.offset in offsets)
        return LogPage(kept, full.next_offset)
