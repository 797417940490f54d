"""The keys of all records: the key space of docs/formats.md.

Claim ids and bucket ids are ``exponent << 60 | number``. The number of a delivery is ``(9 -
priority) * 10^17 + message id``: a plain key scan is priority descending, then publish order (C4),
however the delivery entered the queue, and ids are never reused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from penstock.errors import StoreCorrupt
from penstock.model.limits import DLQ_SUFFIX, MAX_PRIORITY
from penstock.storage.keyvalue.encoding import pack_var_u64, prefix_end, terminated

__all__ = [
    "ACTIVE_PREFIX",
    "BATCH_PREFIX",
    "COPY_KEY",
    "DEDUP_PREFIX",
    "DEDUP_SLOT_PREFIX",
    "DELAYED_PREFIX",
    "DOCUMENT_PREFIX",
    "DONE_PREFIX",
    "EXPIRED_PREFIX",
    "EXPONENT_SHIFT",
    "FAILED_PREFIX",
    "FORMAT_KEY",
    "IDENTITY_KEY",
    "LANES",
    "LANE_SPAN",
    "LINK_PREFIX",
    "NUMBER_MASK",
    "OPEN_PREFIX",
    "PARTITION_DEDUP_PREFIX",
    "PAYLOAD_PREFIX",
    "PIECES_KEY",
    "QUEUE_NUMBER_KEY",
    "REMOVAL_PREFIX",
    "SEQ_BLOCK_KEY",
    "SETTLE_PREFIX",
    "SPEC_PREFIX",
    "TENANT_PREFIX",
    "TOPIC_PREFIX",
    "WRITER_KEY",
    "LogKeys",
    "QueueKeys",
    "batch_key",
    "bucket_of",
    "check_claim_id",
    "claim_id_of",
    "claim_ranges",
    "dedup_key",
    "dedup_slot_key",
    "document_key",
    "documents_prefix",
    "is_added_once",
    "is_batch_key",
    "is_settle_key",
    "link_key",
    "listing_prefix",
    "message_id_of",
    "open_key",
    "partition_dedup_key",
    "payload_key",
    "publish_claim_id",
    "replaced_key",
    "replacement_key",
    "segment_meta_key",
    "segment_range",
    "settle_key",
    "tenant_key",
    "tenant_of_listing",
    "topic_key",
]

_U64 = struct.Struct(">Q")
_U32 = struct.Struct(">I")
_U16 = struct.Struct(">H")

EXPONENT_SHIFT: Final = 60
NUMBER_MASK: Final = (1 << EXPONENT_SHIFT) - 1
LANES: Final = MAX_PRIORITY + 1
#: A multiple of every bucket capacity; ten lanes of it stay below 2^60.
LANE_SPAN: Final = 10**17
_CAPACITIES: Final = (1, 10, 100, 1_000, 10_000)

PAYLOAD_PREFIX: Final = b"\x01\x01"
ACTIVE_PREFIX: Final = b"\x01\x02"
DONE_PREFIX: Final = b"\x01\x03"
FAILED_PREFIX: Final = b"\x01\x04"
_ATTEMPTS = b"\x01\x05"
SPEC_PREFIX: Final = b"\x01\x06"
_OURS = b"\x01\x07"

FORMAT_KEY: Final = _OURS + b"\x00"
_STATE = _OURS + b"\x01"
_LEASES = _OURS + b"\x02"
DELAYED_PREFIX: Final = _OURS + b"\x03"
_PLACE = _OURS + b"\x04"
_EXPIRY = _OURS + b"\x05"
_TRAIL = _OURS + b"\x06"
_RESULT = _OURS + b"\x07"
EXPIRED_PREFIX: Final = _OURS + b"\x08"
_RETENTION = _OURS + b"\x09"
_PARTITION = _OURS + b"\x0a"
_SEQUENCE = _OURS + b"\x0b"
_CONSUMER = _OURS + b"\x0c"
_REPLAYED = _OURS + b"\x0d"
TOPIC_PREFIX: Final = _OURS + b"\x0e"
TENANT_PREFIX: Final = _OURS + b"\x0f"
DEDUP_PREFIX: Final = _OURS + b"\x10"
DEDUP_SLOT_PREFIX: Final = _OURS + b"\x11"
OPEN_PREFIX: Final = _OURS + b"\x12"
_REPLACED = _OURS + b"\x13"
QUEUE_NUMBER_KEY: Final = _OURS + b"\x14"
_REPLACEMENT = _OURS + b"\x15"
DOCUMENT_PREFIX: Final = _OURS + b"\x16"
BATCH_PREFIX: Final = _OURS + b"\x17"
IDENTITY_KEY: Final = _OURS + b"\x18"
SETTLE_PREFIX: Final = _OURS + b"\x1a"
PARTITION_DEDUP_PREFIX: Final = _OURS + b"\x1b"
_POSITION = _OURS + b"\x1c"
LINK_PREFIX: Final = _OURS + b"\x19"
PIECES_KEY: Final = _OURS + b"\x1f"
WRITER_KEY: Final = _OURS + b"\x20"
COPY_KEY: Final = _OURS + b"\x21"
REMOVAL_PREFIX: Final = _OURS + b"\x22"

_LOG = b"\x03\x01"
_SYSTEM_SEGMENT = _U32.pack(0)
SEQ_BLOCK_KEY: Final = _LOG + _SYSTEM_SEGMENT + b"\x20"
_SEGMENT_META = _LOG + _SYSTEM_SEGMENT + b"\x30"

#: One Penstock per store; the RFC lets several share a store, distinguished by this name.
INSTANCE: Final = "penstock"


def claim_id_of(exponent: int, priority: int, message_id: int) -> int:
    """The claim id of a message in a queue with that bucket exponent."""
    return exponent << EXPONENT_SHIFT | (MAX_PRIORITY - priority) * LANE_SPAN + message_id


def message_id_of(claim_id: int) -> int:
    """The message id inside a claim id."""
    return (claim_id & NUMBER_MASK) % LANE_SPAN


def publish_claim_id(claim_id: int, message_id: int) -> int:
    """The claim id at the message's publish position, for one of any position."""
    return claim_id - message_id_of(claim_id) + message_id


