"""The records of the RFC: arrays of deliveries, attempts, and the queue specification.

Byte-exact as in docs/formats.md; tests/unit/storage/keyvalue has the golden vectors.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

from penstock.errors import StoreCorrupt
from penstock.model.delivery import Attempt
from penstock.model.message import Message
from penstock.model.queue import Backoff, Ordering, QueuePolicy, RetryPosition
from penstock.model.queue_events import MessageEvent
from penstock.storage.keyvalue.encoding import Reader, pack_utf8, pack_var_bytes

__all__ = [
    "AVAILABLE",
    "IN_FLIGHT",
    "KEYED_BY_NUMBER",
    "SETTLED",
    "Logged",
    "append_attempt",
    "array",
    "decode_attempts",
    "decode_spec",
    "encode_spec",
    "first_attempt",
    "log_value",
    "read_available",
    "read_available_encoded",
    "read_in_flight",
    "read_log_value",
    "read_settled",
]

# The fixed-size fields of array elements; the metadata follows each.
#: messageID, claimID, attempts, metadata length
AVAILABLE = struct.Struct("<QQHI")
#: messageID, claimID, claimed_at, lease_deadline, attempts, metadata length
IN_FLIGHT = struct.Struct("<QQqqHI")
#: messageID, claimID, at, attempts, metadata length (done, failed, and Penstock's expired)
SETTLED = struct.Struct("<QQqHI")
#: messageID, metadata length
_LOGGED = struct.Struct("<QI")

#: A message with its metadata bytes, as stored in the log.
Logged: TypeAlias = tuple[Message, bytes]

_COUNT = struct.Struct("<H")
_AT = struct.Struct("<q")
_I64 = struct.Struct("<q")
_FILTER_VERSION = b"\x01"


def array(parts: list[bytes], *more: list[bytes]) -> bytes:
    """Array<T>: the count and the encoded elements; with ``more``, several arrays.

    Joined once: copying the megabytes of a bucket with many headers again takes milliseconds.
    """
    pieces = [_COUNT.pack(len(parts)), *parts]
    for others in more:
        pieces.append(_COUNT.pack(len(others)))
        pieces += others
    return b"".join(pieces)


def read_available(
    value: bytes, position: int = 0
) -> tuple[list[tuple[int, int, int, bytes]], int]:
    """(message id, claim id, attempts, metadata) of each, and the position after the array."""
    return _read(AVAILABLE, value, position)  # type: ignore[return-value]


def read_available_encoded(value: bytes) -> Iterator[tuple[int, int, int, bytes, bytes]]:
    """As ``read_available`` from the beginning, with the encoded element of each."""
    head, size, end = AVAILABLE.size, len(value), _COUNT.size
    try:
        (count,) = _COUNT.unpack_from(value)
        for _ in range(count):
            begin = end
            message_id, claim_id, attempts, length = AVAILABLE.unpack_from(value, begin)
            end = begin + head + length
            yield message_id, claim_id, attempts, value[begin + head : end], value[begin:end]
    except struct.error as error:
        raise StoreCorrupt("A bucket record is truncated.") from error
    if end > size:
        raise StoreCorrupt("A bucket record is truncated.")


def read_in_flight(
    value: bytes, position: int
) -> tuple[list[tuple[int, int, int, int, int, bytes]], int]:
    """(message id, claim id, claimed_at, deadline, attempts, metadata) of each."""
    return _read(IN_FLIGHT, value, position)  # type: ignore[return-value]


def read_settled(value: bytes) -> list[tuple[int, int, int, int, bytes]]:
    """(message id, claim id, at, attempts, metadata) of each."""
    out, end = _read(SETTLED, value, 0)
    if end != len(value):
        raise StoreCorrupt("A settled bucket has trailing bytes.")
    return out  # type: ignore[return-value]


def read_log_value(value: bytes) -> Iterator[tuple[int, bytes]]:
    """(message id, metadata) of each message of a log entry."""
    out, end = _read(_LOGGED, value, 0)
    if end != len(value):
        raise StoreCorrupt("A log entry has trailing bytes.")
    return iter(out)  # type: ignore[arg-type]


def log_value(batch: list[Logged]) -> bytes:
    """Array<MessageMetadata> of messages with their metadata."""
    pack = _LOGGED.pack
    return array([pack(message.id, len(raw)) + raw for message, raw in batch])


def _read(head: struct.Struct, value: bytes, position: int) -> tuple[list[tuple[object, ...]], int]:
    try:
        (count,) = _COUNT.unpack_from(value, position)
        position += 2
        size = head.size
        out: list[tuple[object, ...]] = []
        for _ in range(count):
            fields = head.unpack_from(value, position)
            position += size
            end = position + fields[-1]
            out.append((*fields[:-1], value[position:end]))
            position = end
    except struct.error as error:
        raise StoreCorrupt("A bucket record is truncated.") from error
    if position > len(value):
        raise StoreCorrupt("A bucket record is truncated.")
    return out, position


# -- attempts ------------------------------------------------------------------------------


def first_attempt(claimed_at: int, consumer: bytes) -> bytes:
    """The attempts record of a first grant; ``consumer`` is already encoded as Utf8."""
    return b"\x01\x00" + _AT.pack(claimed_at) + consumer


def append_attempt(value: bytes | None, claimed_at: int, consumer: bytes) -> bytes:
    """The record with one more attempt. If the count is at its maximum, the oldest is dropped."""
    if value is None:
        return first_attempt(claimed_at, consumer)
    if len(value) < _COUNT.size:
        raise StoreCorrupt("An attempts record is truncated.")
    (count,) = _COUNT.unpack_from(value)
    body = value[2:]
    if count == 0xFFFF:
        body = body[10 + int.from_bytes(body[8:10], "little") :]
        count -= 1
    return _COUNT.pack(count + 1) + body + _AT.pack(claimed_at) + consumer


def decode_attempts(value: bytes | None) -> list[Attempt]:
    """Every recorded attempt, oldest first."""
    if value is None:
        return []
    reader = Reader(value, "attempts")
    out = [Attempt(reader.i64(), reader.utf8()) for _ in range(reader.u16())]
    reader.finish()
    return out


# -- the queue specification ---------------------------------------------------------------

#: The queue's number is a part of the keys of its records.
KEYED_BY_NUMBER: Final = "keyed_by_number"
_CHECKSUM = "checksum"
#: Fields whose values are text; all others are numbers.
_TEXTS: Final = frozenset({"dead_letter_topic", "labels"})
#: The stored name of ``lease_ms``: records that older versions wrote, and read, have it.
_LEASE_MS: Final = "visibility_timeout_ms"
_EVENT_BITS: Final[tuple[tuple[int, MessageEvent], ...]] = (
    (1, "done"),
    (2, "failed"),
    (4, "expired"),
)
_NUMBERS = (
    "min_lease_ms",
    "max_lease_ms",
    "failed_retention_s",
    "partition_concurrency",
    "paused",
    "max_depth",
    "message_ttl_ms",
    "throughput_limit",
)


def encode_spec(policy: QueuePolicy, facts: dict[str, int]) -> bytes:
    """The specification. ``facts`` are numbers outside the policy (version, created_at …)."""
    fields: dict[str, int | str] = dict(facts)
    for name in _NUMBERS:
        value = getattr(policy, name)
        if value is not None:
            fields[name] = int(value)
    fields[_LEASE_MS] = policy.lease_ms
    fields["backoff_base_ms"] = policy.backoff.base_ms
    fields["backoff_max_ms"] = policy.backoff.max_ms
    fields["ordered"] = int(policy.ordering is Ordering.PARTITION)
    if not policy.dead_letters:
        fields["dead_letters"] = 0
    if policy.retry_position is RetryPosition.BACK:
        fields["retry_position"] = 1
    if policy.partition_batch > 1:
        fields["partition_batch"] = policy.partition_batch
    if policy.dead_letter_topic is not None:
        fields["dead_letter_topic"] = policy.dead_letter_topic
    if policy.dead_letter_expired:
        fields["dead_letter_expired"] = 1
    if policy.events:
        fields["events"] = sum(bit for bit, event in _EVENT_BITS if event in policy.events)
    if policy.labels:
        fields["labels"] = msgspec.json.encode(policy.labels, order="sorted").decode()
    head = b"".join(
        (
            pack_var_bytes(_FILTER_VERSION + policy.filter.encode()),
            struct.pack("<HIB", policy.max_attempts, policy.done_retention_s, policy.bucket_size),
            pack_utf8(policy.description),
        )
    )
    fields[_CHECKSUM] = _spec_checksum(head, fields)
    return head + array(
        [pack_utf8(name) + pack_var_bytes(_packed(fields[name])) for name in sorted(fields)]
    )


def _packed(value: int | str) -> bytes:
    return value.encode() if isinstance(value, str) else _I64.pack(value)


def _spec_checksum(head: bytes, fields: Mapping[str, int | str]) -> int:
    """CRC-32 over the RFC's part and every later field: the format has no field for a seal."""
    text = ",".join(f"{name}={fields[name]}" for name in sorted(fields) if name != _CHECKSUM)
    return zlib.crc32(text.encode(), zlib.crc32(head))


