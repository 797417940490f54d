"""Assign: give a queue the messages that an external router selected in the log (R1).

It is ``route`` for named entries, with one transaction per call, and it locks the queue's row in
the same way: two routers of one queue take turns, and each continues at the cursor of the other.
The cursor never passes the settled end of the log (L2). Joining the publishes is left to ``route``.

Publishes already write to a queue that has joined, and an ordered queue may then hold deliveries
without a partition (see ``mending``). The external router does not know of them, so for such a
queue every entry of the range is examined, as ``route`` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from penstock.model.delivery import RouteReply
from penstock.model.identity import StoreIdentity, check_store
from penstock.model.message import Message, Offset
from penstock.storage.assignment import Assignment
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.core import Core
from penstock.storage.sql.identities import identity, identity_in
from penstock.storage.sql.mending import lock
from penstock.storage.sql.reading import end_of_log
from penstock.storage.sql.route import add_entries, read_entries
from penstock.storage.sql.runs import segment_of
from penstock.storage.sql.segments import Segment
from penstock.storage.sql.work import Work

__all__ = ["assign"]

#: Bounds of one read and write. All batches of a call are one transaction.
_MAX_SEGMENTS: Final = 1_000
_MAX_ENTRIES: Final = 10_000


async def assign(
    core: Core, tenant: str, name: str, asked: Assignment, store: StoreIdentity | None
) -> RouteReply:
    """Assign the named entries, and advance the cursor to the end of the range."""
    if store is not None:
        # Begins a new epoch if this database is a copy; the transaction then compares epochs.
        await identity(core, tenant)
    settled = (await core.stable()).settled

    async def act(work: Work) -> RouteReply:
        if store is not None:
            present = await identity_in(work.session, tenant)
            check_store(present, store, "The assignment")
        queue = work.tenant.find_own(name)
        cursor, joining, closing = await lock(work, queue)
        if not asked.is_due(name, queue.policy.filter, cursor) or cursor is None:
            return RouteReply(0, 0, None if cursor is None else Offset(cursor))
        asked.check_end(await end_of_log(work.session, work.tenant.number, settled))
        left = asked.left(cursor)
        if joining is not None and queue.ordered:
            assigned = await _add_all(core, work, queue, cursor, asked.end)
        else:
            assigned = await _add_named(core, work, queue, asked, left)
        await work.session.run(
            "move_cursor", queue=queue.number, cursor=asked.end, joining=joining, closing=closing
        )
        work.tell(queue)
        return RouteReply(len(left), assigned, Offset(asked.end))

    return await core.transact(tenant, act)


async def _add_named(
    core: Core, work: Work, queue: Queue, asked: Assignment, left: Sequence[int]
) -> int:
    """Add the named entries; returns how many were added."""
    assigned = 0
    for lot in _lots(left):
        entries = await _read(work, lot)
        asked.check_found(lot, entries)
        assigned += await add_entries(core, work, queue, list(entries.values()))
        # A replaced message has several entries: the next lot must see that it was added.
        await work.write()
    return assigned


async def _add_all(core: Core, work: Work, queue: Queue, cursor: int, end: int) -> int:
    """Add every entry of the range that the filter takes; returns how many were added."""
    assigned = 0
    following: int | None = cursor
    while following is not None and following < end:
        last, _ = segment_of(end - 1)
        entries, following = await read_entries(work, following, last, _MAX_ENTRIES)
        inside = [entry for entry in entries if entry.offset < end]
        assigned += await add_entries(core, work, queue, inside)
        await work.write()
    return assigned


def _lots(offsets: Sequence[int]) -> Iterator[Sequence[int]]:
    """The offsets in lots that each touch a bounded number of segments."""
    begin = count = last = 0
    for position, offset in enumerate(offsets):
        number, _ = segment_of(offset)
        if count == _MAX_SEGMENTS or position - begin == _MAX_ENTRIES:
            yield offsets[begin:position]
            begin, count = position, 0
        if not count or number != last:
            count, last = count + 1, number
    if begin < len(offsets):
        yield offsets[begin:]


async def _read(work: Work, offsets: Sequence[int]) -> dict[int, Message]:
    """The entries at these offsets, in order; missing ones are left out.

    They are not cached: history is read once, and would evict the segments being claimed.
    """
    rows = await work.session.fetch(
        "read_heads",
        tenant=work.tenant.number,
        numbers=sorted({segment_of(offset)[0] for offset in offsets}),
    )
    segments = {
        number: Segment.read(number, work.tenant.number, published_at, heads, None)
        for number, published_at, heads in rows
    }
    found: dict[int, Message] = {}
    for offset in offsets:
        number, index = segment_of(offset)
        segment = segments.get(number)
        if segment is not None and index < len(segment.heads):
            found[offset] = segment.message(index)
    return found
