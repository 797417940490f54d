"""Route: catch a queue up with the log, from its cursor (R1).

Assigning deliveries and advancing the cursor are one commit, so catching up is effectively once.
When the cursor reaches the end of the log, including staged entries, the same commit adds the queue
to the index that publish uses: no gap, no duplicate, order preserved.
"""

from __future__ import annotations

from typing import Final

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
from penstock.storage.keyvalue.records import Logged
from penstock.storage.keyvalue.tenant import Tenant

__all__ = ["StartCursor", "join_open_key", "route", "taken"]


#: Log entries, and bytes, that are decoded per turn in the search for a time: some milliseconds.
_LOOKED_AT: Final = 500
_LOOKED_AT_BYTES: Final = 1024 * 1024


class StartCursor:
    """The initial cursor of a new queue. A start time is searched for in the log, in turns."""

    __slots__ = ("_log", "_offset", "_start", "_tenant")

    def __init__(self, log: Log, tenant: Tenant, start: Start) -> None:
        self._log = log
        self._tenant = tenant
        self._start = start
        self._offset = 0
        if start.at == Start.TIME:
            for segment in log.segments:
                if segment.started_at < start.value:
                    self._offset = segment.start

    def is_found(self) -> bool:
        """Search on; returns whether the cursor is known. It is valid until the next await."""
        match self._start.at:
            case Start.EARLIEST:
                segments = self._log.segments
                self._offset = segments[0].start if segments else self._tenant.log.end
            case Start.OFFSET:
                self._offset = self._start.value
            case Start.TIME:
                return self._is_time_found(self._start.value)
            case _:
                self._offset = self._tenant.log.end
        return True

    @property
    def cursor(self) -> int | None:
        """The first offset to route; None if that is the end of the log."""
        return self._offset if self._offset < self._tenant.log.end else None

    def _is_time_found(self, time: int) -> bool:
        entries = self._log.read(self._tenant.name, self._offset, staged=True)
        remaining = _LOOKED_AT_BYTES
        for looked, (message, metadata) in enumerate(entries):
            if message.published_at >= time or looked == _LOOKED_AT or remaining < 0:
                self._offset = message.offset
                return message.published_at >= time
            remaining -= len(metadata)
        self._offset = self._tenant.log.end
        return True


def route(tenant: Tenant, queue: Queue, log: Log, limit: int, now: int) -> RouteReply:
    """Route up to ``limit`` entries."""
    if queue.is_dead_letter:
        raise Conflict("A dead-letter queue is not routed.", field="queue")
    if queue.cursor is None:
        return RouteReply(0, 0, None)
    scanned = assigned = 0
    for entry in log.read(tenant.name, queue.cursor, staged=True):
        if scanned == limit:
            break
        found = taken(tenant, queue, log, entry)
        if found is not None:
            assign(queue, *found, now)
            join_open_key(queue, found[0])
            assigned += 1
        scanned += 1
        queue.cursor = entry[0].offset + 1
    else:
        queue.cursor = None
        tenant.reindex(queue)
    queue.touch()
    return RouteReply(scanned, assigned, None if queue.cursor is None else Offset(queue.cursor))


def taken(tenant: Tenant, queue: Queue, log: Log, entry: Logged) -> Logged | None:
    """The current message of an entry if the queue takes it, otherwise None."""
    message = entry[0]
    if message.key is not None:
        if log.newest(message.id) != message.offset:
            newest = log.find(tenant.name, message.id)
            if newest is None:
                return None
            message = newest[0]
            entry = message, encode_metadata(message)
        if message.is_replacement and any(snapshots_of(queue, message)):
            return None
    return entry if queue.filter.matches(message) else None


def join_open_key(queue: Queue, message: Message) -> None:
    """Add the queue to the message's open key, so that a replacement reaches it."""
    if message.key is None:
        return
    key = open_key(queue.tenant, message.topic, message.key)
    value = queue.stage.get(key)
    if value is None:
        return
    record = OpenKey.decode(value)
    if record.message_id == message.id:
        queue.stage.put(key, OpenKey.of(message, {*record.queues, queue.name}).encode())
