"""Live statistics: a stream of the counts of all queues, and their recent past (T1).

The stream begins with every queue that the caller may read, then sends those that changed, about
once per second. All viewers with a grant on every queue get the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from itertools import islice
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import astuple

from penstock.errors import BadInput, Busy, PenstockError, UnknownQueue
from penstock.model.limits import check_queue_name
from penstock.server.call import Call
from penstock.server.live import COLUMNS, HISTORY_COLUMNS, Board
from penstock.server.live.board import Row
from penstock.server.replies import Streamed
from penstock.server.routing import ANY_NAME, EVERYTHING, Empty, Need, Route
from penstock.wire.codecs import EVENT_STREAM, JSON, encode_json
from penstock.wire.problems import to_problem

__all__ = ["ROUTES"]

#: Interval of keep-alive comments; proxies close idle connections after a minute.
_HEARTBEAT_S: Final = 10.0
#: Rows per event: a browser parses one in a millisecond or two.
_ROWS: Final = 1_000


class Begin(Struct, frozen=True):
    """The first event: what the rows of the others hold."""

    columns: tuple[str, ...]


class Change(Struct, frozen=True):
    """Queues that changed. ``at`` is the server's time, for ages."""

    at: int
    rows: list[Row]
    removed: list[str]
    reset: bool = False
    """Forget all queues first."""
    complete: bool = True
    """False if more rows follow: of the same moment, or of queues that were not read yet."""


class HistoryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The queue, or all queues together; the last hour or the last day."""

    queue: str | None = None
    span: Literal["hour", "day"] = "hour"


class StatsHistory(Struct, frozen=True):
    """Samples, oldest first. Between two samples nothing changed."""

    at: int
    """The server's time, in epoch milliseconds."""
    columns: tuple[str, ...]
    samples: list[list[int]]


async def stats_stream(call: Call, query: Empty, body: Empty) -> Streamed:  # noqa: ARG001
    """The counts of the queues that the caller may read, for as long as it stays connected."""
    call.service.check_waits(call.credential.tenant)
    return Streamed(EVENT_STREAM, _events(call))


async def _events(call: Call) -> AsyncGenerator[bytes, None]:
    yield _event("begin", Begin(COLUMNS))
    try:
        async for event in _changes(call):
            yield event
    except PenstockError as error:
        # The credential was revoked or the store closed: send a last event.
        yield _event("problem", to_problem(error, call.request_id))
    finally:
        call.end()


async def _changes(call: Call) -> AsyncGenerator[bytes, None]:
    service = call.service
    with service.live.watching(call.credential.tenant) as board:
        version = -1
        while not service.stopping.is_set():
            await call.check_again()
            news = board.news
            if version < board.version:
                reset = version < board.complete_since
                may_see = _filter(call)
                known = -1 if reset else version
                version = board.version
                for event in _rows(board, known, may_see, call.service.now(), reset=reset):
                    yield event
                    await asyncio.sleep(0)
            if board.news is news and not await call.wait_for(_news(news)):
                yield b": watching\n\n"


async def _news(news: asyncio.Event) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(_HEARTBEAT_S):
            return await news.wait()
    return False


def _filter(call: Call) -> Callable[[str], bool] | None:
    """Which queues the caller may see; None for all."""
    credential = call.credential
    if credential.allows("read", EVERYTHING):
        return None
    return lambda name: credential.allows("read", name)


def _rows(
    board: Board, known: int, may_see: Callable[[str], bool] | None, now: int, *, reset: bool
) -> list[bytes]:
    if may_see is None and known == board.version - 1 and not reset:
        # The usual case: one text for all viewers.
        if board.shared is None or board.shared[0] != board.version:
            board.shared = board.version, _encoded(board, known, None, now, reset=False)
        return board.shared[1]
    return _encoded(board, known, may_see, now, reset=reset)


def _encoded(
    board: Board, known: int, may_see: Callable[[str], bool] | None, now: int, *, reset: bool
) -> list[bytes]:
    rows = board.rows_since(known, may_see)
    removed = [] if reset else board.removed_since(known, may_see)
    events: list[bytes] = []
    some = list(islice(rows, _ROWS))
    while some or not events:
        following = list(islice(rows, _ROWS))
        complete = board.is_complete and not following
        events.append(_event("queues", Change(now, some, removed, reset, complete)))
        some, removed, reset = following, [], False
    return events


def _event(name: str, value: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), encode_json(value))


async def stats_history(call: Call, query: HistoryQuery, body: Empty) -> StatsHistory:  # noqa: ARG001
    """The recent past of one queue, or of the tenant."""
    if query.queue is None:
        call.check("read", EVERYTHING)
    else:
        check_queue_name(query.queue)
        call.check("read", query.queue)
        await call.broker.queue(query.queue)
    await call.turn()
    tenant = call.credential.tenant
    await call.service.live.histories.load(tenant)
    found = call.service.live.histories.get(tenant, query.queue)
    now = call.service.now()
    samples = [] if found is None else found.recent(now // 1000, day=query.span == "day")
    level = await call.service.live.level(tenant, query.queue)
    if level is not None:
        # A queue in which nothing happens has no samples, but it has a level.
        samples.append([now // 1000, *astuple(level), *[0] * (len(HISTORY_COLUMNS) - 6)])
    return StatsHistory(now, HISTORY_COLUMNS, samples)


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/stats/stream",
        verb="stats_stream",
        summary="The counts of all queues as server-sent events: first all, then what changed",
        need=Need("read", ANY_NAME),
        handler=stats_stream,
        query=Empty,
        replies=((EVENT_STREAM, None),),
        errors=(Busy,),
        tag="stats",
    ),
    Route(
        method="GET",
        path="/v1/stats/history",
        verb="stats_history",
        summary="The last hour or day of a queue, or of all queues together",
        need=Need("read", ANY_NAME),
        handler=stats_history,
        query=HistoryQuery,
        replies=((JSON, StatsHistory),),
        errors=(BadInput, UnknownQueue),
        tag="stats",
    ),
)
