"""One delivery in memory: an entry of a bucket, together with its encoded form.

Only entries near the claim head, at the tail and in flight are in memory; the others are bytes on
disk. ``encoded`` is the entry's part of its bucket's record, so that writing a bucket is a join.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from msgspec import Struct

from penstock.model.delivery import Receipt
from penstock.model.message import Message
from penstock.storage.keyvalue.metadata import decode_metadata
from penstock.storage.keyvalue.records import AVAILABLE, IN_FLIGHT, SETTLED

__all__ = ["LEASE", "Entry", "messages_of"]

#: claimID, grant, partition epoch, failed_at (dead letters, else 0); the consumer follows.
LEASE = struct.Struct("<QQQq")


class Entry(Struct, gc=False, eq=False):
    """A live or failed delivery. It cannot be part of a reference cycle, so the garbage collector
    need not track the tens of thousands in memory.
    """

    message_id: int
    claim_id: int
    attempts: int
    metadata: bytes
    encoded: bytes
    loaded: Message | None = None
    """The decoded metadata, cached on first use."""
    at: int = 0
    """When a dead letter failed."""

    # The grant, while the entry is in flight.
    claimed_at: int = 0
    deadline: int = 0
    grant: int = 0
    epoch: int = 0
    consumer: str = ""
    receipt: Receipt = Receipt("")
    lease: bytes = b""

    @staticmethod
    def waiting(
        message_id: int,
        claim_id: int,
        attempts: int,
        metadata: bytes,
        message: Message | None = None,
    ) -> Entry:
        """An entry that is not in flight."""
        head = AVAILABLE.pack(message_id, claim_id, attempts, len(metadata))
        return Entry(message_id, claim_id, attempts, metadata, head + metadata, message)

    @property
    def message(self) -> Message:
        if self.loaded is None:
            self.loaded = decode_metadata(self.message_id, self.metadata)
        return self.loaded

    def replace(self, metadata: bytes, message: Message) -> None:
        """Replace the metadata in place (a keyed replacement)."""
        self.metadata = metadata
        self.loaded = message
        self.rest()

    def rest(self) -> None:
        """Encode as available: not in flight."""
        self.encoded = (
            AVAILABLE.pack(self.message_id, self.claim_id, self.attempts, len(self.metadata))
            + self.metadata
        )

    def rest_failed(self) -> None:
        """Encode as failed: waiting in a dead-letter queue."""
        self.encoded = self.settled(self.at)

    def settled(self, at: int) -> bytes:
        """The entry as an element of a done, failed or expired bucket."""
        return (
            SETTLED.pack(self.message_id, self.claim_id, at, self.attempts, len(self.metadata))
            + self.metadata
        )

    def hold(self, deadline: int) -> None:
        """Encode as in flight until ``deadline``."""
        self.deadline = deadline
        self.encoded = (
            IN_FLIGHT.pack(
                self.message_id,
                self.claim_id,
                self.claimed_at,
                deadline,
                self.attempts,
                len(self.metadata),
            )
            + self.metadata
        )


def messages_of(entries: Iterable[Entry]) -> list[Message]:
    """Their messages, in a quarter of the time of the property if they were decoded before."""
    return [entry.loaded or entry.message for entry in entries]
