"""Leftovers: removes ids whose window is over (P4), and the rows of deleted queues.

A deleted queue is unreachable immediately; its rows are removed here in batches. The queue is
remembered for a while after that, because a publish with an older catalog may still add to it.
"""

from __future__ import annotations

from typing import Final

from penstock.storage.sql.core import Core

__all__ = ["Leftovers", "forget_ids"]

#: Rows that one transaction removes at most.
_MAX_ROWS: Final = 5_000
#: Rows of deleted queues that one sweep removes at most.
_MAX_SWEPT: Final = 50_000
#: Deleted queues per list statement, and how many of them one sweep examines.
_MAX_LISTED: Final = 1_000
_MAX_QUEUES: Final = 50
#: How long a deleted queue is remembered. No transaction lasts that long.
_REMEMBERED_MS: Final = 3_600_000
#: How long a deleted queue without rows is not examined again.
_PAUSE_MS: Final = 60_000

_STATEMENTS: Final = (
    "remove_dropped_runs",
    "remove_dropped_tallies",
    "remove_dropped_partition_tallies",
    "remove_dropped_partitions",
    "remove_dropped_owners",
    "remove_dropped_replays",
)


async def forget_ids(core: Core, limit: int) -> tuple[int, bool]:
    """Delete up to ``limit`` ids; returns how many, and whether there may be more."""
    now = core.clock.now()
    forgotten = 0
    while forgotten < limit:
        most = min(_MAX_ROWS, limit - forgotten)
        gone = await _run(core, "forget_overdue_ids", now=now, most=most)
        forgotten += gone
        if gone < most:
            return forgotten, False
    return forgotten, True


class Leftovers:
    """A server's memory of the deleted queues that it has examined."""

    def __init__(self) -> None:
        self._after = 0
        #: When a queue was last found to have no rows.
        self._clean: dict[int, int] = {}

    async def sweep(self, core: Core) -> bool:
        """Remove rows of deleted queues; returns whether there are more."""
        now, after = core.clock.now(), self._after
        listed = await core.plainly(
            lambda session: session.fetch("dropped_queues", after=after, most=_MAX_LISTED)
        )
        self._after = listed[-1][0] if len(listed) == _MAX_LISTED else 0
        due = [(queue, at) for queue, at in listed if self._is_due(queue, at, now)]
        left = _MAX_SWEPT
        for queue, at in due[:_MAX_QUEUES]:
            removed = await _remove(core, queue, left)
            left -= removed
            if left <= 0:
                return True
            if removed:
                continue
            self._clean[queue] = now
            if at + _REMEMBERED_MS <= now:
                await _run(core, "forget_dropped", queue=queue)
                del self._clean[queue]
        return len(due) > _MAX_QUEUES

    def _is_due(self, queue: int, at: int, now: int) -> bool:
        clean = self._clean.get(queue)
        return clean is None or at + _REMEMBERED_MS <= now or not 0 <= now - clean < _PAUSE_MS


async def _remove(core: Core, queue: int, limit: int) -> int:
    """Remove up to ``limit`` rows of the queue; returns how many."""
    removed = await _run(core, "clear_consumers", queue=queue)
    removed += await _run(core, "clear_limits", queue=queue)
    for statement in _STATEMENTS:
        while removed < limit:
            most = min(_MAX_ROWS, limit - removed)
            gone = await _run(core, statement, queue=queue, most=most)
            removed += gone
            if gone < most:
                break
    return removed


async def _run(core: Core, statement: str, **parameters: object) -> int:
    """Run a statement as its own transaction; returns how many rows it changed."""
    return await core.plainly(lambda session: session.run(statement, **parameters))
