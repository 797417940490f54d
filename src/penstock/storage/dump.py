"""The contents of a store in a form that every engine can write and read.

A dump is a stream of records in this order: the store; its tenants with their topics and queues;
drawn positions and then the entries of the log, both ascending; per queue its consumers and
partitions, and then its deliveries: live ones, delayed ones, done ones and expired ones, each in
claim order, and the same for its dead letters; then replay marks, keys, ids and documents. So a
reader needs memory for queues, partitions and deliveries in flight, and for nothing that grows
with the log.

A record is MessagePack: an array that begins with the name of its type (docs/formats.md). Fields
are only ever added at the end.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from penstock.errors import StoreCorrupt
from penstock.model.message import Message, Published
from penstock.model.queue import QueuePolicy, TopicPolicy
from penstock.model.states import State, Transition

__all__ = [
    "BatchId",
    "Consumer",
    "Counters",
    "Delivery",
    "Document",
    "DumpRecord",
    "Entry",
    "IdempotencyId",
    "OpenKey",
    "Partition",
    "Position",
    "QueueInfo",
    "ReplayMark",
    "SettleId",
    "Step",
    "StoreInfo",
    "TenantInfo",
    "TopicInfo",
    "decode",
    "encode",
]

DUMP_VERSION: Final = 1


class StoreInfo(Struct, frozen=True, array_like=True, tag="store"):
    """The beginning of a dump."""

    next_offset: int
    """Above every offset and every position that was ever given out."""
    version: int = DUMP_VERSION


class TenantInfo(Struct, frozen=True, array_like=True, tag="tenant"):
    """A tenant and its log."""

    name: str
    end: int
    archived: int | None
    trimmed: int


class TopicInfo(Struct, frozen=True, array_like=True, tag="topic"):
    """A topic with its policy."""

    tenant: str
    name: str
    policy: TopicPolicy


class Counters(Struct, frozen=True, array_like=True):
    """What was ever counted in a queue, or in its dead letters."""

    grants: int = 0
    acks: int = 0
    nacks: int = 0
    failures: int = 0


class QueueInfo(Struct, frozen=True, array_like=True, tag="queue"):
    """A queue with its policy."""

    tenant: str
    name: str
    policy: QueuePolicy
    filter_version: int
    created_at: int
    cursor: int | None
    dead_paused: bool
    epoch: int
    counters: Counters
    dead_counters: Counters


class Position(Struct, frozen=True, array_like=True, tag="position"):
    """A number of the message sequence that a retry drew when it went to the back."""

    tenant: str
    number: int


class Entry(Struct, frozen=True, array_like=True, tag="entry"):
    """An entry of the log with its payload."""

    tenant: str
    message: Message
    payload: bytes
    newest: bool = True
    """Whether no later entry replaces it."""


class Step(Struct, frozen=True, array_like=True):
    """One transition in the history of a delivery."""

    at: int
    transition: Transition
    state: State | None
    dead: bool = False
    consumer: str | None = None
    error: str | None = None


class Delivery(Struct, frozen=True, array_like=True, tag="delivery"):
    """A delivery in any state, with its story."""

    tenant: str
    queue: str
    message: Message
    """Its newest entry, which expires when the delivery does."""
    state: State
    dead: bool
    """Whether the state is one of the dead letters: a failed delivery is available there."""
    attempts: int = 0
    released: int = 0
    due_at: int | None = None
    at: int | None = None
    """When it became done, failed or expired."""
    claimed_at: int | None = None
    deadline: int | None = None
    consumer: str | None = None
    error: str | None = None
    result: bytes | None = None
    position: int | None = None
    """Where it waits, unless that is its message id."""
    history: tuple[Step, ...] = ()
    """Every transition after the publish, oldest first."""
    receipt: str | None = None
    """Of the claim, while it is in flight."""


class OpenKey(Struct, frozen=True, array_like=True, tag="key"):
    """A key whose message may be replaced."""

    tenant: str
    topic: str
    key: str
    message_id: int
    priority: int
    queues: tuple[str, ...]


class IdempotencyId(Struct, frozen=True, array_like=True, tag="id"):
    """An idempotency id; one of a partition is a hash."""

    tenant: str
    topic: str
    id: str
    partitioned: bool
    at: int
    until: int
    message_id: int
    offset: int


class BatchId(Struct, frozen=True, array_like=True, tag="batch"):
    """A batch id with the reply to its batch."""

    tenant: str
    topic: str
    id: str
    at: int
    until: int
    own_ms: int | None
    reply: tuple[Published, ...]


class SettleId(Struct, frozen=True, array_like=True, tag="settle"):
    """A settle with publish, and its reply as ``storage.repetition`` encodes it."""

    tenant: str
    queue: str
    id: str
    at: int
    until: int
    reply: bytes


class Consumer(Struct, frozen=True, array_like=True, tag="consumer"):
    """A consumer of an ordered queue."""

    tenant: str
    queue: str
    name: str
    deadline: int


class Partition(Struct, frozen=True, array_like=True, tag="partition"):
    """A partition of an ordered queue with its owner."""

    tenant: str
    queue: str
    name: str
    epoch: int
    owner: str | None


class ReplayMark(Struct, frozen=True, array_like=True, tag="replay"):
    """A message that a replay id has moved."""

    tenant: str
    queue: str
    dead: bool
    message_id: int
    replay_id: str


class Document(Struct, frozen=True, array_like=True, tag="document"):
    """A document: access keys, webhooks, runs and so on."""

    kind: str
    name: str
    value: bytes


DumpRecord: TypeAlias = (
    StoreInfo
    | TenantInfo
    | TopicInfo
    | QueueInfo
    | Position
    | Entry
    | Delivery
    | OpenKey
    | IdempotencyId
    | BatchId
    | SettleId
    | Consumer
    | Partition
    | ReplayMark
    | Document
)

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(DumpRecord).decode


def encode(record: DumpRecord) -> bytes:
    """The record in MessagePack."""
    return _encode(record)


def decode(data: bytes) -> DumpRecord:
    """Decode what ``encode`` wrote."""
    try:
        record: DumpRecord = _decode(data)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"A record of a dump cannot be read: {error}.") from error
    if isinstance(record, StoreInfo) and record.version > DUMP_VERSION:
        raise StoreCorrupt(f"The dump has version {record.version}; {DUMP_VERSION} is known.")
    return record
