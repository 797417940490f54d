"""Read ahead: what the next claim of a deep queue needs, read after the reply of this one.

A claim of messages that were published long ago reads buckets and payloads and decodes metadata:
a third of its time. A consumer that got all it asked for works on its reply meanwhile, and will
probably ask for as much again. So the next messages are read as soon as the reply is sent. Nothing
is granted or changed. An error is left to the claim, which reads again what is missing.

Only one such batch is kept, of the queue that was claimed from last.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Final

from penstock.errors import StoreError
from penstock.model.message import Message
from penstock.storage.keyvalue.payloads import payloads_of
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.recent_payloads import RecentPayloads

__all__ = ["read_ahead"]

#: The most messages and payload bytes that are read: under a millisecond.
_MOST_MESSAGES: Final = 100
_MOST_BYTES: Final = 256 * 1024


def read_ahead(queue: Queue) -> None:
    """Read the first waiting messages of the queue, unless the next one was read ahead."""
    recent = queue.stage.recent_payloads
    with suppress(StoreError):
        messages = list(_first_messages(queue, recent))
        if messages:
            payloads = payloads_of(queue.stage, messages)
            offsets = [message.offset for message in messages]
            recent.ahead = dict(zip(offsets, payloads, strict=True))


def _first_messages(queue: Queue, recent: RecentPayloads) -> Iterator[Message]:
    remaining = _MOST_BYTES
    waiting = chain.from_iterable(bucket.available.values() for bucket in queue.shelf.in_order())
    for entry in islice(waiting, _MOST_MESSAGES):
        message = entry.message
        remaining -= message.size
        if remaining < 0 or message.offset in recent.ahead:
            return
        yield message
