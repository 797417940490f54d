"""Every bound of the product as a named number, with its reason.

Limits that an operator may change are fields of :class:`Limits`; the others are constants
because a format or a law depends on them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from msgspec import Struct

from penstock.errors import BadInput, BadName

__all__ = [
    "CONSUMER_LEASE_MS",
    "DEFAULT_PRIORITY",
    "DLQ_SUFFIX",
    "MAX_ASSIGN",
    "MAX_ATTEMPTS",
    "MAX_BATCH",
    "MAX_BATCH_MS",
    "MAX_BUCKET_EXPONENT",
    "MAX_CLAIM",
    "MAX_CLAIM_BYTES",
    "MAX_CLAIM_QUEUES",
    "MAX_CLAIM_SCAN",
    "MAX_COPIED_BYTES",
    "MAX_COPIES",
    "MAX_ERROR_BYTES",
    "MAX_EVENT_ERROR_CHARS",
    "MAX_FILTER_BYTES",
    "MAX_FILTER_ITEMS",
    "MAX_FILTER_NODES",
    "MAX_FILTER_PATTERNS",
    "MAX_HEADERS",
    "MAX_HEADERS_BYTES",
    "MAX_HEADER_NAME_BYTES",
    "MAX_HISTORY_EVENTS",
    "MAX_KEY_BYTES",
    "MAX_LEASE_MS",
    "MAX_NACK_DELAY_MS",
    "MAX_NAME",
    "MAX_OFFSET",
    "MAX_PAGE",
    "MAX_PAYLOAD_BYTES",
    "MAX_PRIORITY",
    "MAX_PUBLISH_DELIVERIES",
    "MAX_QUEUES",
    "MAX_SETTLE_COPIED_BYTES",
    "MAX_TIME_MS",
    "MAX_WAIT_MS",
    "MIN_LEASE_MS",
    "Limits",
    "check_limits",
    "check_name",
    "check_queue_name",
    "check_whole",
    "cut_error",
    "is_dead_letter",
    "shown",
]

MAX_PRIORITY: Final = 9
DEFAULT_PRIORITY: Final = 4

#: One log entry holds a publish call, and array lengths in records have 16 bits.
MAX_BATCH: Final = 10_000
#: How long a batch id may be remembered: as long as the longest dedup window of a topic.
MAX_BATCH_MS: Final = 30 * 24 * 3600 * 1000
#: A claim is answered from memory in one go; a larger one would only add latency.
MAX_CLAIM: Final = 1_000
#: Payloads that one claim reads, unless one alone is larger: some milliseconds. A claim that has
#: more before it hands out fewer deliveries than it was asked for.
MAX_CLAIM_BYTES: Final = 4 * 1024 * 1024
#: Dead-letter copies and events in one commit, and the payloads and headers of the copies. A verb
#: that ends more deliveries continues in another commit. A single copy may be larger.
MAX_COPIES: Final = 500
MAX_COPIED_BYTES: Final = 4 * 1024 * 1024
#: Copies of a settle that publishes, which is one commit: more than one claim usually hands out.
MAX_SETTLE_COPIED_BYTES: Final = 16 * 1024 * 1024
#: A waiting claim has a waiter in the line of each of its queues, and polls them all.
MAX_CLAIM_QUEUES: Final = 100
#: Waiting deliveries that a claim with a selector looks at: some milliseconds.
MAX_CLAIM_SCAN: Final = 1_000
#: An assignment is one commit, and other calls wait while it is made.
MAX_ASSIGN: Final = 100_000
#: A page of results; a reader continues with the cursor.
MAX_PAGE: Final = 1_000

MAX_HEADERS: Final = 64
MAX_HEADERS_BYTES: Final = 16 * 1024
MAX_HEADER_NAME_BYTES: Final = 255
#: A payload is read and written in one piece; larger ones belong in an object store.
MAX_PAYLOAD_BYTES: Final = 1024**3
#: partition_key, key, idempotency id and content_type, which are parts of keys of the store.
MAX_KEY_BYTES: Final = 512
#: An error is stored with every failed delivery; a longer text is truncated, not refused.
MAX_ERROR_BYTES: Final = 8 * 1024
#: The part of each event's error that a history keeps.
MAX_EVENT_ERROR_CHARS: Final = 1024
#: A history keeps the newest events after the publish, so that a delivery that is nacked for
#: weeks stays small.
MAX_HISTORY_EVENTS: Final = 100

#: Every queue of a tenant is in memory, with its compiled filter: about 20 KB each.
MAX_QUEUES: Final = 1_000_000
#: The largest batch, in as many queues as there may be.
MAX_PUBLISH_DELIVERIES: Final = MAX_BATCH * MAX_QUEUES
#: The largest filter parses, compiles and enters the index in under 20 ms (decision 0061).
MAX_FILTER_BYTES: Final = 32 * 1024
#: Names, literals, operators and functions, without the items of IN lists.
MAX_FILTER_NODES: Final = 500
#: Items of all IN lists of a filter. A list is a set when it is evaluated, so its length costs
#: only parsing.
MAX_FILTER_ITEMS: Final = 2_000
#: Characters of all LIKE and word patterns of a filter: 4,000 take 5 ms for a header of 16 KiB.
MAX_FILTER_PATTERNS: Final = 4_096

#: attempts is stored in 16 bits.
MAX_ATTEMPTS: Final = 65_535
#: A bucket's array length has 16 bits, so 10^4 is the largest power of ten that fits.
MAX_BUCKET_EXPONENT: Final = 4

MIN_LEASE_MS: Final = 100
#: Twelve hours, as in SQS: a longer lease would hide a dead worker for a day.
MAX_LEASE_MS: Final = 12 * 3600 * 1000
#: The default retention of failed deliveries: a longer wait is a schedule, not a retry.
MAX_NACK_DELAY_MS: Final = 14 * 24 * 3600 * 1000
#: Proxies close a silent connection after a minute; a wait ends well before.
MAX_WAIT_MS: Final = 30_000
#: Offsets and message ids; ten lanes of them have to fit the 60 bits of a claim number.
MAX_OFFSET: Final = 10**17 - 1
#: How long a consumer of an ordered queue keeps its partitions without a heartbeat. It sends
#: one every third of that, so it survives two lost heartbeats in a row.
CONSUMER_LEASE_MS: Final = 30_000
#: Times are stored as signed 64-bit milliseconds; this is the year 9999.
MAX_TIME_MS: Final = 253_402_300_799_999

DLQ_SUFFIX: Final = ".dlq"
MAX_NAME: Final = 128
_MAX_SHOWN: Final = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@lru_cache(maxsize=4096)
def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


#: The largest low-water mark of a disk.
MAX_FREE_DISK_BYTES: Final = 1 << 40


class Limits(Struct, frozen=True, kw_only=True):
    """The bounds that an operator may change."""

    payload_bytes: int = 1024 * 1024
    log_retention_ms: int = 24 * 3600 * 1000
    queues: int = 10_000
    """Per tenant, created by a call or by a publish. Dead-letter queues are not counted."""
    unindexed_filters: int = 1_000
    """Queues of one tenant whose filter is evaluated for every message: about 0.3 µs each."""
    publish_deliveries: int = 100_000
    """That the messages of one publish become, in all queues together: it is one commit, and other
    calls wait while it is made. A single message is never refused."""
    free_disk_bytes: int = 256 * 1024 * 1024
    """Free space below which an embedded store refuses publishes; 0 for no limit."""


#: The highest value of every field of Limits.
_HIGHEST: Final = {
    "payload_bytes": MAX_PAYLOAD_BYTES,
    "log_retention_ms": MAX_TIME_MS,
    "queues": MAX_QUEUES,
    "unindexed_filters": MAX_QUEUES,
    "publish_deliveries": MAX_PUBLISH_DELIVERIES,
    "free_disk_bytes": MAX_FREE_DISK_BYTES,
}


def shown(value: object) -> str:
    """A value for an error message: truncated, even if it is too large for ``repr``."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of too many digits"
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def check_whole(field: str, value: object, least: int, most: int) -> None:
    """Refuse a value that is not a whole number from ``least`` to ``most``."""
    if type(value) is not int or not least <= value <= most:
        raise BadInput(
            f"{field} is {shown(value)}; it must be a whole number from {least} to {most}.",
            field=field,
            limit=most,
        )


