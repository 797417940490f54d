"""Granting: what claims of ordered and of other queues have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import StoreCorrupt
from penstock.model.delivery import Delivery, Receipt
from penstock.model.message import MessageId
from penstock.model.queue import QueuePolicy
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.core import Core
from penstock.storage.sql.leases import receipt_prefix
from penstock.storage.sql.runs import Life, segment_of
from penstock.storage.sql.segments import Segment
from penstock.storage.sql.work import Work

__all__ = ["Claim", "Granted", "deliver", "lease_of", "look_at_clock"]


class Claim(NamedTuple):
    """What one caller asks for."""

    consumer: str
    limit: int
    lease_ms: int | None


class Granted(NamedTuple):
    """One delivery that is handed out, before its message is read."""

    message_id: MessageId
    rank: int
    life: Life


def lease_of(policy: QueuePolicy, lease_ms: int | None) -> int:
    """The lease that is given when this one is asked for."""
    wanted = policy.visibility_timeout_ms if lease_ms is None else lease_ms
    return min(max(wanted, policy.min_lease_ms), policy.max_lease_ms)


def look_at_clock(core: Core, work: Work) -> None:
    """Read the time again, after something was locked.

    Whoever had it locked may have ended a claim meanwhile, and the next one begins after that
    (C1) and is as long as was asked for.
    """
    work.now = max(work.now, core.clock.now())


async def deliver(
    core: Core, work: Work, queue: Queue, granted: Sequence[Sequence[Granted]], *, dead: bool
) -> list[list[Delivery]]:
    """Read the messages of what was granted (P3)."""
    offsets = {one.life.entry or one.message_id for part in granted for one in part}
    if not offsets:
        return [[] for _ in granted]
    segments = await core.segments.read(
        work.session, work.tenant.number, {segment_of(o)[0] for o in offsets}, payloads=True
    )
    name = queue.shown_as(dead=dead)
    return [_deliveries(name, queue.number, part, segments) for part in granted]


def _deliveries(
    name: str, queue: int, part: Sequence[Granted], segments: dict[int, Segment]
) -> list[Delivery]:
    """What one caller gets. Most of it has one life and one segment, which are looked at once."""
    deliveries: list[Delivery] = []
    append = deliveries.append
    life: Life | None = None
    segment: Segment | None = None
    prefix = ""
    attempts = claimed_at = deadline = 0
    for message_id, rank, lived in part:
        if lived is not life:
            life = lived
            prefix = receipt_prefix(queue, rank, life.lease)
            assert life.claimed_at is not None
            assert life.deadline is not None
            attempts, claimed_at, deadline = life.attempts, life.claimed_at, life.deadline
        number, index = segment_of(message_id if life.entry is None else life.entry)
        if segment is None or segment.number != number:
            segment = segments.get(number)
        if segment is None or index >= len(segment.heads):
            raise StoreCorrupt(f"The entry of message {message_id} is missing from the log.")
        receipt = Receipt(f"{prefix}{message_id:x}")
        append(
            Delivery(
                name,
                receipt,
                segment.message(index),
                segment.payload(index),
                attempts,
                claimed_at,
                deadline,
            )
        )
    return deliveries
