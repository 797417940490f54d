"""The log as the pipeline reads it: pages of JSON or a stream of Arrow batches.

A page is limited in bytes as well as in entries: a thousand entries may be a thousand small
payloads or a gigabyte. Streams are in ``penstock.server.bulk``.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from penstock.errors import BadInput, Busy, OtherStore
from penstock.model.delivery import LogPage
from penstock.model.identity import StoreIdentity
from penstock.model.limits import MAX_OFFSET, MAX_PAGE
from penstock.model.message import Offset
from penstock.model.reports import Preview
from penstock.model.server_settings import ServerSettings
from penstock.server.call import Call
from penstock.server.loading import ARROW_READS, load
from penstock.server.replies import Streamed
from penstock.server.request_parsing import Body
from penstock.server.routing import ANY_NAME, Empty, Need, Route
from penstock.wire.bodies import ArchivedBody, LogEnd, LogSplits
from penstock.wire.codecs import ARROW_STREAM, JSON
from penstock.wire.payloads import JsonLogPage

__all__ = ["ROUTES"]

#: Payload bytes of one page.
PAGE_BYTES: Final = 16 * 1024 * 1024


class LogQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which part of the log, in which format."""

    start: int = field(default=0, name="from")
    to: int | None = None
    """The offset to stop before. By default an Arrow stream ends at its size limit."""
    limit: int = MAX_PAGE
    """Entries per page; ignored for Arrow streams."""
    payloads: bool = False
    format: str = "json"
    """``json`` or ``arrow``."""
    where: str | None = None
    """For an Arrow stream: only entries for which this filter is TRUE."""
    compression: str = "none"
    """For an Arrow stream: ``none``, ``lz4`` or ``zstd``."""


class SplitsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which part of the log, and about how many entries per piece."""

    to: int
    entries: int
    start: int = field(default=0, name="from")


class HistoryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages' transitions, as an Arrow stream."""

    start: int = field(default=0, name="from")
    to: int | None = None
    format: str = "arrow"
    compression: str = "none"


class PreviewQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """A filter, and the offset to start from."""

    filter: str
    start: int = 0


async def read_log(call: Call, query: LogQuery, body: Empty) -> LogPage | Streamed:  # noqa: ARG001
    """Committed entries from an offset on."""
    if query.format == "arrow":
        await load(ARROW_READS)
        from penstock.server.bulk import log_stream  # noqa: PLC0415  (an extra)

        return await log_stream(
            call,
            query.start,
            query.to,
            payloads=query.payloads,
            where=query.where,
            compression=query.compression,
        )
    if query.format != "json":
        raise BadInput("format must be json or arrow.", field="format")
    if query.where is not None:
        raise BadInput("where requires format=arrow.", field="where")
    if query.to is not None and not query.start <= query.to <= MAX_OFFSET:
        raise BadInput("to must not be below from.", field="to", limit=MAX_OFFSET)
    return await _page(call, query, query.limit)


async def _page(call: Call, query: LogQuery, limit: int) -> LogPage:
    """A page of entries; with payloads, at most as many as fit one page."""
    await call.turn_for(limit)
    page = _before(query.to, await call.broker.read_log(query.start, limit=limit))
    if not query.payloads or not page.entries:
        return page
    remaining = PAGE_BYTES
    fitting = 0
    for entry in page.entries:
        remaining -= entry.message.size
        if remaining < 0 and fitting:
            break
        fitting += 1
    call.hold.take(sum(entry.message.size for entry in page.entries[:fitting]))
    full = await call.broker.read_log(query.start, limit=fitting, payloads=True)
    return _before(query.to, full)


def _before(to: int | None, page: LogPage) -> LogPage:
    if to is None or page.next_offset <= to:
        return page
    kept = tuple(entry for entry in page.entries if entry.message.offset < to)
    return LogPage(kept, Offset(to))


async def log_end(call: Call, query: Empty, body: Empty) -> LogEnd:  # noqa: ARG001
    """The offset after the last committed entry."""
    return LogEnd(await call.broker.log_end())


async def log_trimmed(call: Call, query: Empty, body: Empty) -> LogEnd:  # noqa: ARG001
    """The offset after the last entry that retention removed."""
    return LogEnd(await call.broker.log_trimmed())


async def log_start(call: Call, query: Empty, body: Empty) -> LogEnd:  # noqa: ARG001
    """The first offset that the log still has."""
    return LogEnd(await call.broker.log_start())


