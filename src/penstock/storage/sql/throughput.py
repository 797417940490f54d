"""Throughput limits: one token bucket per queue, shared by all servers.

The bucket is a row that a claim locks before it searches for deliveries and charges, in the same
transaction, for those that it hands out. A claim that hands out nothing writes nothing. Queues
without a limit have no such row.
"""

from __future__ import annotations

from penstock.model.bucket import Bucket
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.clock import DatabaseClock
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import NotAtOnce, Session
from penstock.storage.sql.granting import look_at_clock
from penstock.storage.sql.limits import Limit, hold_limit
from penstock.storage.sql.work import Work

__all__ = ["charge", "next_token_at", "take_bucket"]


def _kind(*, dead: bool) -> Limit:
    return Limit.DEAD_THROUGHPUT if dead else Limit.THROUGHPUT


async def take_bucket(core: Core, work: Work, queue: Queue, *, dead: bool) -> Bucket | None:
    """Lock the queue's bucket, then read the time again; None if the queue has no limit."""
    rate = queue.policy.throughput_limit
    if rate is None:
        return None
    if work.at_once:
        raise NotAtOnce
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
