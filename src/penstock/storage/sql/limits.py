"""Limits: rows that are locked while a queue's depth or throughput limit is checked."""

from __future__ import annotations

from enum import IntEnum

from penstock.errors import UnknownQueue
from penstock.model.bucket import Bucket
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.clock import DatabaseClock
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import NeedsTransaction, Session
from penstock.storage.sql.granting import look_at_clock
from penstock.storage.sql.work import Work

__all__ = ["Limit", "charge", "hold_limit", "next_token_at", "take_bucket"]


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


# -- throughput limits ---------------------------------------------------------------
# One token bucket per queue, shared by all servers. The bucket is a row that a claim locks before
# it searches for deliveries and charges, in the same transaction, for those that it hands out. A
# claim that hands out nothing writes nothing. Queues without a limit have no such row.


def _kind(*, dead: bool) -> Limit:
    return Limit.DEAD_THROUGHPUT if dead else Limit.THROUGHPUT


async def take_bucket(core: Core, work: Work, queue: Queue, *, dead: bool) -> Bucket | None:
    """Lock the queue's bucket, then read the time again; None if the queue has no limit."""
    rate = queue.policy.throughput_limit
    if rate is None:
        return None
    if work.single_statement:
        raise NeedsTransaction
    bucket = await hold_limit(work, queue, _kind(dead=dead), Bucket.full(rate, work.now))
    look_at_clock(core, work)
    if isinstance(core.clock, DatabaseClock) and bucket.is_ahead(work.now):
        # This server's reading may be behind, for example because it was suspended. Its charge
        # would let other servers refill the bucket for a period that they have counted already.
        ((now,),) = await work.session.fetch("now")
        work.now = max(work.now, int(now))
        core.clock.doubt()
    if bucket.rate != rate:
        return Bucket.full(rate, work.now)
    return bucket.refilled(work.now)


async def charge(work: Work, queue: Queue, bucket: Bucket, given: int, *, dead: bool) -> None:
    """Charge the bucket for the deliveries handed out."""
    if not given:
        return
    left = bucket.charged(given)
    await work.session.run(
        "charge_limit",
        queue=queue.number,
        kind=int(_kind(dead=dead)),
        rate=left.rate,
        milli_tokens=left.milli_tokens,
        filled_at=left.filled_at,
    )


async def next_token_at(session: Session, queue: Queue, now: int, *, dead: bool) -> int | None:
    """When the bucket next has a token, perhaps in the past; None if it holds nothing back."""
    rate = queue.policy.throughput_limit
    if rate is None:
        return None
    rows = await session.fetch("read_limit", queue=queue.number, kind=int(_kind(dead=dead)))
    buckets = [Bucket(*map(int, row)) for row in rows]
    # A bucket that is not full was charged within the last second. It may have held back a claim
    # that found nothing, even if it has a token by now.
    held = [one for one in buckets if one.rate == rate and not one.refilled(now).is_full]
    return min((one.next_at() for one in held), default=None)
