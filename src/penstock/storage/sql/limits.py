"""Limits: rows of a queue that are locked to use what it may still give or take."""

from __future__ import annotations

from enum import IntEnum

from penstock.errors import UnknownQueue
from penstock.model.bucket import Bucket
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.work import Work

__all__ = ["Limit", "hold_limit"]


class Limit(IntEnum):
    """What is limited."""

    DEPTH = 0
    THROUGHPUT = 1
    DEAD_THROUGHPUT = 2


async def hold_limit(work: Work, queue: Queue, kind: Limit, first: Bucket) -> Bucket:
    """Lock the row until the transaction ends, and read it; ``first`` is put if there is none."""
    row = {"queue": queue.number, "kind": int(kind)}
    rows = await work.session.fetch("lock_limit", **row)
    if not rows:
        await work.session.run(
            "put_limit",
            **row,
            rate=first.rate,
            milli_tokens=first.milli_tokens,
            filled_at=first.filled_at,
        )
        rows = await work.session.fetch("lock_limit", **row)
    if not rows:
        # Removed with its queue.
        raise UnknownQueue(f"There is no queue {queue.name!r}.", field="queue")
    return Bucket(*map(int, rows[0]))
