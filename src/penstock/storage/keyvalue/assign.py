"""Assign: give a queue the messages that an external router found in the log (R1).

Only the named entries are read, all of them before anything changes. What the queue takes is
decided as in ``route``, so a router that names too many entries does no harm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.errors import Conflict
from penstock.model.delivery import RouteReply
from penstock.model.message import MessageId, Offset
from penstock.storage.assignment import Assignment
from penstock.storage.keyvalue.core import Core
from penstock.storage.keyvalue.keys import bucket_of, claim_id_of
from penstock.storage.keyvalue.moves import assign_many
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.records import Logged
from penstock.storage.keyvalue.route import join_open_key, taken
from penstock.storage.keyvalue.tenant import Tenant

__all__ = ["Assign"]


class Assign:
    """One call, in steps. No other verb runs between them, so the cursor does not move."""

    def __init__(self, core: Core, tenant: Tenant, queue: Queue, now: int) -> None:
        if queue.is_dead_letter:
            raise Conflict("A dead-letter queue is not routed.", field="queue")
        self._tenant = tenant
        self._queue = queue
        self._log = core.log
        self._step = core.step_size
        self._now = now
        #: The reply, set by the last step.
        self.reply: RouteReply

    def carry_out(self, asked: Assignment) -> Iterator[None]:
        """Assign the named entries, and advance the cursor to the end of the range."""
        queue = self._queue
        cursor = queue.cursor
        if not asked.is_due(queue.name, queue.policy.filter, cursor) or cursor is None:
            self.reply = RouteReply(0, 0, None if cursor is None else Offset(cursor))
            return
        asked.check_end(self._tenant.log.committed_end)
        left = tuple(asked.left(cursor))
        entries: dict[Offset, Logged] = {}
        yield from self._read(left, entries)
        asked.check_found(left, entries)
        found: list[tuple[int, Logged]] = []
        yield from self._select(tuple(entries.values()), found)
        for begin in range(0, len(found), self._step):
            lot = found[begin : begin + self._step]
            # If a bucket cannot be read, this stops here with everything below the cursor assigned.
            queue.cursor = lot[0][0]
            _add(queue, [entry for _, entry in lot], self._now)
            yield
        queue.cursor = asked.end
        queue.touch()
        self.reply = RouteReply(len(entries), len(found), Offset(asked.end))

    def _read(self, offsets: Sequence[int], out: dict[Offset, Logged]) -> Iterator[None]:
        """Add the log entries at these offsets to ``out``."""
        for begin in range(0, len(offsets), self._step):
            picked = self._log.pick(self._tenant.name, offsets[begin : begin + self._step])
            out.update((entry[0].offset, entry) for entry in picked)
            yield

    def _select(self, entries: Sequence[Logged], out: list[tuple[int, Logged]]) -> Iterator[None]:
        """Add the entries that the queue takes to ``out`` with their offsets, each message once."""
        replaced: set[MessageId] = set()
        for position, entry in enumerate(entries, 1):
            if not position % self._step:
                yield
            as_it_is = taken(self._tenant, self._queue, self._log, entry)
            if as_it_is is None:
                continue
            message = as_it_is[0]
            if message.is_replacement:
                # It occurs at each of its entries; the first one assigns it.
                if message.id in replaced:
                    continue
                replaced.add(message.id)
            out.append((entry[0].offset, as_it_is))


def _add(queue: Queue, lot: list[Logged], now: int) -> None:
    exponent = queue.policy.bucket_size
    places = (claim_id_of(exponent, message.priority, message.id) for message, _ in lot)
    for bucket in sorted({bucket_of(place) for place in places}):
        queue.shelf.load(bucket)
    assign_many(queue, lot, now)
    for message, _ in lot:
        join_open_key(queue, message)