async def log_splits(call: Call, query: SplitsQuery, body: Empty) -> LogSplits:  # noqa: ARG001
    """Offsets that divide the log into pieces."""
    return LogSplits(await call.broker.log_splits(query.start, query.to, query.entries))


async def history(call: Call, query: HistoryQuery, body: Empty) -> Streamed:  # noqa: ARG001
    """Every transition in every queue, by message."""
    if query.format != "arrow":
        raise BadInput("format must be arrow.", field="format")
    await load(ARROW_READS)
    from penstock.server.bulk import history_stream  # noqa: PLC0415  (an extra)

    return await history_stream(
        call, query.start, query.to, queue=None, compression=query.compression
    )


async def archived(call: Call, query: Empty, body: ArchivedBody) -> None:  # noqa: ARG001
    """Report to retention up to where a verified copy exists (A1)."""
    await call.broker.archived(body.through, body.store)


async def identity(call: Call, query: Empty, body: Empty) -> StoreIdentity:  # noqa: ARG001
    """Which store this is, for the caller's tenant."""
    return await call.broker.identity()


async def server_settings(call: Call, query: Empty, body: Empty) -> ServerSettings:  # noqa: ARG001
    """The settings that clients and jobs depend on."""
    return await call.broker.server_settings()


async def preview(call: Call, query: PreviewQuery, body: Empty) -> Preview:  # noqa: ARG001
    """Count and sample the log entries that a filter matches."""
    return await call.scan(call.broker.preview(query.filter, start=query.start))


_EVERYTHING: Final = Need("read")

ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/log",
        verb="read_log",
        summary="Entries of the log from an offset on, as JSON or Arrow",
        need=_EVERYTHING,
        handler=read_log,
        query=LogQuery,
        replies=((JSON, JsonLogPage), (ARROW_STREAM, None)),
        errors=(BadInput,),
        tag="log",
    ),
    Route(
        method="GET",
        path="/v1/log/end",
        verb="log_end",
        summary="The offset after the last committed entry",
        need=_EVERYTHING,
        handler=log_end,
        query=Empty,
        replies=((JSON, LogEnd),),
        tag="log",
    ),
    Route(
        method="GET",
        path="/v1/log/trimmed",
        verb="log_trimmed",
        summary="The offset after the last entry that retention has removed",
        need=_EVERYTHING,
        handler=log_trimmed,
        query=Empty,
        replies=((JSON, LogEnd),),
        tag="log",
    ),
    Route(
        method="GET",
        path="/v1/log/start",
        verb="log_start",
        summary="The first offset that the log still has",
        need=_EVERYTHING,
        handler=log_start,
        query=Empty,
        replies=((JSON, LogEnd),),
        tag="log",
    ),
    Route(
        method="GET",
        path="/v1/log/splits",
        verb="log_splits",
        summary="Offsets that divide a part of the log into pieces of about equally many entries",
        need=_EVERYTHING,
        handler=log_splits,
        query=SplitsQuery,
        replies=((JSON, LogSplits),),
        errors=(BadInput,),
        tag="log",
    ),
    Route(
        method="GET",
        path="/v1/history",
        verb="read_history",
        summary="Every transition in every queue, by message, as Arrow",
        need=_EVERYTHING,
        handler=history,
        query=HistoryQuery,
        replies=((ARROW_STREAM, None),),
        errors=(BadInput,),
        tag="log",
    ),
    Route(
        method="POST",
        path="/v1/log/archived",
        verb="archived",
        summary="Report that a verified copy exists up to an offset, so that retention may proceed",
        need=Need("admin"),
        handler=archived,
        query=Empty,
        body=Body(ArchivedBody),
        status=204,
        errors=(BadInput, OtherStore),
        tag="log",
    ),
    Route(
        method="GET",
        path="/v1/store",
        verb="identity",
        summary="The identity of this store: its offsets are not valid in any other",
        need=Need("read", ANY_NAME),
        handler=identity,
        query=Empty,
        replies=((JSON, StoreIdentity),),
        tag="log",
    ),
    Route(
        method="GET",
        path="/v1/settings",
        verb="server_settings",
        summary="The settings of the server that clients and jobs depend on",
        need=Need("read", ANY_NAME),
        handler=server_settings,
        query=Empty,
        replies=((JSON, ServerSettings),),
        tag="log",
    ),
    Route(
        method="GET",
        path="/v1/preview",
        verb="preview",
        summary="Count and sample the log entries that a filter matches",
        need=_EVERYTHING,
        handler=preview,
        query=PreviewQuery,
        replies=((JSON, Preview),),
        errors=(BadInput, Busy),
        tag="log",
    ),
)
