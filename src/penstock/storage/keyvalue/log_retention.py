"""Retention of the log: removes segments that nothing needs any more (G1, A1).

Checking a segment against all queues may take many turns of the event loop. The first thing found
that needs it is cached as its *witness*; while that exists, the segment is not checked again. So a
sweep costs one check of the witness per old segment, plus what it removes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final

from penstock.storage.keyvalue.core import Core
from penstock.storage.keyvalue.keys import claim_ranges
from penstock.storage.keyvalue.log import Segment
from penstock.storage.keyvalue.queue import Queue

__all__ = ["LogRetention"]

#: The costs of checking a witness, the records of a segment, and a queue.
_WITNESS: Final = 1.0
_SEGMENT: Final = 16.0
_QUEUE: Final = 4.0
#: Replaced messages that are looked up in a queue per piece.
_REPLACED: Final = 16
#: If queues may have changed meanwhile, up to this many are checked again in one piece.
_FEW_QUEUES: Final = 16


class _Witness:
    """Something in a queue that still needs a segment."""

    __slots__ = ("_holds", "_queue")

    def __init__(self, queue: Queue, holds: Callable[[], bool]) -> None:
        self._queue = queue
        self._holds = holds

    @property
    def stands(self) -> bool:
        return not self._queue.deleted and self._holds()


class LogRetention:
    """Removes old segments."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._log = core.log
        self._witnesses: dict[Segment, _Witness] = {}

    def run(self, now: int) -> Iterator[tuple[float, int]]:
        """Run in small pieces; yields the cost of each, and how many entries it removed.

        The cost is in deliveries that a sweep moves in the same time. Other verbs, but no other
        ``run``, may run between two pieces, so each piece checks its assumptions again.
        """
        retention_ms = self._core.options.limits.log_retention_ms
        for segment in list(self._log.segments):
            # Entries are hardly older than their segment, so most segments need not be read.
            if segment.started_at + retention_ms <= now:
                yield from self._try(segment, now)

    def _try(self, segment: Segment, now: int) -> Iterator[tuple[float, int]]:
        witness = self._witnesses.get(segment)
        if witness is not None and witness.stands:
            yield _WITNESS, 0
            return
        self._witnesses.pop(segment, None)
        yield _SEGMENT, 0
        # Without yielding: a message published in between would be removed with the segment.
        if not self._is_old(segment, now):
            return
        self._seal(segment, now)
        wanted = self._log.wanted
        for queue in self._core.queues():
            for found in self._ask(queue, segment):
                yield _QUEUE, 0
                if found is not None:
                    self._witnesses[segment] = found
                    return
        for _ in self._log.count_entries(segment) if segment.count is None else ():
            yield _SEGMENT, 0
        is_unwanted = wanted == self._log.wanted or self._is_unwanted(segment)
        if is_unwanted and self._is_old(segment, now):
            yield _SEGMENT, self._remove(segment)

    def _remove(self, segment: Segment) -> int:
        """Remove a segment that nothing needs. Returns how many entries it had."""
        index = self._index(segment)
        end = self._log.segment_end(index)
        for queue in self._core.queues():
            # No queue has a delivery of these messages, so no replay can move them again.
            for state in (queue, queue.dead):
                if state is not None and queue.replays:
                    _forget_replay_marks(state, segment.start, end)
        return self._log.remove_segment(index)

    def _is_old(self, segment: Segment, now: int) -> bool:
        """Whether all of it is past its retention, committed and, if required, archived."""
        options = self._core.options
        last = self._log.last_entries(self._index(segment))
        if segment is self._log.segments[-1] and not (last and self._log.is_committed):
            return False
        return not any(
            message.published_at + options.limits.log_retention_ms > now
            or message.offset >= tenant.committed_end
            or (options.archive and tenant.archived < message.offset)
            for tenant, message in last
        )

    def _seal(self, segment: Segment, now: int) -> None:
        """Make later publishes go to another segment."""
        if segment is self._log.segments[-1]:
            self._log.open_segment(self._log.next_offset, now)

    def _index(self, segment: Segment) -> int:
        return self._log.segments.index(segment)

    def _is_unwanted(self, segment: Segment) -> bool:
        """Check all queues without yielding. False if they are many: a later sweep tries again."""
        queues = self._core.queues()
        return len(queues) <= _FEW_QUEUES and not any(
            found is not None for queue in queues for found in self._ask(queue, segment)
        )

    def _ask(self, queue: Queue, segment: Segment) -> Iterator[_Witness | None]:
        """The witness in the queue, or None after each piece that found none."""
        if queue.deleted:
            return
        low, high = segment.start, self._log.segment_end(self._index(segment))
        if queue.cursor is not None and queue.cursor < high:
            yield _Witness(queue, lambda: queue.cursor is not None and queue.cursor < high)
            return
        yield _find(queue, low, high)
        start = low
        while start < high and not queue.deleted:
            replaced = list(islice(self._log.replacements(start, high), _REPLACED))
            for _, message_id in replaced:
                found = _find(queue, message_id, message_id + 1)
                if found is not None:
                    yield found
                    return
            if len(replaced) < _REPLACED:
                return
            start = replaced[-1][0] + 1
            yield None


def _find(queue: Queue, low: int, high: int) -> _Witness | None:
    """A witness: a delivery, in any state, of a message with low <= id < high."""
    exponent = queue.policy.bucket_size
    if queue.available_count or queue.in_flight_count:
        found = queue.shelf.find_any(low, high, exponent)
        if found is not None:
            return _Witness(queue, partial(queue.shelf.holds, found))
    if queue.positions is not None:
        for key in queue.positions.between(low, high):
            return _Witness(queue, partial(_is_stored, queue, key))
    if queue.delayed_count:
        place = queue.keys.place
        for first, end in claim_ranges(low, high, (exponent,)):
            span = (place + first.to_bytes(8, "big"), place + end.to_bytes(8, "big"))
            for key, _ in queue.stage.scan(*span):
                return _Witness(queue, partial(_is_stored, queue, key))
    for count, shelf in ((queue.done_count, queue.done), (queue.expired_count, queue.expired)):
        if count:
            found = shelf.find_any(low, high)
            if found is not None:
                return _Witness(queue, partial(shelf.holds, found))
    return None if queue.dead is None else _find(queue.dead, low, high)


def _is_stored(queue: Queue, key: bytes) -> bool:
    return queue.stage.get(key) is not None


def _forget_replay_marks(queue: Queue, low: int, high: int) -> None:
    """Remove the replay marks of messages with low <= id < high."""
    start, end = (queue.keys.replayed + at.to_bytes(8, "big") for at in (low, high))
    if next(queue.stage.scan(start, end), None) is not None:
        queue.stage.remove_range(start, end)
