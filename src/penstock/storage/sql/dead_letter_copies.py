"""Appends dead-letter copies to the log, in the transaction in which their deliveries end (S3).

Moves note the ended deliveries in ``Work.to_copy``. ``Core.transact`` calls ``append_copies`` when
the verb is done, before its last write. A single statement cannot append copies, so such a verb
uses a transaction. Nothing refuses a copy: ``max_depth``, schemas and the limits of a publish do
not apply.
"""

from __future__ import annotations

from penstock.errors import StoreCorrupt
from penstock.model.dead_letter_copies import EndedDelivery, dead_letter_copy, is_circular
from penstock.model.message import NewMessage
from penstock.storage.sql.core import Core
from penstock.storage.sql.deliveries import message_id, segment_of
from penstock.storage.sql.publish import Publishing
from penstock.storage.sql.segments import Segment
from penstock.storage.sql.work import EndedGroup, Work

__all__ = ["append_copies"]


async def append_copies(core: Core, work: Work) -> None:
    """Append the copies of the deliveries that this transaction has ended, by message id."""
    ended = {
        message_id(group.segment, index): group for group in work.to_copy for index in group.members
    }
    work.to_copy.clear()
    offsets = {message: group.record.entry or message for message, group in sorted(ended.items())}
    numbers = {segment_of(offset)[0] for offset in offsets.values()}
    tenant = work.tenant.number
    segments = await core.segments.read(work.session, tenant, numbers, payloads=True)
    copies: list[tuple[str, NewMessage]] = []
    for message, offset in offsets.items():
        group = ended[message]
        delivery = _read(group, offset, segments)
        topic = group.queue.policy.dead_letter_topic
        if topic is not None and not is_circular(group.queue.policy, delivery.message):
            copies.append((topic, dead_letter_copy(delivery, auto_create=True)))
    if copies:
        await Publishing(core, work).append_copies(copies)


def _read(group: EndedGroup, offset: int, segments: dict[int, Segment]) -> EndedDelivery:
    """One ended delivery with its message, which a keyed replacement may have replaced."""
    number, index = segment_of(offset)
    segment = segments.get(number)
    if segment is None or index >= len(segment.metadata):
        raise StoreCorrupt(f"The entry at offset {offset} is missing from the log.")
    ((message, payload),) = segment.read_entries([index])
    record = group.record
    return EndedDelivery(
        *(group.queue.name, message, payload, group.state, group.transition),
        *(record.error, record.attempts, group.at),
    )
