"""Route: catch a queue up with the log (R1), then let it take publishes directly again.

Publishes skip a queue that is behind. It cannot simply be declared caught up at the end of the
log: a running publish may still consider it behind. So it *joins* first. From that commit on,
every new publish adds its messages to the queue, and the router continues beside them and skips
deliveries that exist. When no publish is open that may have begun before that commit, all missing
messages are in the log; when those are routed too, the queue is caught up. None of these steps
waits for another transaction, however long a caller's own transaction stays open.

A queue that is caught up and has become ordered is backfilled here too (see ``compaction``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from penstock.errors import CommitFailed, StoreBusy
from penstock.filters import parse
from penstock.model.delivery import RouteReply
from penstock.model.identity import StoreIdentity, check_store
from penstock.model.message import Message, Offset
from penstock.storage.assignment import Assignment
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.compaction import UNKNOWN, backfill, give_partitions, is_stray, lock
from penstock.storage.sql.core import Core
from penstock.storage.sql.deliveries import DeliveryGroup, message_id, segment_of
from penstock.storage.sql.keys import hold_keys, newest_entries
from penstock.storage.sql.log import end_of_log, scan
from penstock.storage.sql.retention import share
from penstock.storage.sql.store import identity, identity_in
from penstock.storage.sql.work import Work

__all__ = ["add_entries", "assign", "read_entries", "route"]


class _Step(NamedTuple):
    """The progress of one transaction."""

    queue: int
    """Its number: a deleted and recreated queue has another one."""
    reply: RouteReply
    at_end: bool
    """Whether everything settled was routed."""
    needs_backfill: bool = False
    """Whether the queue is caught up but needs a backfill."""


async def route(core: Core, tenant: str, name: str, limit: int) -> RouteReply:
    """Route up to ``limit`` entries; at the end of the log, try to become caught up."""
    step = await _step(core, tenant, name, limit)
    if step.needs_backfill:
        await backfill(core, tenant, name)
    scanned, assigned = step.reply.scanned, step.reply.assigned
    while step.reply.cursor is not None and step.at_end:
        try:
            if not await _comes_closer(core, tenant, name, step.queue):
                break
            step = await _step(core, tenant, name, limit - scanned)
        except (StoreBusy, CommitFailed):
            # The routed part is committed (E1), and the next call continues from there.
            break
        scanned += step.reply.scanned
        assigned += step.reply.assigned
    return RouteReply(scanned=scanned, assigned=assigned, cursor=step.reply.cursor)


async def _step(core: Core, tenant: str, name: str, limit: int) -> _Step:
    """Route entries up to the settled end of the log; at the end, join or become caught up."""
    settled = (await core.stable()).settled

    async def act(work: Work) -> _Step:
        queue = work.tenant.find_own(name)
        routed = await lock(work, queue)
        cursor, joining, closing = routed
        if cursor is None:
            nothing = RouteReply(scanned=0, assigned=0, cursor=None)
            return _Step(queue.number, nothing, at_end=True, needs_backfill=routed.needs_backfill)
        entries, following = await read_entries(work, cursor, settled, limit)
        assigned = await add_entries(core, work, queue, entries)
        at_end = following is None
        caught_up = at_end and closing is not None and settled >= closing
        if at_end and (joining is None or caught_up):
            work.raised += await work.session.run("raise_version", tenant=work.tenant.number)
        if at_end and joining is None:
            joining = UNKNOWN
        position = max(following or message_id(settled + 1, 0), cursor)
        await work.session.run(
            "move_cursor",
            queue=queue.number,
            cursor=None if caught_up else position,
            joining=None if caught_up else joining,
            closing=None if caught_up else closing,
        )
        work.notify(queue)
        shown = None if caught_up else Offset(position)
        reply = RouteReply(scanned=len(entries), assigned=assigned, cursor=shown)
        return _Step(queue.number, reply, at_end)

    return await core.transact(tenant, act)


async def _comes_closer(core: Core, tenant: str, name: str, number: int) -> bool:
    """Check the open publishes; returns whether more routing may catch the queue up.

    The queue with that number has already joined.
    """
    version = (await core.catalog.tenant(tenant)).version
    before, after, last = await core.stable(), await core.stable(), await core.stable()

    async def act(work: Work) -> bool:
        queue = work.tenant.find_own(name)
        cursor, joining, closing = await lock(work, queue)
        if queue.number != number or cursor is None or joining is None:
            return True
        if work.tenant.version != version:
            # Its ordering may have changed since ``stable`` was read, so that it joins anew.
            return True
        if joining == UNKNOWN:
            # Read after the queue had joined: a publish that does not know began at or below it.
            joining = before.given
        if closing is None and (after.oldest is None or after.oldest > joining):
            # They have all ended, and appended at or below the highest number assigned by now.
            closing = last.given
        await work.session.run(
            "move_cursor", queue=queue.number, cursor=cursor, joining=joining, closing=closing
        )
        return closing is not None and last.settled >= closing

    return await core.transact(tenant, act)


async def read_entries(
    work: Work, cursor: int, last: int, limit: int
) -> tuple[list[Message], Offset | None]:
    """The entries from the cursor on, and the offset of the next one; None at the end."""
    found: list[Message] = []
    tenant = work.tenant.number
    async for segment, part in scan(work.session, tenant, cursor, limit + 1, last):
        found += map(segment.message, part)
    return found[:limit], found[limit].offset if len(found) > limit else None


async def add_entries(core: Core, work: Work, queue: Queue, entries: list[Message]) -> int:
    """Add the entries that the filter takes and the queue lacks; returns how many."""
    if not entries:
        return 0
    newest = await newest_entries(work, {entry.id for entry in entries})
    changed = {entry.id for entry in entries if newest.get(entry.id, entry.offset) != entry.offset}
    current = await core.segments.messages(
        work.session, work.tenant.number, [newest[i] for i in changed]
    )
    there = await _deliveries(core, work, queue, {segment_of(entry.id)[0] for entry in entries})
    messages = [
        current.get(newest[entry.id], entry) if entry.id in changed else entry for entry in entries
    ]
    takes = parse(queue.policy.filter).matches
    added = [one for one in messages if one.id not in there and takes(one)]
    # A message that is replaced meanwhile is routed again at the entry of the replacement.
    taken = await hold_keys(work, queue, added)
    kept = await share(work.session, taken)
    assigned = 0
    for message in taken:
        if message.id in there or message.id not in kept:
            continue
        there.add(message.id)
        assigned += 1
        entry = int(message.offset) if message.is_replacement else None
        work.add_message(queue, message, message.expires_at, message.max_attempts, entry)
    return assigned


async def _deliveries(core: Core, work: Work, queue: Queue, segments: Iterable[int]) -> set[int]:
    """The messages of these segments that the queue has, in any state.

    Assigns partitions to deliveries of publishes that did not know that the queue is ordered.
    """
    rows = await work.session.fetch(
        "segment_groups", queues=[queue.number], segments=sorted(segments)
    )
    strays = {row[4] for row in rows if is_stray(row)} if queue.ordered else None
    if strays:
        await give_partitions(core, work, queue, strays)
    return {int(i) for row in rows for i in DeliveryGroup.read(row).ids()}


# -- assign: what an external router selected ----------------------------------------
# It is ``route`` for named entries, with one transaction per call, and it locks the queue's row in
# the same way: two routers of one queue take turns, and each continues at the cursor of the other.
# The cursor never passes the settled end of the log (L2). Joining the publishes is left to
# ``route``.
#
# Publishes already write to a queue that has joined, and an ordered queue may then hold deliveries
# without a partition (see ``compaction``). The external router does not know of them, so for such a
# queue every entry of the range is examined, as ``route`` does.

#: Bounds of one read and write. All batches of a call are one transaction.
_MAX_ASSIGNED_SEGMENTS: Final = 1_000
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
        work.notify(queue)
        return RouteReply(len(left), assigned, Offset(asked.end))

    return await core.transact(tenant, act)


async def _add_named(
    core: Core, work: Work, queue: Queue, asked: Assignment, left: Sequence[int]
) -> int:
    """Add the named entries; returns how many were added."""
    assigned = 0
    for lot in _lots(left):
        # Not cached: history is read once, and would evict the segments being claimed.
        entries = await core.segments.messages(
            work.session, work.tenant.number, lot, remember=False
        )
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
        if count == _MAX_ASSIGNED_SEGMENTS or position - begin == _MAX_ENTRIES:
            yield offsets[begin:position]
            begin, count = position, 0
        if not count or number != last:
            count, last = count + 1, number
    if begin < len(offsets):
        yield offsets[begin:]
