"""Limits: rows that are locked while a queue's depth or throughput limit is checked."""

from __future__ import annotations

from enum import IntEnum

from penstock.errors import UnknownQueue
from penstock.model.bucket import Bucket
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.work import Work

__all__ = ["Limit", "hold_limit"]


class Limit(IntEnum):
    """The kind of a limit."""

    DEPTH = 0
    THROUGHPUT = 1
    DEAD_THROUGHPUT = 2


async def hold_limit(work: Work, queue: Queue, kind: Limit, first: Bucket) -> Bucket:
    """Lock and read the row until the transaction ends; ``first`` is inserted if it is missing."""
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
        # The row was removed with its queue.
        raise UnknownQueue(f"There is no queue {queue.name!r}.", field="queue")
    return Bucket(*map(int, rows[0]))