def decode_spec(value: bytes) -> tuple[QueuePolicy, dict[str, int]]:
    """The policy, and the numbers that are not part of it."""
    reader = Reader(value, "queue specification")
    filter_bytes = reader.var_bytes()
    if filter_bytes[:1] != _FILTER_VERSION:
        raise StoreCorrupt("A queue specification has a filter of an unknown version.")
    max_attempts, done_retention_s, bucket_size = reader.u16(), reader.u32(), reader.u8()
    description = reader.utf8()
    head = value[: reader.position]
    fields: dict[str, int] = {}
    texts: dict[str, str] = {}
    if not reader.exhausted:
        for _ in range(reader.u16()):
            name, raw = reader.utf8(), reader.var_bytes()
            if name in _TEXTS:
                texts[name] = raw.decode(errors="replace")
            else:
                fields[name] = Reader(raw, "queue specification").i64()
        reader.finish()
    if fields.pop(_CHECKSUM, None) != _spec_checksum(head, {**fields, **texts}):
        raise StoreCorrupt("The checksum of a queue specification is wrong.")
    defaults = QueuePolicy()
    policy = QueuePolicy(
        filter=filter_bytes[1:].decode(),
        max_attempts=max_attempts,
        done_retention_s=done_retention_s,
        bucket_size=bucket_size,
        description=description,
        lease_ms=fields.pop(_LEASE_MS, defaults.lease_ms),
        min_lease_ms=fields.pop("min_lease_ms", defaults.min_lease_ms),
        max_lease_ms=fields.pop("max_lease_ms", defaults.max_lease_ms),
        failed_retention_s=fields.pop("failed_retention_s", defaults.failed_retention_s),
        partition_concurrency=fields.pop("partition_concurrency", 1),
        partition_batch=fields.pop("partition_batch", 1),
        retry_position=(
            RetryPosition.BACK if fields.pop("retry_position", 0) else RetryPosition.KEEP
        ),
        dead_letters=bool(fields.pop("dead_letters", 1)),
        dead_letter_topic=texts.get("dead_letter_topic"),
        dead_letter_expired=bool(fields.pop("dead_letter_expired", 0)),
        events=_events(fields.pop("events", 0)),
        paused=bool(fields.pop("paused", 0)),
        max_depth=fields.pop("max_depth", None),
        message_ttl_ms=fields.pop("message_ttl_ms", None),
        throughput_limit=fields.pop("throughput_limit", None),
        backoff=Backoff(
            fields.pop("backoff_base_ms", defaults.backoff.base_ms),
            fields.pop("backoff_max_ms", defaults.backoff.max_ms),
        ),
        ordering=Ordering.PARTITION if fields.pop("ordered", 0) else Ordering.NONE,
        labels=msgspec.json.decode(texts.get("labels", "{}"), type=dict[str, str]),
    )
    return policy, fields


def _events(bits: int) -> tuple[MessageEvent, ...]:
    return tuple(event for bit, event in _EVENT_BITS if bits & bit)
