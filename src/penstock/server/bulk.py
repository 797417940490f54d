"""Arrow streams: the log, histories and deliveries in bulk, bounded and resumable.

A stream ends after ``STREAM_BYTES``, however long the requested range is: the HTTP server buffers
what it is given while the caller reads slowly, and the caller buffers it too. The custom metadata
of every record batch has the position to continue from; the last batch may have no rows.
Batches are built in steps of a few milliseconds, with turns for other calls in between; filters
and compression release the GIL and run in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Final, NamedTuple

from penstock.broker.scope import to_where
from penstock.errors import BadInput
from penstock.filters import Filter
from penstock.model.delivery import Page, Snapshot
from penstock.model.limits import MAX_OFFSET, MAX_PAGE
from penstock.model.message import Offset
from penstock.model.states import State
from penstock.server.call import Call
from penstock.server.replies import Streamed, header_bytes, pieces
from penstock.wire.arrow import (
    DELIVERY_SCHEMA,
    HISTORY_SCHEMA,
    LOG_SCHEMA,
    StreamWriter,
    delivery_batch,
    history_batch,
    joined,
    log_batch,
    with_payloads,
)
from penstock.wire.codecs import ARROW_STREAM

__all__ = ["delivery_stream", "history_stream", "log_stream"]

#: Bytes of one stream, before compression. The caller holds them in one piece: from 32 MiB on,
#: fresh memory costs nine times as much as copying into it (0.72 against 0.08 µs per KiB).
STREAM_BYTES: Final = 16 * 1024 * 1024
#: Payload bytes of one record batch; one payload alone may be larger.
BATCH_BYTES: Final = 4 * 1024 * 1024
#: Log entries per read.
_BATCH: Final = 4_096
#: Entries or deliveries that one stream examines, however few of them it returns.
_SCAN: Final = 1_000_000
#: Deliveries and headers that are converted per turn: some milliseconds.
_SLICE_HEADERS: Final = 5_000
#: Messages per read of histories.
_HISTORIES: Final = 250


class _Part(NamedTuple):
    batch: Any
    mark: dict[str, str]
    """Where to continue after this batch."""
    looked: int
    """How many entries were examined for it."""
    data: bytes = b""
    """The payloads in the batch, concatenated."""


async def log_stream(
    call: Call, start: int, to: int | None, *, payloads: bool, where: str | None, compression: str
) -> Streamed:
    """The log from an offset on, up to the size of one stream."""
    wanted = to_where(where)
    end = await _end(call, start, to)
    parts = _log(call, Offset(start), end, wanted, payloads=payloads)
    return await _streamed(call, StreamWriter(LOG_SCHEMA, compression), parts)


async def history_stream(
    call: Call, start: int, to: int | None, *, queue: str | None, compression: str
) -> Streamed:
    """Every transition, in one queue or in all, of the messages from an offset on."""
    if queue is not None:
        await call.broker.queue(queue)
    end = await _end(call, start, to)
    parts = _history(call, Offset(start), end, queue)
    return await _streamed(call, StreamWriter(HISTORY_SCHEMA, compression), parts)


async def delivery_stream(
    call: Call,
    queue: str,
    state: State,
    cursor: str | None,
    *,
    where: str | None,
    payloads: bool,
    compression: str,
) -> Streamed:
    """Deliveries in one state, from a cursor on."""
    parts = _deliveries(call, queue, state, cursor, where, payloads=payloads)
    return await _streamed(call, StreamWriter(DELIVERY_SCHEMA, compression), parts)


async def _end(call: Call, start: int, to: int | None) -> Offset:
    if to is not None and not start <= to <= MAX_OFFSET:
        raise BadInput("to must not be below from.", field="to", limit=MAX_OFFSET)
    end = await call.broker.log_end()
    return Offset(max(start, end if to is None else min(end, to)))


async def _streamed(call: Call, writer: StreamWriter, parts: AsyncIterator[_Part]) -> Streamed:
    # For the part that is built while another is sent; parts count when they are sent.
    call.hold.take(BATCH_BYTES)
    # The first part is read before the reply begins, so that bad input still gets a 400.
    first = await anext(parts)
    return Streamed(ARROW_STREAM, _written(call, writer, first, parts))


async def _written(
    call: Call, writer: StreamWriter, first: _Part, parts: AsyncIterator[_Part]
) -> AsyncGenerator[bytes, None]:
    part: _Part | None = first
    unwritten: _Part | None = None
    remaining, timeouts = STREAM_BYTES, _SCAN
    while part is not None:
        unwritten = part
        timeouts -= part.looked
        if part.batch.num_rows:
            remaining -= part.batch.nbytes
            for written in await _write(writer, part):
                yield written
            unwritten = None
        if remaining <= 0 or timeouts <= 0 or call.service.stopping.is_set():
            break
        part = await anext(parts, None)
    end = [] if unwritten is None else writer.write(unwritten.batch, unwritten.mark)
    yield b"".join((*end, *writer.finish()))


async def _write(writer: StreamWriter, part: _Part) -> list[bytes]:
    if writer.compresses:
        return await asyncio.to_thread(writer.write, part.batch, part.mark)
    await asyncio.sleep(0)
    return writer.write(part.batch, part.mark, part.data)


# -- the log ---------------------------------------------------------------------------


async def _log(
    call: Call, start: Offset, end: Offset, where: Filter | None, *, payloads: bool
) -> AsyncIterator[_Part]:
    position = start
    while True:
        # There are at most as many entries below the end as offsets.
        limit = min(_BATCH, max(1, end - position))
        columns = await call.broker.read_log_columns(position, limit=limit)
        columns = columns.before(end)
        # Everything below the end was stored before the end was read: no more will come (L2).
        following = columns.next_offset if len(columns) else end
        await _turn(call)
        if where is None:
            batch = log_batch(columns)
        else:
            batch = await asyncio.to_thread(log_batch, columns, where)
        if payloads and batch.num_rows:
            offsets = columns.offset if where is None else batch.column("offset").to_pylist()
            sizes = columns.size if where is None else batch.column("size").to_pylist()
            sums = columns.checksum if where is None else batch.column("checksum").to_pylist()
            for begin, stop in pieces(sizes, BATCH_BYTES):
                cut = slice(begin, stop)
                found = await call.broker.read_payloads(offsets[cut], sizes[cut], sums[cut])
                if found is None:
                    # Retention removed some of them: read the remaining entries again.
                    following = Offset(offsets[begin])
                    break
                await _turn(call)
                data = b"".join(found)
                part = with_payloads(batch.slice(begin, stop - begin), data)
                beyond = offsets[stop] if stop < len(offsets) else following
                yield _Part(part, _at(beyond), 0 if begin else len(columns), data)
        else:
            yield _Part(batch, _at(following), len(columns))
        position = following
        if position >= end:
            return


def _at(offset: int) -> dict[str, str]:
    return {"next_offset": str(offset)}


# -- histories -------------------------------------------------------------------------


async def _history(
    call: Call, start: Offset, end: Offset, queue: str | None
) -> AsyncIterator[_Part]:
    position = start
    while True:
        page = await call.broker.read_history(position, limit=_HISTORIES, queue=queue)
        # A page without transitions does not say how many messages it covers.
        is_last = page.next_offset >= end or page.next_offset == position
        following = end if is_last else page.next_offset
        entries = [entry for entry in page.entries if entry.message_id < end]
        await _turn(call)
        batch = history_batch(entries)
        yield _Part(batch, _at(following), _HISTORIES)
        position = following
        if position >= end:
            return


# -- deliveries ------------------------------------------------------------------------


async def _deliveries(
    call: Call, queue: str, state: State, cursor: str | None, where: str | None, *, payloads: bool
) -> AsyncIterator[_Part]:
    more = True
    while more:
        page = await _page(call, queue, state, cursor, where, payloads=payloads)
        cursor, more = page.cursor, page.cursor is not None
        batch = await _delivery_batch(call, page.items)
        yield _Part(batch, {"cursor": cursor or ""}, max(len(page.items), 1))


async def _delivery_batch(call: Call, items: Sequence[Snapshot]) -> Any:
    """The deliveries as one batch, built in slices: headers take most of the time."""
    batches = []
    for begin, end in pieces([1 + len(item.message.headers) for item in items], _SLICE_HEADERS):
        await _turn(call)
        batches.append(delivery_batch(items[begin:end]))
    return joined(batches)


async def _page(
    call: Call, queue: str, state: State, cursor: str | None, where: str | None, *, payloads: bool
) -> Page:
    """A page of deliveries, at most as many as fit one batch."""

    async def peek(limit: int, *, payloads: bool) -> Page:
        return await call.broker.peek(
            queue, state, where=where, limit=limit, cursor=cursor, payloads=payloads
        )

    page = await peek(MAX_PAGE, payloads=False)
    sizes = [
        header_bytes(item.message.headers) + (item.message.size if payloads else 0)
        for item in page.items
    ]
    _, fitting = next(pieces(sizes, BATCH_BYTES))
    if not page.items or not (payloads or fitting < len(page.items)):
        return page
    return await peek(fitting, payloads=payloads)


async def _turn(call: Call) -> None:
    """Wait for the tenant's next turn."""
    await call.broker.engine.turns.take(call.credential.tenant)
