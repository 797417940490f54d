"""Route: catch a queue up with the log, from its cursor (R1).

Assigning deliveries and advancing the cursor is one commit, so catching up is effectively
once. When the cursor meets the end of the log, staged entries included, the queue joins
the index that publish routes by, in the same commit: no gap, no duplicate, order kept.
"""

from __future__ import annotations

from penstock.errors import Conflict
from penstock.model.delivery import RouteReply
from penstock.model.message import Message, Offset
from penstock.model.queue import Start
from penstock.storage.keyvalue.browse import snapshots_of
from penstock.storage.keyvalue.keys import open_key
from penstock.storage.keyvalue.log import Log
from penstock.storage.keyvalue.metadata import encode_metadata
from penstock.storage.keyvalue.moves import assign
from penstock.storage.keyvalue.open_keys import OpenKey
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.tenant import Tenant

__all__ = ["route", "start_cursor"]


def start_cursor(log: Log, tenant: Tenant, start: Start) -> int | None:
    """Where a new queue begins; None if that is the end of the log."""
    end = tenant.log.end
    match start.at:
        case Start.EARLIEST:
            cursor = log.segments[0].start if log.segments else end
        case Start.OFFSET:
            cursor = start.value
        case Start.TIME:
            cursor = _first_at(log, tenant, start.value)
        case _:
            return None
    return cursor if cursor < end else None


def route(tenant: Tenant, queue: Queue, log: Log, limit: int, now: int) -> RouteReply:
    """Route up to ``limit`` entries."""
    if queue.is_dead_letter:
        raise Conflict("A dead-letter queue is not routed.", field="queue")
    if queue.cursor is None:
        return RouteReply(0, 0, None)
    scanned = assigned = 0
    for message, metadata in log.read(tenant.name, queue.cursor, staged=True):
        if scanned == limit:
            break
        scanned += 1
        queue.cursor = message.offset + 1
        assigned += _route_one(tenant, queue, log, message, metadata, now)
    else:
        queue.cursor = None
        tenant.reindex(queue)
    queue.touch()
    return RouteReply(scanned, assigned, None if queue.cursor is None else Offset(queue.cursor))


def _route_one(
    tenant: Tenant, queue: Queue, log: Log, message: Message, metadata: bytes, now: int
) -> bool:
    if message.key is not None:
        newest = log.find(tenant.name, message.id)
        if newest is None:
            return False
        if newest[0].is_replacement and any(snapshots_of(queue, newest[0])):
            return False
        message, metadata = newest[0], encode_metadata(newest[0])
    if not queue.filter.matches(message):
        return False
    assign(queue, message, metadata, now)
    if message.key is not None:
        _join_open_key(tenant, queue, message)
    return True


def _join_open_key(tenant: Tenant, queue: Queue, message: Message) -> None:
    """The key's message waits in one more queue; replacing it has to reach that too."""
    assert message.key is not None
    key = open_key(tenant.name, message.topic, message.key)
    value = queue.stage.get(key)
    if value is None:
        return
    record = OpenKey.decode(value)
    if record.message_id == message.id:
        names = tuple(sorted({*record.queues, queue.name}))
        queue.stage.put(key, OpenKey(record.message_id, record.priority, names).encode())


def _first_at(log: Log, tenant: Tenant, time: int) -> int:
    """The first offset published at or after ``time``."""
    begin = 0
    for segment in log.segments:
        if segment.started_at < time:
            begin = segment.start
    for message, _ in log.read(tenant.name, begin, staged=True):
        if message.published_at >= time:
            return message.offset
    return tenant.log.end
