"""The log: what the pipeline reads, in pages of JSON or as a stream of Arrow batches.

A page and a batch are bounded in bytes, not only in entries: a thousand entries may be a
thousand small payloads or a gigabyte.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from penstock.errors import BadInput
from penstock.model.delivery import LogPage
from penstock.model.limits import MAX_OFFSET, MAX_PAGE
from penstock.model.message import Offset
from penstock.model.reports import Preview
from penstock.server.call import Call
from penstock.server.reading import Body
from penstock.server.replies import Streamed
from penstock.server.routing import Empty, Need, Route
from penstock.wire.bodies import ArchivedBody, LogEnd
from penstock.wire.codecs import ARROW_STREAM, JSON
from penstock.wire.payloads import JsonLogPage

__all__ = ["ROUTES"]

#: Payload bytes of one page or record batch.
PAGE_BYTES: Final = 16 * 1024 * 1024
#: Bytes of one Arrow stream. The HTTP server keeps whatever it is given, however slowly the
#: caller reads it, so a stream of the whole log would be the whole log in memory.
STREAM_BYTES: Final = 64 * 1024 * 1024
#: Entries of one record batch: enough that its fixed cost does not show.
_BATCH: Final = 10_000


class LogQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which part of the log, and how."""

    start: int = field(default=0, name="from")
    to: int | None = None
    """The offset to stop before; a stream of Arrow batches goes on for as long as it may."""
    limit: int = MAX_PAGE
    """Entries of a page; Arrow streams have none."""
    payloads: bool = False
    format: str = "json"
    """``json`` or ``arrow``."""


class PreviewQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """A filter, and the offset to look from."""

    filter: str
    start: int = 0


async def read_log(call: Call, query: LogQuery, body: Empty) -> LogPage | Streamed:  # noqa: ARG001
    """Committed entries from an offset on."""
    if query.to is not None and not query.start <= query.to <= MAX_OFFSET:
        raise BadInput("to is not below from.", field="to", limit=MAX_OFFSET)
    if query.format == "arrow":
        # The first page is read before the reply begins, so that bad input still gets a 400.
        first = await _page(call, query, _BATCH)
        return Streamed(ARROW_STREAM, _arrow(call, query, first))
    if query.format != "json":
        raise BadInput("format is json or arrow.", field="format")
    return await _page(call, query, query.limit)


async def _arrow(call: Call, query: LogQuery, page: LogPage) -> AsyncIterator[bytes]:
    from penstock.wire.arrow import LogWriter  # noqa: PLC0415  (an extra)

    writer = LogWriter()
    end = await call.broker.log_end() if query.to is None else query.to
    room = STREAM_BYTES
    while page.entries and not call.service.stopping.is_set():
        part = writer.write(page.entries)
        room -= len(part)
        yield part
        if page.next_offset >= end or room <= 0:
            break
        page = await _page(call, replace(query, start=page.next_offset, to=end), _BATCH)
    yield writer.finish()


async def _page(call: Call, query: LogQuery, limit: int) -> LogPage:
    """Entries in bounds; with payloads, as many as fit one page."""
    page = _before(query.to, await call.broker.read_log(query.start, limit=limit))
    if not query.payloads or not page.entries:
        return page
    room = PAGE_BYTES
    fitting = 0
    for entry in page.entries:
        room -= entry.message.size
        if room < 0 and fitting:
            break
        fitting += 1
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


async def archived(call: Call, query: Empty, body: ArchivedBody) -> None:  # noqa: ARG001
    """Tell retention what has a verified copy (A1)."""
    await call.broker.archived(body.through)


async def preview(call: Call, query: PreviewQuery, body: Empty) -> Preview:  # noqa: ARG001
    """What a filter takes from the log."""
    return await call.broker.preview(query.filter, start=query.start)


_EVERYTHING: Final = Need("consume")

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
        method="POST",
        path="/v1/log/archived",
        verb="archived",
        summary="Everything up to an offset has a verified copy: retention may go on",
        need=Need("admin"),
        handler=archived,
        query=Empty,
        body=Body(ArchivedBody),
        status=204,
        errors=(BadInput,),
        tag="log",
    ),
    Route(
        method="GET",
        path="/v1/preview",
        verb="preview",
        summary="What a filter takes from the log: count and sample",
        need=_EVERYTHING,
        handler=preview,
        query=PreviewQuery,
        replies=((JSON, Preview),),
        errors=(BadInput,),
        tag="log",
    ),
)
