"""Messages: what a producer hands in, and what the log keeps.

``id`` names the message for good; ``offset`` is the position in the log of the entry that
the values come from. They are equal, except for a message whose keyed replacement was
appended later: it keeps its id and takes the offset of the newer entry (L1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NewType, TypeAlias

from msgspec import Struct

from penstock.model.limits import DEFAULT_PRIORITY

__all__ = [
    "NO_HEADERS",
    "Durability",
    "HeaderValue",
    "Message",
    "MessageId",
    "NewMessage",
    "Offset",
    "Outgoing",
    "PublishReply",
    "Published",
]

MessageId = NewType("MessageId", int)
Offset = NewType("Offset", int)

#: string, int64, float64 or bool; bool is checked before int wherever it matters.
HeaderValue: TypeAlias = str | int | float | bool

#: What a reply promises: "fsync" survives power loss, "os" survives the process,
#: "memory" survives neither (the memory engine).
Durability: TypeAlias = str

NO_HEADERS: Final[dict[str, HeaderValue]] = {}


class NewMessage(Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """What a producer hands in.

    ``delay_ms`` and ``ttl_ms`` count from the publish; the broker turns them into
    ``deliver_at`` and ``expires_at``, and engines see only those.
    """

    payload: bytes
    headers: Mapping[str, HeaderValue] = NO_HEADERS
    id: str | None = None
    """The idempotency id (P4)."""
    key: str | None = None
    partition_key: str | None = None
    priority: int = DEFAULT_PRIORITY
    content_type: str | None = None
    deliver_at: int | None = None
    expires_at: int | None = None
    delay_ms: int | None = None
    ttl_ms: int | None = None


class Outgoing(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Messages for one topic, appended with a settlement."""

    topic: str
    messages: Sequence[NewMessage]


class Message(Struct, frozen=True, gc=False, omit_defaults=True):
    """A message's metadata as the log keeps it. The payload lives beside it."""

    id: MessageId
    offset: Offset
    topic: str
    priority: int
    published_at: int
    deliver_at: int
    """When it may first be delivered; equal to ``published_at`` without a delay."""
    expires_at: int | None
    size: int
    """Payload bytes."""
    checksum: int
    """Of the payload (``penstock.model.checksum``), checked whenever it is read (P3, X1)."""
    partition_key: str | None = None
    key: str | None = None
    content_type: str | None = None
    headers: dict[str, HeaderValue] = NO_HEADERS

    @property
    def is_replacement(self) -> bool:
        """Whether these values replaced earlier ones under the same key."""
        return int(self.id) != int(self.offset)


class Published(Struct, frozen=True, gc=False):
    """What became of one message of a publish."""

    id: MessageId
    offset: Offset
    duplicate: bool = False
    replaced: bool = False


class PublishReply(Struct, frozen=True):
    """What became of a publish: one entry a message, in order, and how safe it is now."""

    messages: tuple[Published, ...]
    durability: Durability
    repeated: bool = False
    """The batch id was seen before: this is the answer of the first time (P4)."""
