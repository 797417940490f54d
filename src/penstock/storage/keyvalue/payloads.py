"""Reading the payloads of deliveries, with verified checksums (P3, X1)."""

from __future__ import annotations

from collections.abc import Callable
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
    values = stage.get_many([payload_key(message.offset) for message in messages])
    for index, message, value in zip(missing, messages, values, strict=True):
        found[index] = _checked(value, message)
    return cast("list[bytes]", found)


def read_payload(get: Callable[[bytes], bytes | None], message: Message) -> bytes:
    """One payload."""
    return _checked(get(payload_key(message.offset)), message)


def _checked(value: bytes | None, message: Message) -> bytes:
    if value is None:
        raise StoreCorrupt(f"The payload of message {message.id} is missing.")
    if checksum(value) != message.checksum:
        raise StoreCorrupt(f"The checksum of the payload of message {message.id} is wrong.")
    return value
