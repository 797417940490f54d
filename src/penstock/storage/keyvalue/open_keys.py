"""Open keys: keyed messages that may still be replaced.

The record exists while no delivery of the message was settled or purged. The message may be
replaced while none of its deliveries is in flight.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from msgspec import Struct

from penstock.model.message import Message
from penstock.storage.keyvalue.encoding import Reader, pack_utf8, seal, unseal

__all__ = ["OpenKey"]

_HEAD = struct.Struct("<QBH")


class OpenKey(Struct, frozen=True):
    """The message that a key refers to, and the queues that have it."""

    message_id: int
    priority: int
    queues: tuple[str, ...]

    @staticmethod
    def of(message: Message, queues: Iterable[str]) -> OpenKey:
        """The record of a message that these queues have."""
        return OpenKey(message.id, message.priority, tuple(sorted(queues)))

    def encode(self) -> bytes:
        head = _HEAD.pack(self.message_id, self.priority, len(self.queues))
        return seal(head + b"".join(map(pack_utf8, self.queues)))

    @staticmethod
    def decode(value: bytes) -> OpenKey:
        reader = Reader(unseal(value, "open key"), "open key")
        message_id, priority = reader.u64(), reader.u8()
        return OpenKey(message_id, priority, tuple(reader.utf8() for _ in range(reader.u16())))
