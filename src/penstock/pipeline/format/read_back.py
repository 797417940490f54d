"""Reads log entries at given offsets, whether few or many, dense or sparse.

Offsets that are close together are read in one request, and the entries in between are dropped.
Distant offsets are read by separate requests, several concurrently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

from penstock.client import Client
from penstock.errors import PipelineError
from penstock.model.delivery import LogEntry, LogPage
from penstock.model.limits import MAX_PAGE
from penstock.pipeline.format.claims import Claim
from penstock.pipeline.remote import Remote

__all__ = ["entries_at", "read_back", "runs"]

#: Claims whose payloads are in memory at one time.
_AT_A_TIME: Final = 500
#: Reading up to this many unneeded entries is cheaper than another request.
_GAP: Final = 16
_UNDER_WAY: Final = 4
#: How long an entry may take to become readable: a publish that hangs delays the visible end of
#: the log until the database aborts it.
_VISIBLE_S: Final = 120.0
_LOOK_S: Final = 0.05


#: Reads a page of the log from an offset, with at most the given number of entries.
Pages: TypeAlias = Callable[[int, int], Awaitable[LogPage]]


def read_back(
    remote: Remote, queue: str, claims: Sequence[Claim]
) -> Iterator[tuple[Sequence[Claim], dict[int, LogEntry]]]:
    """The claims in portions, each with the entries that the log still has."""
    for begin in range(0, len(claims), _AT_A_TIME):
        some = claims[begin : begin + _AT_A_TIME]
        yield some, remote.ask(partial(_handed_out, queue, [claim.offset for claim in some]))


async def _handed_out(queue: str, offsets: Sequence[int], q: Client) -> dict[int, LogEntry]:
    """Entries of messages that the queue handed out; the permission to consume it is enough."""

    def pages(start: int, limit: int) -> Awaitable[LogPage]:
        return q.queue_log(queue, start, limit=limit)

    return await entries_at(pages, offsets)


def runs(offsets: Sequence[int], gap: int = _GAP) -> list[tuple[int, int]]:
    """First and last offset of each group of close offsets; ``offsets`` must be ascending."""
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and offset - found[-1][1] <= gap:
            found[-1] = (found[-1][0], offset)
        else:
            found.append((offset, offset))
    return found


async def entries_at(pages: Pages, offsets: Iterable[int]) -> dict[int, LogEntry]:
    """The entries at these offsets, with payloads, except those that retention has removed.

    The entries are committed, but an open publish may hide them for a moment (L2). This waits
    until they are visible.
    """
    wanted = frozenset(offsets)
    remaining = asyncio.Semaphore(_UNDER_WAY)
    found: dict[int, LogEntry] = {}

    async def read(first: int, last: int) -> None:
        async with remaining:
            position = first
            while position <= last:
                limit = min(MAX_PAGE, last - position + 1)
                page = await pages(position, limit)
                found.update(
                    (int(entry.message.offset), entry)
                    for entry in page.entries
                    if entry.message.offset in wanted
                )
                if page.next_offset <= position:
                    await asyncio.sleep(_LOOK_S)
                position = page.next_offset

    try:
        async with asyncio.timeout(_VISIBLE_S):
            await asyncio.gather(*(read(first, last) for first, last in runs(sorted(wanted))))
    except TimeoutError as error:
        raise PipelineError(
            f"The log did not become readable up to offset {max(wanted)} in {_VISIBLE_S:.0f} s."
        ) from error
    return found
