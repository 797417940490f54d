"""Appends dead-letter copies and events to the log, in the transaction that ends deliveries (S3).

Moves note the ended deliveries in ``Work.to_copy``. ``Core.transact`` calls ``append_copies`` when
the verb is done, before its last write. A single statement cannot append copies, so such a verb
uses a transaction. Nothing refuses a copy: ``max_depth``, schemas and the limits of a publish do
not apply.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import StoreCorrupt
from penstock.model.dead_letter_copies import (
    EndedDelivery,
    copies,
    dead_letter_copy,
    is_copied,
)
from penstock.model.delivery_events import delivery_event, reports
from penstock.model.message import NewMessage
from penstock.model.queue_events import EVENTS_TOPIC
from penstock.storage.sql.copy_sizes import MEASURED
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
    payloads = any(copies(group.queue.policy, group.state) for group in ended.values())
    appended: list[tuple[str, NewMessage]] = []
    # Some at a time: a segment may have one message to copy, and many others.
    messages = list(offsets.items())
    for begin in range(0, len(messages), MEASURED):
        part = messages[begin : begin + MEASURED]
        numbers = {segment_of(offset)[0] for _, offset in part}
        segments = await core.segments.read(
            work.session, work.tenant.number, numbers, payloads=payloads
        )
        for message, offset in part:
            appended += _appended(ended[message], offset, segments)
    if appended:
        await Publishing(core, work).append_copies(appended)


def _appended(
    group: EndedGroup, offset: int, segments: dict[int, Segment]
) -> Iterator[tuple[str, NewMessage]]:
    """What one ended delivery appends: a copy and an event, each with its topic."""
    policy, state = group.queue.policy, group.state
    delivery = _read(group, offset, segments)
    topic = policy.dead_letter_topic
    if topic is not None and is_copied(policy, state, delivery.message):
        yield topic, dead_letter_copy(delivery, auto_create=True)
    if reports(policy, state, delivery.message):
        yield EVENTS_TOPIC, delivery_event(delivery)


def _read(group: EndedGroup, offset: int, segments: dict[int, Segment]) -> EndedDelivery:
    """One ended delivery with its message, which a keyed replacement may have replaced."""
    number, index = segment_of(offset)
    segment = segments.get(number)
    if segment is None or index >= len(segment.metadata):
        raise StoreCorrupt(f"The entry at offset {offset} is missing from the log.")
    # An event has no payload of the message.
    payload = segment.payload(index) if copies(group.queue.policy, group.state) else b""
    record = group.record
    return EndedDelivery(
        *(group.queue.name, segment.message(index), payload, group.state, group.transition),
        *(record.error, record.attempts, group.at, group.is_kept),
    )