def claim_ranges(low: int, high: int, exponents: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The claim ids of messages low to high - 1: one (start, end) range per lane and exponent."""
    for exponent in exponents:
        for lane in range(LANES):
            base = exponent << EXPONENT_SHIFT | lane * LANE_SPAN
            yield base + low, base + high


def check_claim_id(claim_id: int, message_id: int) -> None:
    """Check that a claim id ends in its message id; detects a flipped bit in either (X1)."""
    if (claim_id & NUMBER_MASK) % LANE_SPAN != message_id:
        raise StoreCorrupt(f"A record of message {message_id} has the claim id of another.")


def bucket_of(claim_id: int) -> int:
    """The bucket id that a claim id falls into."""
    number = claim_id & NUMBER_MASK
    return claim_id - number % _CAPACITIES[claim_id >> EXPONENT_SHIFT]


def payload_key(offset: int) -> bytes:
    """The payload of the log entry at ``offset``."""
    return PAYLOAD_PREFIX + _U64.pack(offset)


def is_added_once(key: bytes) -> bool:
    """Whether the record is a payload or belongs to a segment of the log.

    One commit adds such a record, under an offset of its own, and no later commit changes it.
    """
    return key.startswith(PAYLOAD_PREFIX) or (
        key.startswith(_LOG) and not key.startswith(_LOG + _SYSTEM_SEGMENT)
    )


def replaced_key(message_id: int) -> bytes:
    """The offset of the newest entry of a replaced message."""
    return _REPLACED + _U64.pack(message_id)


def replacement_key(offset: int) -> bytes:
    """The message that the entry at ``offset`` replaces."""
    return _REPLACEMENT + _U64.pack(offset)


def topic_key(tenant: str, topic: str) -> bytes:
    """A topic's policy."""
    return TOPIC_PREFIX + terminated(tenant.encode()) + topic.encode()


def tenant_key(tenant: str) -> bytes:
    """The end of a tenant's log, and how far it is archived."""
    return TENANT_PREFIX + tenant.encode()


@lru_cache(maxsize=1024)
def _scope(tenant: str, name: str) -> bytes:
    return terminated(f"{tenant}/{name}".encode())


def dedup_key(tenant: str, topic: str, idempotency_id: str) -> bytes:
    """The first message with an idempotency id."""
    return DEDUP_PREFIX + _scope(tenant, topic) + idempotency_id.encode()


def partition_dedup_key(tenant: str, topic: str, hashed_id: str) -> bytes:
    """The first message with an idempotency id in its partition."""
    return PARTITION_DEDUP_PREFIX + _scope(tenant, topic) + hashed_id.encode()


def batch_key(tenant: str, topic: str, batch_id: str) -> bytes:
    """The reply to the batch with a batch id."""
    return BATCH_PREFIX + _scope(tenant, topic) + batch_id.encode()


def settle_key(tenant: str, queue: str, settle_id: str) -> bytes:
    """The reply to a settle with publish, for a repeated call."""
    return SETTLE_PREFIX + _scope(tenant, queue) + settle_id.encode()


def is_settle_key(key: bytes) -> bool:
    """Whether the key belongs to a settle with publish."""
    return key.startswith(SETTLE_PREFIX)


def is_batch_key(key: bytes) -> bool:
    """Whether the key belongs to a batch id."""
    return key.startswith(BATCH_PREFIX)


def dedup_slot_key(slot: int, offset: int) -> bytes:
    """Idempotency ids whose window ends in that minute."""
    return DEDUP_SLOT_PREFIX + _U64.pack(slot) + _U64.pack(offset)


def open_key(tenant: str, topic: str, key: str) -> bytes:
    """The unclaimed message that a key refers to."""
    return OPEN_PREFIX + terminated(f"{tenant}/{topic}".encode()) + key.encode()


def document_key(kind: str, name: str) -> bytes:
    """A document."""
    return documents_prefix(kind) + name.encode()


def documents_prefix(kind: str) -> bytes:
    """The prefix of all documents of one kind."""
    return DOCUMENT_PREFIX + terminated(kind.encode())


def link_key(slot: int) -> bytes:
    """A link of the chain of commits, by its slot in the ring."""
    return LINK_PREFIX + _U16.pack(slot)


def segment_meta_key(segment: int) -> bytes:
    """The start of a segment."""
    return _SEGMENT_META + _U32.pack(segment)


_METADATA_LOG = f"opendata-queue/{INSTANCE}/messages/metadata/".encode()


def listing_prefix(segment: int) -> bytes:
    """The prefix of the listing entries of a segment."""
    return _LOG + _U32.pack(segment) + b"\x40"


def tenant_of_listing(key: bytes, prefix_bytes: int) -> str:
    """The tenant of a listing entry, whose prefix is ``prefix_bytes`` long."""
    return key[prefix_bytes + len(_METADATA_LOG) :].decode()


class LogKeys:
    """The keys of one tenant's metadata log."""

    __slots__ = ("_terminated", "_user_key")

    def __init__(self, tenant: str) -> None:
        self._user_key = _METADATA_LOG + tenant.encode()
        self._terminated = b"\x10" + terminated(self._user_key)

    def entry(self, segment: int, relative: int) -> bytes:
        """The log entry whose first offset is ``relative`` above the segment's start."""
        return self.prefix(segment) + pack_var_u64(relative)

    def prefix(self, segment: int) -> bytes:
        """The prefix of every entry of this tenant in the segment."""
        return _LOG + _U32.pack(segment) + self._terminated

    def listing(self, segment: int) -> bytes:
        """The listing entry, which records that this tenant has entries in the segment."""
        return listing_prefix(segment) + self._user_key


def segment_range(segment: int) -> tuple[bytes, bytes]:
    """Every key of one user segment."""
    prefix = _LOG + _U32.pack(segment)
    return prefix, prefix_end(prefix)


class QueueKeys:
    """The keys of one queue. A dead-letter queue shares attempts and trails with its parent."""

    __slots__ = (
        "_name",
        "active",
        "attempts",
        "consumer",
        "delayed",
        "done",
        "expired",
        "expiry",
        "failed",
        "leases",
        "partition",
        "place",
        "position",
        "replayed",
        "result",
        "retention",
        "sequence",
        "spec",
        "state",
        "trail",
    )

    def __init__(self, tenant: str, queue: str, number: int | None = None) -> None:
        """The keys use the name alone, or the name and the queue's number."""
        home = queue.removesuffix(DLQ_SUFFIX)
        suffix = "" if number is None else f"/{number}"
        name = terminated(f"{tenant}/{queue}{suffix}".encode())
        home_name = terminated(f"{tenant}/{home}{suffix}".encode())
        self._name = name
        self.spec = SPEC_PREFIX + f"{tenant}/{queue}".encode()
        self.active = ACTIVE_PREFIX + name
        self.done = DONE_PREFIX + name
        self.failed = FAILED_PREFIX + home_name
        self.attempts = _ATTEMPTS + home_name
        self.state = _STATE + name
        self.leases = _LEASES + name
        self.delayed = DELAYED_PREFIX + name
        self.place = _PLACE + name
        self.expiry = _EXPIRY + name
        self.trail = _TRAIL + home_name
        self.result = _RESULT + name
        self.expired = EXPIRED_PREFIX + name
        self.retention = _RETENTION + name
        self.partition = _PARTITION + name
        self.sequence = _SEQUENCE + name
        self.consumer = _CONSUMER + name
        self.replayed = _REPLAYED + name
        self.position = _POSITION + name

    def ranges(self) -> list[tuple[bytes, bytes]]:
        """The ranges of all keys of the queue except its spec, for deletion."""
        prefixes = (
            *(kind + self._name for kind in (ACTIVE_PREFIX, DONE_PREFIX, FAILED_PREFIX, _ATTEMPTS)),
            *(_OURS + bytes((kind,)) + self._name for kind in range(_STATE[2], _REPLAYED[2] + 1)),
            self.position,
        )
        return [(prefix, prefix_end(prefix)) for prefix in prefixes]

    def delayed_at(self, due_at: int, claim_id: int) -> bytes:
        return self.delayed + _U64.pack(due_at) + _U64.pack(claim_id)

    def expires_at(self, at: int, claim_id: int) -> bytes:
        return self.expiry + _U64.pack(at) + _U64.pack(claim_id)

    def slot(self, kind: int, slot: int, bucket_id: int) -> bytes:
        return self.retention + bytes((kind,)) + _U64.pack(slot) + _U64.pack(bucket_id)

    def partition_sequence(self, partition: str) -> bytes:
        return self.sequence + terminated(partition.encode())

    def replay_mark(self, message_id: int, replay_id: str) -> bytes:
        return self.replayed + _U64.pack(message_id) + replay_id.encode()
