"""Assign: give a queue what a router outside the broker found for it in the log (R1).

The entries that are named are read, and no others; all of them before anything is changed. What
the queue takes of them is decided as in ``route``, so a router that names too much does no harm.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import Conflict
from penstock.model.delivery import RouteReply
from penstock.model.message import MessageId, Offset
from penstock.storage.assignment import Assignment
from penstock.storage.keyvalue.keys import bucket_of, claim_id_of
from penstock.storage.keyvalue.log import Log
from penstock.storage.keyvalue.moves import assign_many
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.records import Logged
from penstock.storage.keyvalue.route import join_open_key, taken
from penstock.storage.keyvalue.tenant import Tenant

__all__ = ["assign"]

#: Deliveries whose buckets are read before they are added.
_LOT: Final = 1_000


def assign(tenant: Tenant, queue: Queue, log: Log, asked: Assignment, now: int) -> RouteReply:
    """Assign what is named, and advance the cursor to the end of the range."""
    if queue.is_dead_letter:
        raise Conflict("A dead-letter queue is not routed.", field="queue")
    cursor = queue.cursor
    if not asked.is_due(queue.name, queue.policy.filter, cursor) or cursor is None:
        return RouteReply(0, 0, None if cursor is None else Offset(cursor))
    asked.check_end(tenant.log.committed_end)
    left = asked.left(cursor)
    entries = {entry[0].offset: entry for entry in log.pick(tenant.name, left)}
    asked.check_found(left, entries)
    found = _all_taken(tenant, queue, log, list(entries.values()))
    for begin in range(0, len(found), _LOT):
        lot = found[begin : begin + _LOT]
        # A bucket that cannot be read stops it here, with everything below the cursor given.
        queue.cursor = lot[0][0]
        _add(queue, [entry for _, entry in lot], now)
    queue.cursor = asked.end
    queue.touch()
    return RouteReply(len(entries), len(found), Offset(asked.end))


def _all_taken(
    tenant: Tenant, queue: Queue, log: Log, entries: list[Logged]
) -> list[tuple[int, Logged]]:
    """What the queue takes of the entries, each message once, with the offsets of these."""
    found: list[tuple[int, Logged]] = []
    replaced: set[MessageId] = set()
    for entry in entries:
        as_it_is = taken(tenant, queue, log, entry)
        if as_it_is is None:
            continue
        message = as_it_is[0]
        if message.is_replacement:
            # Met at each of its entries; the first one gives it.
            if message.id in replaced:
                continue
            replaced.add(message.id)
        found.append((entry[0].offset, as_it_is))
    return found


def _add(queue: Queue, lot: list[Logged], now: int) -> None:
    exponent = queue.policy.bucket_size
    places = (claim_id_of(exponent, message.priority, message.id) for message, _ in lot)
    for bucket in sorted({bucket_of(place) for place in places}):
        queue.shelf.load(bucket)
    assign_many(queue, lot, now)
    for message, _ in lot:
        join_open_key(queue, message)
