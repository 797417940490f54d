"""Open keys: keyed messages that may still be replaced.

The record exists exactly while the message was never claimed, expired or purged in any of its
queues, so a keyed publish needs one read.
"""

from __future__ import annotations

import struct

from msgspec import Struct

from penstock.storage.keyvalue.encoding import Reader, pack_utf8, seal, unseal

__all__ = ["OpenKey"]

_HEAD = struct.Struct("<QBH")


class OpenKey(Struct, frozen=True):
    """The message that a key refers to, and the queues it waits in."""

    message_id: int
    priority: int
    queues: tuple[str, ...]

    def encode(self) -> bytes:
        head = _HEAD.pack(self.message_id, self.priority, len(self.queues))
        return seal(head + b"".join(map(pack_utf8, self.queues)))

    @staticmethod
    def decode(value: bytes) -> OpenKey:
        reader = Reader(unseal(value, "open key"), "open key")
        message_id, priority = reader.u64(), reader.u8()
        return OpenKey(message_id, priority, tuple(reader.utf8() for _ in range(reader.u16())))
