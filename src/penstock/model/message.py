"""Messages: what a producer publishes, and what the log stores.

``id`` never changes; ``offset`` is the position of the log entry that the values come from.
They are equal, except for a message whose keyed replacement was appended later: it keeps its
id and has the offset of the newer entry (L1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NewType, TypeAlias

from msgspec import Struct

from penstock.model.duration import Duration
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

#: string, int64, float64 or bool; check for bool before int where it matters.
HeaderValue: TypeAlias = str | int | float | bool

#: What a stored message survives: "object" the loss of the machine (object stores), "fsync"
#: power loss, "os" the end of the process, "memory" neither (the memory engine).
Durability: TypeAlias = str

NO_HEADERS: Final[dict[str, HeaderValue]] = {}


class NewMessage(Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """A message to publish. A payload of another type is stored as by ``publish``.

    ``delay_ms`` and ``ttl_ms`` count from the publish; the broker converts them to
    ``deliver_at`` and ``expires_at``, which are all that engines see.
    """

    if TYPE_CHECKING:

        def __init__(
            self,
            payload: object,
            headers: Mapping[str, HeaderValue] = ...,
            id: str | None = None,
            key: str | None = None,
            partition_key: str | None = None,
            priority: int = ...,
            content_type: str | None = None,
            deliver_at: int | None = None,
            expires_at: int | None = None,
            delay_ms: Duration | None = None,
            ttl_ms: Duration | None = None,
            auto_create: bool = True,
            max_attempts: int | None = None,
        ) -> None: ...

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
    auto_create: bool = True
    """False: the message creates no queue, even if no queue takes it."""
    max_attempts: int | None = None
    """Overrides the ``max_attempts`` of every queue."""


class Outgoing(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Messages for one topic, published with a settlement."""

    topic: str
    messages: Sequence[NewMessage]


class Message(Struct, frozen=True, gc=False, omit_defaults=True):
    """A message's metadata as the log stores it, without the payload."""

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
    """Of the payload (``penstock.model.checksum``), checked on every read (P3, X1)."""
    partition_key: str | None = None
    key: str | None = None
    content_type: str | None = None
    headers: dict[str, HeaderValue] = NO_HEADERS
    max_attempts: int | None = None
    """Overrides the ``max_attempts`` of every queue."""

    @property
    def is_replacement(self) -> bool:
        """Whether these values replaced earlier ones under the same key."""
        return int(self.id) != int(self.offset)


class Published(Struct, frozen=True, gc=False):
    """The outcome of publishing one message."""

    id: MessageId
    offset: Offset
    duplicate: bool = False
    replaced: bool = False
    queues: int | None = None
    """How many queues have the message after this commit, without those that are still catching
    up. None for a duplicate, which was routed when it was first published."""


class PublishReply(Struct, frozen=True):
    """The outcome of a publish: one entry per message, in order, and its durability."""

    messages: tuple[Published, ...]
    durability: Durability
    repeated: bool = False
    """The batch id was seen before: this is the first answer again (P4)."""
