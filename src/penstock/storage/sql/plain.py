"""Plain publishes: messages that one statement can append and route (P1, R1, S3).

Most messages have no id, no key and no time, and are routed by their topic alone. Nothing has to
be read before they are written, and the only cached input is the catalog, whose version the
statement checks. If one statement does not suffice, nothing is changed, and ``publish`` uses a
transaction.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import repeat

from penstock.model.checksum import checksums
from penstock.model.message import NewMessage, PublishReply
from penstock.storage.sql.appending import Part, parts_of
from penstock.storage.sql.catalog import Tenant
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import FreshRun
from penstock.storage.sql.entries import Block, blocks, published
from penstock.storage.sql.runs import Life, pack_members
from penstock.storage.sql.segments import Head

__all__ = ["plain_blocks", "publish_plain"]


def plain_blocks(tenant: Tenant, topic: str, messages: Sequence[NewMessage]) -> list[Block] | None:
    """The messages as blocks, if all of them are plain; None otherwise.

    They must also share one priority and partition key, and match a queue.
    """
    targets = tenant.index.decided(topic)
    if (
        not targets
        or not messages
        or tenant.bounded_for(topic)
        or not tenant.all_take_publishes
        or tenant.topic(topic).default_ttl_ms is not None
    ):
        return None
    priority, partition_key = messages[0].priority, messages[0].partition_key
    for new in messages:
        if (
            new.id is not None
            or new.key is not None
            or new.deliver_at is not None
            or new.expires_at is not None
            or new.priority != priority
            or new.partition_key != partition_key
        ):
            return None
    payloads = [new.payload for new in messages]
    heads = [
        Head(
            topic,
            priority,
            len(payload),
            total,
            None,
            None,
            partition_key,
            None,
            new.content_type,
            dict(new.headers) if new.headers else None,
        )
        for new, payload, total in zip(
            messages, payloads, checksums(payloads, repeat(0)), strict=True
        )
    ]
    return blocks(heads, payloads, targets)


async def publish_plain(
    core: Core, tenant: Tenant, planned: Sequence[list[Block]]
) -> list[PublishReply]:
    """Append and route the blocks of several calls; returns a reply per call.

    Raises ``NotAtOnce`` if that needs more than one statement; then nothing was changed.
    """
    began = time.perf_counter()
    now = core.clock.now()
    parts = parts_of([block for call in planned for block in call])
    segments = [part.row(tenant.number, now) for part in parts]
    runs = [run for nth, part in enumerate(parts, 1) for run in _runs(part, nth, now)]
    numbers = await core.once(
        lambda session: session.publish(tenant.number, tenant.version, segments, runs)
    )
    for number, part in zip(numbers, parts, strict=True):
        part.place(number)
        core.segments.remember(part.segment(number, tenant.number, now))
    queues = {run.queue for run in runs}
    core.brought(tenant, queues, len(segments) + 2 * len(runs), time.perf_counter() - began)
    return [PublishReply(published(call), "fsync") for call in planned]


def _runs(part: Part, nth: int, now: int) -> Iterator[FreshRun]:
    """One run per block and queue that takes it."""
    for block in part.items:
        assert type(block) is Block
        first, size, head = block.index, len(block.heads), block.heads[0]
        partition_key = head.partition_key or ""
        members = pack_members(range(first, first + size))
        for queue in block.targets:
            partition = partition_key if queue.ordered else None
            yield FreshRun(
                queue.number,
                nth,
                9 - head.priority,
                first,
                size,
                None if partition is None else partition.encode(),
                members,
                Life(joined_at=now, partition=partition).pack(),
            )
