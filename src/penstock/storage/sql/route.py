"""Route: catch a queue up with the log (R1), and let it take publishes itself again.

A queue that is behind gets nothing from publishes. It cannot simply be declared caught up when
the log has been read to its end: a publish that is under way may still believe that it is behind.
So it joins first. From that commit on every new publish puts its messages there, and the router
goes on beside them, leaving alone what is there already. When no publish is open any more that
may have begun before that commit, all that is left is in the log; when that is routed too, the
queue is caught up. Nobody waits for anybody in this, however long a caller's own transaction
takes.

A queue that is caught up and has become ordered is mended here too (see ``mending``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.errors import CommitFailed, StoreBusy
from penstock.filters import parse
from penstock.model.delivery import RouteReply
from penstock.model.message import Message, Offset
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.core import Core
from penstock.storage.sql.keys import hold_keys, newest_entries
from penstock.storage.sql.mending import UNKNOWN, give_partitions, is_stray, lock, mend
from penstock.storage.sql.phases import Phase
from penstock.storage.sql.retention import share
from penstock.storage.sql.runs import Life, Run, message_id, segment_of
from penstock.storage.sql.segments import Segment
from penstock.storage.sql.work import Work

__all__ = ["add_entries", "read_entries", "route"]

#: Segments that are read at once.
_MAX_SEGMENTS: Final = 1_000


class _Step(NamedTuple):
    """How far one transaction came."""

    queue: int
    """Its number: a queue that was deleted and made again is another."""
    reply: RouteReply
    at_end: bool
    """Whether everything was routed that is settled."""
    mends: bool = False
    """Whether it is caught up, and to be mended."""


async def route(core: Core, tenant: str, name: str, limit: int) -> RouteReply:
    """Route up to ``limit`` entries; at the end of the log, come as close as may be."""
    step = await _step(core, tenant, name, limit)
    if step.mends:
        await mend(core, tenant, name)
    scanned, assigned = step.reply.scanned, step.reply.assigned
    while step.reply.cursor is not None and step.at_end:
        try:
            if not await _comes_closer(core, tenant, name, step.queue):
                break
            step = await _step(core, tenant, name, limit - scanned)
        except (StoreBusy, CommitFailed):
            # What was routed is routed (E1), and the next call goes on from there.
            break
        scanned += step.reply.scanned
        assigned += step.reply.assigned
    return RouteReply(scanned=scanned, assigned=assigned, cursor=step.reply.cursor)


async def _step(core: Core, tenant: str, name: str, limit: int) -> _Step:
    """Route entries up to where the log is settled; at its end, join or be caught up."""
    settled = (await core.stable()).settled

    async def act(work: Work) -> _Step:
        queue = work.tenant.find_own(name)
        routed = await lock(work, queue)
        cursor, joining, closing = routed
        if cursor is None:
            nothing = RouteReply(scanned=0, assigned=0, cursor=None)
            return _Step(queue.number, nothing, at_end=True, mends=routed.mends)
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
        work.tell(queue)
        shown = None if caught_up else Offset(position)
        reply = RouteReply(scanned=len(entries), assigned=assigned, cursor=shown)
        return _Step(queue.number, reply, at_end)

    return await core.transact(tenant, act)


async def _comes_closer(core: Core, tenant: str, name: str, number: int) -> bool:
    """Look who is publishing; whether routing on may now lead to the queue being caught up.

    The queue of that number has joined already.
    """
    version = (await core.catalog.tenant(tenant)).version
    before, after, last = await core.stable(), await core.stable(), await core.stable()

    async def act(work: Work) -> bool:
        queue = work.tenant.find_own(name)
        cursor, joining, closing = await lock(work, queue)
        if queue.number != number or cursor is None or joining is None:
            return True
        if work.tenant.version != version:
            # It may have begun to join anew since the log was asked: its ordering has changed.
            return True
        if joining == UNKNOWN:
            # Read after the queue had joined: whoever does not know began at or below it.
            joining = before.given
        if closing is None and (after.oldest is None or after.oldest > joining):
            # They have all ended, and what they appended is at or below what is given out now.
            closing = last.given
        await work.session.run(
            "move_cursor", queue=queue.number, cursor=cursor, joining=joining, closing=closing
        )
        return closing is not None and last.settled >= closing

    return await core.transact(tenant, act)


async def read_entries(
    work: Work, cursor: int, last: int, limit: int
) -> tuple[list[Message], Offset | None]:
    """The entries from the cursor on, and the offset of the one after them."""
    first, index = segment_of(cursor)
    found: list[Message] = []
    while first <= last:
        rows = await work.session.fetch(
            "scan_heads",
            tenant=work.tenant.number,
            first=first,
            last=last,
            most=min(limit + 1, _MAX_SEGMENTS),
        )
        if not rows:
            return found, None
        for number, published_at, heads in rows:
            segment = Segment.read(number, work.tenant.number, published_at, heads, None)
            start = index if number == segment_of(cursor)[0] else 0
            for position in range(start, len(segment.heads)):
                if len(found) == limit:
                    return found, Offset(message_id(number, position))
                found.append(segment.message(position))
        first = rows[-1][0] + 1
    return found, None


async def add_entries(core: Core, work: Work, queue: Queue, entries: list[Message]) -> int:
    """Give the queue what its filter takes and what it does not have; how many that is."""
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
    # What was replaced meanwhile is met again where it was appended.
    taken = await hold_keys(work, queue, added)
    kept = await share(work.session, taken)
    assigned = 0
    for message in taken:
        if message.id in there or message.id not in kept:
            continue
        there.add(message.id)
        assigned += 1
        delayed = message.deliver_at > work.now
        life = Life(
            joined_at=work.now,
            expires_at=message.expires_at,
            due_at=message.deliver_at if delayed else None,
            entry=int(message.offset) if message.is_replacement else None,
            keyed=message.key is not None,
            partition=(message.partition_key or "") if queue.ordered else None,
        )
        segment, index = segment_of(message.id)
        phase = Phase.DELAYED if delayed else Phase.RETURNED
        work.add(queue.number, phase, 9 - message.priority, segment, [index], life)
    return assigned


async def _deliveries(core: Core, work: Work, queue: Queue, segments: Iterable[int]) -> set[int]:
    """The messages of these segments that the queue has, whatever became of them.

    Those of a publish that did not know that the queue was ordered get their partitions.
    """
    rows = await work.session.fetch(
        "segment_runs", queues=[queue.number], segments=sorted(segments)
    )
    strays = {row[4] for row in rows if is_stray(row)} if queue.ordered else None
    if strays:
        await give_partitions(core, work, queue, strays)
    return {int(i) for row in rows for i in Run.read(row).ids()}
