"""Reading the payloads of deliveries, with verified checksums (P3, X1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from penstock.errors import StoreCorrupt
from penstock.model.checksum import checksum
from penstock.model.message import Message
from penstock.storage.keyvalue.entry import Entry
from penstock.storage.keyvalue.keys import payload_key
from penstock.storage.keyvalue.stage import Stage

__all__ = ["payloads_of", "read_payload"]


def payloads_of(stage: Stage, entries: list[Entry]) -> list[bytes]:
    """The payloads of these deliveries."""
    recent = stage.recent_payloads.get
    found = [recent(entry.message.offset) for entry in entries]
    if None not in found:
        return cast("list[bytes]", found)
    missing = [index for index, value in enumerate(found) if value is None]
    messages = [entries[index].message for index in missing]
    values = _read_many(stage, [message.offset for message in messages])
    for index, message, value in zip(missing, messages, values, strict=True):
        found[index] = _checked(value, message)
    return cast("list[bytes]", found)


def _read_many(stage: Stage, offsets: list[int]) -> Sequence[bytes | None]:
    """The payloads at these offsets, if there are any."""
    first, last = offsets[0], offsets[-1]
    if (
        last - first == len(offsets) - 1
        and offsets == list(range(first, last + 1))
        # Payloads are committed in order, so the others are in the store if the last one is.
        and not stage.is_uncommitted(payload_key(last))
    ):
        # Reading a range takes a quarter of the time of reading its keys.
        values = stage.values(payload_key(first), payload_key(last + 1))
        if len(values) == len(offsets):
            return values
    return stage.get_many([payload_key(offset) for offset in offsets])


def read_payload(get: Callable[[bytes], bytes | None], message: Message) -> bytes:
    """One payload."""
    return _checked(get(payload_key(message.offset)), message)


def _checked(value: bytes | None, message: Message) -> bytes:
    if value is None:
        raise StoreCorrupt(f"The payload of message {message.id} is missing.")
    if checksum(value) != message.checksum:
        raise StoreCorrupt(f"The checksum of the payload of message {message.id} is wrong.")
    return value
