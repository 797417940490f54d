"""Reading the payloads of deliveries, with verified checksums (P3, X1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import cast

from penstock.errors import StoreCorrupt
from penstock.model.checksum import checksum, checksums
from penstock.model.message import Message
from penstock.storage.keyvalue.keys import payload_key
from penstock.storage.keyvalue.stage import Stage

__all__ = ["payloads_of", "read_payload"]


def payloads_of(stage: Stage, messages: list[Message]) -> list[bytes]:
    """The payloads of these messages."""
    offsets = [message.offset for message in messages]
    found = stage.recent_payloads.get_many(offsets)
    missing = [index for index, value in enumerate(found) if value is None]
    if not missing:
        return cast("list[bytes]", found)
    if len(missing) == len(found):
        return _checked_many(_read_many(stage, offsets), messages)
    messages = [messages[index] for index in missing]
    values = _checked_many(_read_many(stage, [offsets[index] for index in missing]), messages)
    for index, value in zip(missing, values, strict=True):
        found[index] = value
    return cast("list[bytes]", found)


def _read_many(stage: Stage, offsets: Sequence[int]) -> Sequence[bytes | None]:
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


def _checked_many(values: Sequence[bytes | None], messages: list[Message]) -> list[bytes]:
    """The payloads of these messages. Their checksums take half the time of one call for each."""
    present = [value for value in values if value is not None]
    if len(present) == len(messages) and checksums(present, repeat(0)) == [
        message.checksum for message in messages
    ]:
        return present
    return [_checked(value, message) for value, message in zip(values, messages, strict=True)]


def _checked(value: bytes | None, message: Message) -> bytes:
    if value is None:
        raise StoreCorrupt(f"The payload of message {message.id} is missing.")
    if checksum(value) != message.checksum:
        raise StoreCorrupt(f"The checksum of the payload of message {message.id} is wrong.")
    return value
