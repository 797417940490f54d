"""Granting: hand out deliveries, in ordered and unordered queues."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import repeat
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from penstock.errors import StoreCorrupt
from penstock.model.decisions import lease_for
from penstock.model.delivery import Delivery, Outcome, Receipt, Settlement
from penstock.model.limits import MAX_CLAIM_BYTES
from penstock.storage.claim_selector import ClaimSelector
from penstock.storage.sql import moves
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.claim_numbers import Receipts
from penstock.storage.sql.core import Core
from penstock.storage.sql.deliveries import (
    INDEX_BITS,
    DeliveryGroup,
    DeliveryRecord,
    delivered,
    message_id,
    segment_of,
)
from penstock.storage.sql.segments import MAX_SEGMENT_BYTES, Segment
from penstock.storage.sql.work import Work

__all__ = [
    "Acks",
    "Claim",
    "Granted",
    "Stretch",
    "deliver",
    "grant",
    "large_segments",
    "look_at_clock",
]

#: A group, and consecutive members of it in claim order.
Stretch: TypeAlias = tuple[DeliveryGroup, Sequence[int]]
#: A segment that is not cached counts as this part of the largest payload: few payloads are large,
#: and asking how large they are is another statement.
_UNKNOWN_PART: Final = 4


class Acks:
    """Acks that a claim call brings along, and their outcomes once the claim is answered."""

    __slots__ = ("items", "outcomes")

    def __init__(self, items: Sequence[Settlement]) -> None:
        self.items = items
        self.outcomes: Sequence[Outcome] = ()


class Claim(NamedTuple):
    """The arguments of one claim call."""

    consumer: str
    limit: int
    lease_ms: int | None
    selector: ClaimSelector | None = None
    acks: Acks | None = None


class Granted(NamedTuple):
    """Granted deliveries that share one ``DeliveryRecord``, before their messages are read."""

    segment: int
    members: Sequence[int]
    rank: int
    record: DeliveryRecord

    @property
    def entries(self) -> tuple[int, Sequence[int]]:
        """The segment and the indices of the entries to deliver."""
        if self.record.entry is None:
            return self.segment, self.members
        # A replaced message has a key, so its group has one member.
        segment, index = segment_of(self.record.entry)
        return segment, (index,)


def grant(
    core: Core, work: Work, queue: Queue, asked: Claim, taken: Sequence[Stretch]
) -> list[Granted]:
    """Hand out to one consumer: one claim per group."""
    deadline = work.now + lease_for(queue.policy, asked.lease_ms)
    by_group: dict[int, tuple[DeliveryGroup, list[int]]] = {}
    for group, members in taken:
        by_group.setdefault(id(group), (group, []))[1].extend(members)
    records = {
        key: moves.grant(
            work,
            group,
            members,
            asked.consumer,
            deadline,
            core.leases.next(work.now, group.record.lease),
        )
        for key, (group, members) in by_group.items()
    }
    return [
        Granted(group.segment, members, group.rank, records[id(group)]) for group, members in taken
    ]


def look_at_clock(core: Core, work: Work) -> None:
    """Read the time again, after acquiring a lock.

    The previous holder of the lock may have ended a claim in the meantime. The next claim must
    begin after that (C1) and last as long as requested.
    """
    work.now = max(work.now, core.clock.now())


async def large_segments(core: Core, work: Work, numbers: set[int]) -> dict[int, Segment] | None:
    """The segments, which know how large their payloads are; None if these fit into one claim.

    The payloads of a segment are small together, or one alone.
    """
    unknown = max(MAX_SEGMENT_BYTES, core.options.limits.payload_bytes) // _UNKNOWN_PART
    if len(numbers) <= 1 or core.segments.payload_bytes(numbers, unknown) <= MAX_CLAIM_BYTES:
        return None
    return await core.segments.read(work.session, work.tenant.number, numbers)


async def deliver(
    core: Core, work: Work, queue: Queue, granted: Sequence[Sequence[Granted]], *, dead: bool
) -> list[list[Delivery]]:
    """Read the messages of the granted deliveries (P3)."""
    numbers = {one.entries[0] for part in granted for one in part}
    if not numbers:
        return [[] for _ in granted]
    segments = await core.segments.read(work.session, work.tenant.number, numbers, payloads=True)
    name = queue.shown_as(dead=dead)
    shown = [_deliveries(name, queue.number, part, segments, core.receipts) for part in granted]
    return list(map(_dead_letters, repeat(queue.name), granted, shown)) if dead else shown


def _dead_letters(
    name: str, part: Sequence[Granted], deliveries: Sequence[Delivery]
) -> list[Delivery]:
    """The deliveries of one caller, with how they failed in the queue ``name`` (D1)."""
    records = [granted.record for granted in part for _ in granted.members]
    return [
        replace(one, error=record.error, failed_at=record.at, original_queue=name)
        for one, record in zip(deliveries, records, strict=True)
    ]


def _deliveries(
    name: str,
    queue: int,
    part: Sequence[Granted],
    segments: dict[int, Segment],
    receipts: Receipts,
) -> list[Delivery]:
    """The deliveries of one caller."""
    deliveries: list[Delivery] = []
    for granted in part:
        number, indices = granted.entries
        record, segment = granted.record, segments.get(number)
        if segment is None or indices[-1] >= len(segment.metadata):
            there = 0 if segment is None else bisect_left(indices, len(segment.metadata))
            missing = message_id(granted.segment, granted.members[there])
            raise StoreCorrupt(f"The entry of message {missing} is missing from the log.")
        assert record.claimed_at is not None
        assert record.deadline is not None
        prefix = receipts.prefix(queue, granted.rank, record.lease)
        attempts, claimed_at, deadline = record.attempts, record.claimed_at, record.deadline
        base, expires_at = granted.segment << INDEX_BITS, record.expires_at
        deliveries += [
            Delivery(
                name,
                Receipt(f"{prefix}{base | index:x}"),
                message if message.expires_at == expires_at else delivered(message, record),
                payload,
                attempts,
                claimed_at,
                deadline,
            )
            for index, (message, payload) in zip(
                granted.members, segment.read_entries(indices), strict=True
            )
        ]
    return deliveries
