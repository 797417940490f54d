"""Retention of the log: segments leave when nothing needs them any more (G1, A1).

A segment is asked about queue by queue, which may take many turns of the event loop. What keeps it
is remembered, a *witness*: while that is still there, the segment is not asked about again. So a
sweep costs a look at the witness of each old segment, and what it removes.
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

#: What a look at a witness, at the records of a segment, and into a queue costs.
_WITNESS: Final = 1.0
_SEGMENT: Final = 16.0
_QUEUE: Final = 4.0
#: Replaced messages that are looked for in a queue in one go.
_REPLACED: Final = 16
#: So many queues are asked again in one go, if one of them may have changed meanwhile.
_FEW_QUEUES: Final = 16


class _Witness:
    """Something in a queue that needs a segment."""

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
        """Do the work in small pieces: yields after each what it cost, and removed.

        The cost is in deliveries that a sweep moves in that time. Anything may happen between two
        pieces, but no other ``run``, so each looks again at what it relies on.
        """
        retention_ms = self._core.options.limits.log_retention_ms
        for segment in list(self._log.segments):
            # Nothing in it is older than itself: most segments need not be read.
            if segment.started_at + retention_ms <= now:
                yield from self._try(segment, now)

    def _try(self, segment: Segment, now: int) -> Iterator[tuple[float, int]]:
        witness = self._witnesses.get(segment)
        if witness is not None and witness.stands:
            yield _WITNESS, 0
            return
        self._witnesses.pop(segment, None)
        yield _SEGMENT, 0
        # In one go: a message that is published between the two would go with the segment.
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
        """Remove a segment that nothing needs; returns how many entries it had."""
        index = self._index(segment)
        end = self._log.segment_end(index)
        for queue in self._core.queues():
            # No queue has a delivery of these messages, so no replay can move them again.
            for state in (queue, queue.dead):
                if state is not None and queue.replays:
                    state.forget_replay_marks(segment.start, end)
        return self._log.remove_segment(index)

    def _is_old(self, segment: Segment, now: int) -> bool:
        """Whether all of it is past its retention, committed and, if need be, archived."""
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
        """Have what is published from now on go to another segment."""
        if segment is self._log.segments[-1]:
            self._log.open_segment(self._log.next_offset, now)

    def _index(self, segment: Segment) -> int:
        return self._log.segments.index(segment)

    def _is_unwanted(self, segment: Segment) -> bool:
        """Ask all queues in one go; False, for another sweep to find out, if they are many."""
        queues = self._core.queues()
        return len(queues) <= _FEW_QUEUES and not any(
            found is not None for queue in queues for found in self._ask(queue, segment)
        )

    def _ask(self, queue: Queue, segment: Segment) -> Iterator[_Witness | None]:
        """What in the queue needs the segment, or None for each piece of looking for it."""
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
    """A delivery, in any state, of a message with low <= id < high."""
    exponent = queue.policy.bucket_size
    if queue.available_count or queue.in_flight_count:
        found = queue.shelf.find_any(low, high, exponent)
        if found is not None:
            return _Witness(queue, partial(queue.shelf.holds, found))
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
