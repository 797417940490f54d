"""Granting: what claims of ordered and of other queues have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import StoreCorrupt
from penstock.model.delivery import Delivery
from penstock.model.message import Message, MessageId
from penstock.model.queue import QueuePolicy
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.core import Core
from penstock.storage.sql.leases import make_receipt
from penstock.storage.sql.runs import Life, segment_of
from penstock.storage.sql.segments import Segment
from penstock.storage.sql.work import Work

__all__ = ["Claim", "Granted", "deliver", "lease_of"]


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
    name, number = queue.shown_as(dead=dead), queue.number
    replies: list[list[Delivery]] = []
    for part in granted:
        deliveries: list[Delivery] = []
        for message_id, rank, life in part:
            message, payload = _read(segments, life.entry or message_id)
            assert life.claimed_at is not None
            assert life.deadline is not None
            deliveries.append(
                Delivery(
                    name,
                    make_receipt(number, rank, life.lease, message_id),
                    message,
                    payload,
                    life.attempts,
                    life.claimed_at,
                    life.deadline,
                )
            )
        replies.append(deliveries)
    return replies


def _read(segments: dict[int, Segment], offset: int) -> tuple[Message, bytes]:
    number, index = segment_of(offset)
    segment = segments.get(number)
    if segment is None or index >= len(segment.heads):
        raise StoreCorrupt(f"The entry at offset {offset} of the log is missing.")
    return segment.message(index), segment.payload(index)
