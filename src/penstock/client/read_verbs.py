"""The verbs that read, over HTTP. All of them may be retried."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from penstock.broker.bulk import READ_BATCH
from penstock.broker.claim import check_wait
from penstock.broker.failures import check_failures
from penstock.broker.publish import check_batch_id
from penstock.broker.scope import check_count, check_find, check_offset, to_message_id
from penstock.client.address import with_query
from penstock.client.calling import read
from penstock.client.replay import is_sendable
from penstock.client.scope import UNENCODABLE, Scope
from penstock.client.transport import Request
from penstock.errors import UnknownRoute
from penstock.filters import Completions, Diagnosis, complete, parse, validate
from penstock.model.delivery import (
    Event,
    FoundMessages,
    LogPage,
    MessageDeliveries,
    QueueStats,
    Result,
)
from penstock.model.duration import Duration, to_ms
from penstock.model.failures import FAILURE_SCAN, Failures
from penstock.model.identity import StoreIdentity
from penstock.model.limits import MAX_OFFSET, MAX_PAGE, Limits, check_name, check_queue_name
from penstock.model.message import Offset
from penstock.model.reports import HistoryPage, Preview, Why
from penstock.model.server_settings import ServerSettings
from penstock.wire.bodies import (
    CompleteBody,
    EventList,
    LogEnd,
    LogSplits,
    ResultReply,
    ValidateBody,
)
from penstock.wire.codecs import encode_msgpack

__all__ = ["Reading"]

_LOG: Final = msgspec.msgpack.Decoder(LogPage)
_IDENTITY: Final = msgspec.msgpack.Decoder(StoreIdentity)
_SETTINGS: Final = msgspec.msgpack.Decoder(ServerSettings)
_END: Final = msgspec.msgpack.Decoder(LogEnd)
_SPLITS: Final = msgspec.msgpack.Decoder(LogSplits)
_PREVIEW: Final = msgspec.msgpack.Decoder(Preview)
_MESSAGE: Final = msgspec.msgpack.Decoder(MessageDeliveries)
_FOUND: Final = msgspec.msgpack.Decoder(FoundMessages)
_RESULT: Final = msgspec.msgpack.Decoder(ResultReply)
_EVENTS: Final = msgspec.msgpack.Decoder(EventList)
_HISTORY: Final = msgspec.msgpack.Decoder(HistoryPage)
_STATS: Final = msgspec.msgpack.Decoder(QueueStats)
_FAILURES: Final = msgspec.msgpack.Decoder(Failures)
_WHY: Final = msgspec.msgpack.Decoder(Why)
_DIAGNOSIS: Final = msgspec.msgpack.Decoder(Diagnosis)
_COMPLETIONS: Final = msgspec.msgpack.Decoder(Completions)


class Reading(Scope):
    """The verbs that change nothing."""

    async def read_log(
        self, start: int = 0, *, limit: int = MAX_PAGE, payloads: bool = False
    ) -> LogPage:
        """Committed log entries from an offset on."""
        offset = check_offset("start", start)
        check_count("limit", limit, READ_BATCH)
        query = (("from", offset), ("limit", limit), ("payloads", payloads or None))
        return await self._get(_LOG, "/v1/log", query)

    async def queue_log(self, queue: str, start: int, *, limit: int = MAX_PAGE) -> LogPage:
        """Entries whose messages have, or had, deliveries in the queue, with payloads."""
        check_queue_name(queue)
        check_offset("start", start)
        check_count("limit", limit, MAX_PAGE)
        query = (("from", start), ("limit", limit))
        return await self._get(_LOG, f"/v1/queues/{queue}/log", query, timeout_ms=self._bulk_ms)

    async def batch_log(
        self, topic: str, batch_id: str, start: int, *, limit: int = MAX_PAGE
    ) -> LogPage:
        """Entries that were published to a topic under a batch id, with payloads."""
        check_name(topic, "topic")
        check_batch_id(batch_id, None)
        check_offset("start", start)
        check_count("limit", limit, MAX_PAGE)
        query = (("id", batch_id), ("from", start), ("limit", limit))
        return await self._get(_LOG, f"/v1/topics/{topic}/batch", query, timeout_ms=self._bulk_ms)

    async def identity(self) -> StoreIdentity:
        """The identity of the server's store."""
        return await self._get(_IDENTITY, "/v1/store")

    async def server_settings(self) -> ServerSettings:
        """The settings that clients and jobs depend on; of an older server, the defaults."""
        try:
            return await self._get(_SETTINGS, "/v1/settings")
        except UnknownRoute:
            limits = Limits()
            return ServerSettings(
                routing="broker", log_retention_ms=limits.log_retention_ms, archive=False
            )

    async def log_end(self) -> Offset:
        """The offset after the last committed entry."""
        return (await self._get(_END, "/v1/log/end")).offset

    async def log_trimmed(self) -> Offset:
        """The offset after the last entry that retention has removed; 0 if none."""
        return (await self._get(_END, "/v1/log/trimmed")).offset

    async def log_start(self) -> Offset:
        """The first offset that is still there; the end of the log if it is empty."""
        return (await self._get(_END, "/v1/log/start")).offset

    async def log_splits(self, start: int, end: int, entries: int) -> tuple[Offset, ...]:
        """Offsets that split a part of the log into pieces of about ``entries`` entries each.

        The first is ``start``, the last the lower of ``end`` and the end of the log.
        """
        first, last = check_offset("start", start), check_offset("end", end)
        check_count("entries", entries, MAX_OFFSET)
        query = (("from", first), ("to", last), ("entries", entries))
        return (await self._get(_SPLITS, "/v1/log/splits", query)).offsets

    async def arrow(self, path: str, query: Iterable[tuple[str, object]] = ()) -> memoryview:
        """One bounded Arrow IPC stream of a path that supports it, such as ``/v1/log``.

        The custom metadata of every batch says where to continue: ``next_offset``, or
        ``cursor`` (empty at the end). Query parameters that are None are left out.
        """
        target = self._target(with_query(path, (*query, ("format", "arrow"))))
        request = Request("GET", target, timeout_ms=self._bulk_ms)
        return memoryview((await self._calls.call(request)).body)

    async def preview(self, filter: str, *, start: int = 0) -> Preview:
        """What a queue with this filter would take from the log: a count and a sample."""
        if not is_sendable(filter):
            parse(filter)
        query = (("filter", filter), ("start", check_offset("start", start)))
        return await self._get(_PREVIEW, "/v1/preview", query, timeout_ms=self._bulk_ms)

    async def validate_filter(self, text: str) -> Diagnosis:
        """Whether the text is a filter; if not, the reason and the position. Does not raise."""
        try:
            body = encode_msgpack(msgspec.convert({"text": text}, ValidateBody))
        except UNENCODABLE:
            return validate(text)
        return read(_DIAGNOSIS, await self._send("POST", "/v1/filters/validate", body))

    async def complete_filter(
        self, text: str, cursor: int, *, headers: Sequence[str] = ()
    ) -> Completions:
        """What may stand at the offset ``cursor`` of a filter, for these known header names."""
        call = {"text": text, "cursor": cursor, "headers": headers}
        try:
            body = encode_msgpack(msgspec.convert(call, CompleteBody))
        except UNENCODABLE:
            return complete(text, cursor, headers)
        return read(_COMPLETIONS, await self._send("POST", "/v1/filters/complete", body))

    async def find(
        self,
        topic: str,
        *,
        id: str | None = None,
        key: str | None = None,
        partition_key: str | None = None,
        start: int = 0,
    ) -> FoundMessages:
        """The messages of a topic with this idempotency id or key."""
        check_find(topic, id, key, partition_key)
        query = (
            ("id", id),
            ("key", key),
            ("partition_key", partition_key),
            ("from", check_offset("start", start) or None),
        )
        return await self._get(_FOUND, f"/v1/topics/{topic}/messages", query)

    async def message(self, message_id: int) -> MessageDeliveries:
        """A message, its payload, and its state in every queue."""
        path = f"/v1/messages/{to_message_id(message_id)}"
        return await self._get(_MESSAGE, path, (("payload", True),))

    async def result(self, queue: str, message_id: int, *, wait_ms: Duration = 0) -> Result | None:
        """How a delivery ended, waiting up to ``wait_ms`` for it; None if it has not ended."""
        wait_ms = to_ms(wait_ms)
        check_wait(wait_ms)
        query = (("queue", check_queue_name(queue)), ("wait_ms", wait_ms or None))
        path = f"/v1/messages/{to_message_id(message_id)}/result"
        reply = await self._get(_RESULT, path, query, timeout_ms=wait_ms, waits=wait_ms > 0)
        return reply.result

    async def history(self, message_id: int) -> tuple[Event, ...]:
        """Every transition of a message's deliveries that is still on record."""
        path = f"/v1/messages/{to_message_id(message_id)}/history"
        return (await self._get(_EVENTS, path)).events

    async def queue_history(
        self, queue: str, start: int = 0, *, limit: int = MAX_PAGE
    ) -> HistoryPage:
        """The transitions in one queue of the messages at and above an offset."""
        path = f"/v1/queues/{check_queue_name(queue)}/history"
        offset = check_offset("start", start)
        check_count("limit", limit, MAX_PAGE)
        query = (("from", offset), ("limit", limit))
        return await self._get(_HISTORY, path, query)

    async def stats(self, queue: str) -> QueueStats:
        """The statistics of a queue."""
        return await self._get(_STATS, f"/v1/queues/{check_queue_name(queue)}/stats")

    async def failures(
        self,
        queue: str,
        *,
        where: str | None = None,
        fingerprint: str | None = None,
        limit: int = FAILURE_SCAN,
    ) -> Failures:
        """The queue's failed deliveries grouped by error, the largest group first."""
        check_failures(queue, where, fingerprint, limit)
        query = (("where", where), ("fingerprint", fingerprint), ("limit", limit))
        path = f"/v1/queues/{queue}/failures"
        return await self._get(_FAILURES, path, query, timeout_ms=self._bulk_ms)

    async def explain(self, queue: str, message_id: int) -> Why:
        """Why a queue does or does not hand out a message."""
        path = f"/v1/messages/{to_message_id(message_id)}/explain"
        return await self._get(_WHY, path, (("queue", check_queue_name(queue)),))