def cut_error(error: str) -> str:
    """An error as every engine stores it: bounded, and valid UTF-8."""
    raw = error.encode(errors="replace")
    if len(raw) <= MAX_ERROR_BYTES:
        return raw.decode()
    return raw[: MAX_ERROR_BYTES - 3].decode(errors="ignore") + "…"


def check_limits(limits: Limits) -> Limits:
    """Return ``limits`` if all of them are valid."""
    if not isinstance(limits, Limits):
        raise BadInput("limits must be a Limits.", field="limits")
    for field, most in _HIGHEST.items():
        check_whole(field, getattr(limits, field), 0, most)
    return limits


def is_dead_letter(queue: str) -> bool:
    """Whether ``queue`` names the dead-letter queue of another one."""
    return queue.endswith(DLQ_SUFFIX)


def check_name(name: object, field: str) -> str:
    """Return ``name`` if it may be given to a tenant, topic, queue or consumer."""
    if not isinstance(name, str) or len(name) > MAX_NAME or not _is_name(name):
        raise BadName(f"{field} {shown(name)} is not a valid name.", field=field, limit=128)
    if name.endswith(DLQ_SUFFIX):
        raise BadName(f"{field} {name!r} ends in the reserved suffix .dlq.", field=field)
    return name


def check_queue_name(name: object, field: str = "queue") -> str:
    """Return ``name`` if it can name an existing queue: ``Q.dlq`` names Q's dead letters."""
    if isinstance(name, str) and name.endswith(DLQ_SUFFIX):
        check_name(name[: -len(DLQ_SUFFIX)], field)
        return name
    return check_name(name, field)
