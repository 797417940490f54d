"""Ending deliveries until the transaction is full of dead-letter copies (``CopyLimit``).

A row of deliveries does not say how large their messages are. So the metadata of their segments is
read first, some at a time: they are cached if the messages were published or claimed lately.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

from penstock.model.dead_letter_copies import copied_bytes, copies, is_copied
from penstock.model.states import Transition
from penstock.storage.copy_limit import check_settle_copies
from penstock.storage.sql import moves
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.core import Core
from penstock.storage.sql.deliveries import DeliveryGroup, segment_of
from penstock.storage.sql.work import Work

__all__ = ["MEASURED", "check_copies", "expire_some", "fitting", "measure"]

#: Segments that are read at once. Most have up to 128 KiB of metadata and payloads.
MEASURED: Final = 32


async def measure(core: Core, work: Work, queue: Queue, groups: Iterable[DeliveryGroup]) -> None:
    """Read how large the messages of these groups are, if the queue may copy them."""
    if queue.policy.dead_letter_topic is None or work.single_statement:
        return
    numbers = {group.entry_segment for group in groups}
    work.measured = await core.segments.read(work.session, work.tenant.number, numbers)


async def fitting(
    core: Core, work: Work, queue: Queue, groups: Sequence[DeliveryGroup]
) -> AsyncIterator[DeliveryGroup]:
    """The groups, measured, until the transaction is full of copies of those that were ended."""
    for begin in range(0, len(groups), MEASURED):
        part = groups[begin : begin + MEASURED]
        await measure(
            core, work, queue, [one for one in part if moves.may_end(queue, one, work.now)]
        )
        for group in part:
            if work.copies.is_full:
                return
            yield group


async def expire_some(
    core: Core, work: Work, queue: Queue, groups: Sequence[DeliveryGroup]
) -> None:
    """Expire waiting groups, as many as fit, and write that."""
    async for group in fitting(core, work, queue, groups):
        moves.expire(work, group, group.members, Transition.EXPIRE)
    await work.write()


async def check_copies(core: Core, work: Work) -> None:
    """Refuse a settle with publish if one transaction cannot hold its dead-letter copies."""
    ended = [group for group in work.to_copy if copies(group.queue.policy, group.state)]
    count = size = 0
    for begin in range(0, len(ended), MEASURED):
        part = ended[begin : begin + MEASURED]
        numbers = {segment_of(offset)[0] for group in part for offset in group.offsets}
        segments = await core.segments.read(work.session, work.tenant.number, numbers)
        for group in part:
            for number, index in map(segment_of, group.offsets):
                segment = segments.get(number)
                if segment is None or index >= len(segment.metadata):
                    continue  # It is missing, which is found out when it is copied.
                message = segment.message(index)
                if is_copied(group.queue.policy, group.state, message):
                    count, size = count + 1, size + copied_bytes(message)
                    check_settle_copies(count, size)
