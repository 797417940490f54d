"""Policies: how a queue delivers, and what a topic demands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from msgspec import Struct, ValidationError, convert, to_builtins
from msgspec.structs import replace

from penstock.errors import BadPolicy, QueueChanged, QueueExists, UnknownQueue
from penstock.model.duration import Duration, convert_durations, to_ms, to_seconds
from penstock.model.limits import (
    MAX_ATTEMPTS,
    MAX_BUCKET_EXPONENT,
    MAX_LEASE_MS,
    MIN_LEASE_MS,
    check_name,
    shown,
)
from penstock.model.message import Offset
from penstock.model.queue_events import MessageEvent, check_unreserved

__all__ = [
    "Backoff",
    "DedupScope",
    "IfExists",
    "Ordering",
    "QueueInfo",
    "QueuePolicy",
    "RetryPosition",
    "Routing",
    "Start",
    "TopicPolicy",
    "auto_created_policy",
    "changed_defaults",
    "changed_policy",
    "check_events",
    "check_labels",
    "check_queue_policy",
    "check_topic_policy",
    "check_unchanged",
    "keeps_existing",
    "plain_fields",
]

_DAY_S: Final = 24 * 3600
_U32_MAX: Final = 2**32 - 1
MAX_DESCRIPTION_BYTES: Final = 4096
#: Ten years: a longer ttl is a mistake in the unit.
MAX_TTL_MS: Final = 3650 * _DAY_S * 1000
#: Compiling a schema blocks other calls; hand-written ones are a tenth of this.
MAX_SCHEMA_BYTES: Final = 64 * 1024
MAX_PARTITION_CONCURRENCY: Final = 1000
MAX_PARTITION_BATCH: Final = 1000
#: Every queue of a tenant is in memory, with its labels.
MAX_LABELS: Final = 16
MAX_LABEL_BYTES: Final = 256
_MAX_LABEL_NAME: Final = 64
_EVENTS: Final[tuple[MessageEvent, ...]] = get_args(MessageEvent)
_LABEL_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._/-]{{0,{_MAX_LABEL_NAME - 1}}}")


class Ordering(StrEnum):
    """How a queue orders its deliveries."""

    NONE = "none"
    """Priority descending, then publish order; a stuck delivery does not block others."""
    PARTITION = "partition"
    """Publish order within a partition key; consumers lease partitions."""


class RetryPosition(StrEnum):
    """Where a delivery waits after its claim ended by nack, release or lapse."""

    KEEP = "keep"
    """At its position in publish order."""
    BACK = "back"
    """Behind the deliveries of its priority that wait at that moment."""


class Backoff(Struct, frozen=True):
    """Exponential backoff with full jitter: a random time below ``ceiling_ms``."""

    base_ms: int = 1_000
    max_ms: int = 300_000

    if TYPE_CHECKING:

        def __init__(self, base_ms: Duration = ..., max_ms: Duration = ...) -> None: ...

    def __post_init__(self) -> None:
        convert_durations(self, "base_ms", "max_ms")

    def ceiling_ms(self, attempts: int) -> int:
        """The longest wait after that many attempts (1 is the first)."""
        doublings = min(max(attempts - 1, 0), 32)
        return min(self.base_ms << doublings, self.max_ms)


class QueuePolicy(Struct, frozen=True, kw_only=True):
    """Which messages a queue holds and how it delivers them."""

    filter: str = "TRUE"
    max_attempts: int = 5
    lease_ms: int = 30_000
    """The default lease of a claim."""
    min_lease_ms: int = MIN_LEASE_MS
    max_lease_ms: int = MAX_LEASE_MS
    """A claim's lease is clamped to these two, and the sum of its extensions to the second."""
    backoff: Backoff = Backoff()
    done_retention_s: int = 3600
    """Seconds that done and expired deliveries are kept; 0 keeps them forever."""
    failed_retention_s: int = 14 * _DAY_S
    """Seconds that failed deliveries are kept; 0 keeps them forever."""
    max_depth: int | None = None
    """The sum of delayed, available and in-flight deliveries; None is unbounded."""
    message_ttl_ms: int | None = None
    """How long a delivery may wait in this queue before it expires; None is unlimited."""
    throughput_limit: int | None = None
    """Deliveries per second that claims may hand out; None is unbounded."""
    ordering: Ordering = Ordering.NONE
    partition_concurrency: int = 1
    partition_batch: int = 1
    """Consecutive deliveries of a partition that one claim may take, in strict order."""
    retry_position: RetryPosition = RetryPosition.KEEP
    """Where a delivery waits that is pending again; unordered queues only."""
    bucket_size: int = 2
    """Exponent: a bucket of the key-value engines holds 10^bucket_size deliveries."""
    dead_letters: bool = True
    """Whether failed deliveries are kept, as dead letters; otherwise they are removed."""
    dead_letter_topic: str | None = None
    """The topic to which a copy of every failed delivery's message is appended; None is none."""
    dead_letter_expired: bool = False
    """Whether expired deliveries are copied to the dead-letter topic too."""
    paused: bool = False
    description: str = ""
    labels: dict[str, str] = {}
    """For the operator: listings of queues can be filtered by them."""
    events: tuple[MessageEvent, ...] = ()
    """The ends of deliveries that the queue reports to the topic ``penstock.events``."""


_FIELDS: Final = frozenset(QueuePolicy.__struct_fields__)
#: The name of lease_ms in earlier versions, still accepted.
_OLD_LEASE_MS: Final = "visibility_timeout_ms"


class IfExists(StrEnum):
    """What a call that creates a queue does if there is one of that name."""

    REPLACE = "replace"
    """Replace its policy."""
    KEEP = "keep"
    """Leave it alone."""
    REFUSE = "refuse"
    """Raise ``QueueExists``, unless it has exactly the wanted policy."""


class Start(Struct, frozen=True):
    """Where in the log a new queue starts.

    ``latest`` takes messages published from now on. ``earliest``, an ``offset`` and a
    ``time`` (epoch milliseconds) also take older ones: the router catches the queue up.
    """

    at: str = "latest"
    value: int = 0

    LATEST = "latest"
    EARLIEST = "earliest"
    OFFSET = "offset"
    TIME = "time"
    KINDS = (LATEST, EARLIEST, OFFSET, TIME)


#: What catches up queues that are far behind: the broker's own keeper, or a Spark job.
Routing: TypeAlias = Literal["broker", "pipeline"]


class QueueInfo(Struct, frozen=True, kw_only=True):
    """A queue's policy, the version of its filter and how far it is routed."""

    tenant: str
    name: str
    policy: QueuePolicy
    filter_version: int
    """Incremented with every change of the filter (R1)."""
    created_at: int
    cursor: Offset | None
    """The next offset to route, or None when the queue is caught up."""


DedupScope: TypeAlias = Literal["topic", "partition_key"]


class TopicPolicy(Struct, frozen=True, kw_only=True):
    """What a topic demands of its messages, and the queues that it creates."""

    default_ttl_ms: int | None = None
    dedup_window_ms: int = 3600 * 1000
    schema_type: str | None = None
    """``json-schema`` or ``avro``; None accepts any payload."""
    schema: str | None = None
    queue_defaults: dict[str, Any] = {}
    """Policy fields of the queue that a publish creates for the topic; every field but the filter.
    They override the server's defaults."""
    dedup_scope: DedupScope = "topic"
    """Where an idempotency id is unique: in the topic, or in each partition of it."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            default_ttl_ms: Duration | None = ...,
            dedup_window_ms: Duration = ...,
            schema_type: str | None = ...,
            schema: str | None = ...,
            queue_defaults: dict[str, Any] = ...,
            dedup_scope: DedupScope = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        convert_durations(self, "default_ttl_ms", "dedup_window_ms")


def changed_policy(policy: QueuePolicy, fields: Mapping[str, object]) -> QueuePolicy:
    """The policy with some fields changed, checked; the filter is checked elsewhere.

    The fields may be plain values: ``ordering`` as text, ``backoff`` as a mapping.
    """
    fields = plain_fields(fields)
    unknown = sorted(fields.keys() - _FIELDS)
    if unknown:
        raise BadPolicy(
            f"A queue policy has no field {unknown[0]!r}; it has {', '.join(sorted(_FIELDS))}.",
            field=unknown[0],
        )
    values = {name: getattr(policy, name) for name in _FIELDS}
    return check_queue_policy(QueuePolicy(**{**values, **fields, **_from_plain(fields)}))


def changed_defaults(policy: QueuePolicy, fields: object) -> QueuePolicy:
    """The default policy with some fields changed; fields that are None are not changed."""
    if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):
        raise BadPolicy("The defaults of queues must be policy fields.", field="queue_defaults")
    if "filter" in fields:
        raise BadPolicy("A filter has no default: every queue has its own.", field="filter")
    given = {name: value for name, value in fields.items() if value is not None}
    return changed_policy(policy, {**dict.fromkeys(fields.keys() - _FIELDS), **given})


def auto_created_policy(topic: str, demand: TopicPolicy, default: QueuePolicy) -> QueuePolicy:
    """The policy of the queue that a publish creates for a topic."""
    policy = replace(default, filter=f"topic = '{topic}'")
    return changed_defaults(policy, demand.queue_defaults) if demand.queue_defaults else policy


def plain_fields(given: Mapping[str, object]) -> dict[str, object]:
    """The fields with their present names, and durations as numbers."""
    fields = dict(given)
    if _OLD_LEASE_MS in fields:
        if "lease_ms" in fields:
            raise BadPolicy(
                f"{_OLD_LEASE_MS} is the old name of lease_ms; give one of them.", field="lease_ms"
            )
        fields["lease_ms"] = fields.pop(_OLD_LEASE_MS)
    for name, value in fields.items():
        if isinstance(value, timedelta):
            fields[name] = to_seconds(value) if name.endswith("_s") else to_ms(value)
    return fields


def _from_plain(fields: Mapping[str, object]) -> dict[str, object]:
    converted: dict[str, object] = {}
    if "ordering" in fields:
        ordering = fields["ordering"]
        if not isinstance(ordering, str) or ordering not in tuple(Ordering):
            raise BadPolicy("ordering must be 'none' or 'partition'.", field="ordering")
        converted["ordering"] = Ordering(ordering)
    if "retry_position" in fields:
        position = fields["retry_position"]
        if not isinstance(position, str) or position not in tuple(RetryPosition):
            raise BadPolicy("retry_position must be 'keep' or 'back'.", field="retry_position")
        converted["retry_position"] = RetryPosition(position)
    backoff = fields.get("backoff")
    if isinstance(backoff, Mapping):
        for field in backoff:
            if field not in Backoff.__struct_fields__:
                raise BadPolicy(
                    f"backoff has no field {shown(field)}; it has base_ms and max_ms.",
                    field="backoff",
                )
        try:
            converted["backoff"] = convert(backoff, Backoff)
        except ValidationError as error:
            raise BadPolicy(f"backoff cannot be read: {error}.", field="backoff") from error
    labels = fields.get("labels")
    if isinstance(labels, Mapping):
        converted["labels"] = dict(labels)
    events = fields.get("events")
    if isinstance(events, list):
        converted["events"] = tuple(events)
    return converted


def check_unchanged(name: str, existing: QueuePolicy | None, was: QueuePolicy) -> None:
    """Refuse to change a queue that is gone, or whose policy is no longer ``was``."""
    if existing is None:
        raise UnknownQueue(f"There is no queue {name!r}.", field="queue")
    if existing != was:
        raise QueueChanged(f"Another call has changed the policy of queue {name!r}.", field="queue")


def keeps_existing(
    name: str, existing: QueuePolicy, wanted: QueuePolicy, if_exists: IfExists
) -> bool:
    """Whether an existing queue stays as it is; ``QueueExists`` if the call is refused.

    ``paused`` and ``events`` are not compared: an operator may have paused the queue, and webhooks
    add the events that they need.
    """
    if if_exists is IfExists.REPLACE:
        return False
    wanted = replace(wanted, paused=existing.paused, events=existing.events)
    if if_exists is IfExists.REFUSE and existing != wanted:
        field = next(
            field
            for field in QueuePolicy.__struct_fields__
            if getattr(existing, field) != getattr(wanted, field)
        )
        raise QueueExists(
            f"There is a queue {name!r} with another policy: its {field} is "
            f"{shown(getattr(existing, field))}.",
            field=field,
        )
    return True


def check_queue_policy(policy: QueuePolicy) -> QueuePolicy:
    """Return ``policy`` if every field is within its bounds; the filter is checked elsewhere.

    A ``max_depth``, ``message_ttl_ms`` or ``throughput_limit`` of 0 becomes None: unlimited. An
    empty ``dead_letter_topic`` becomes None too.
    """
    if not isinstance(policy.backoff, Backoff):
        raise BadPolicy("backoff must be a Backoff.", field="backoff")
    _within("max_attempts", policy.max_attempts, 1, MAX_ATTEMPTS)
    _within("min_lease_ms", policy.min_lease_ms, 1, MAX_LEASE_MS)
    _within("max_lease_ms", policy.max_lease_ms, policy.min_lease_ms, MAX_LEASE_MS)
    _within("lease_ms", policy.lease_ms, 1, MAX_LEASE_MS)
    _within("backoff.base_ms", policy.backoff.base_ms, 0, MAX_LEASE_MS)
    _within("backoff.max_ms", policy.backoff.max_ms, policy.backoff.base_ms, 7 * _DAY_S * 1000)
    _within("done_retention_s", policy.done_retention_s, 0, _U32_MAX)
    _within("failed_retention_s", policy.failed_retention_s, 0, _U32_MAX)
    if policy.max_depth is not None:
        _within("max_depth", policy.max_depth, 0, 2**53)
    if policy.message_ttl_ms is not None:
        _within("message_ttl_ms", policy.message_ttl_ms, 0, MAX_TTL_MS)
    if policy.throughput_limit is not None:
        _within("throughput_limit", policy.throughput_limit, 0, 10**9)
    _check_order(policy)
    _within("bucket_size", policy.bucket_size, 0, MAX_BUCKET_EXPONENT)
    for field in ("paused", "dead_letters", "dead_letter_expired"):
        if not isinstance(getattr(policy, field), bool):
            raise BadPolicy(f"{field} must be true or false.", field=field)
    _text("description", policy.description, MAX_DESCRIPTION_BYTES)
    check_labels(policy.labels)
    if policy.dead_letter_topic not in (None, ""):
        check_unreserved(
            check_name(policy.dead_letter_topic, "dead_letter_topic"), "dead_letter_topic"
        )
    events = check_events(policy.events)
    limits = (policy.max_depth, policy.message_ttl_ms, policy.throughput_limit)
    if 0 not in limits and policy.dead_letter_topic != "" and events == policy.events:
        return policy
    return replace(
        policy,
        events=events,
        max_depth=policy.max_depth or None,
        message_ttl_ms=policy.message_ttl_ms or None,
        throughput_limit=policy.throughput_limit or None,
        dead_letter_topic=policy.dead_letter_topic or None,
    )


def _check_order(policy: QueuePolicy) -> None:
    _within("partition_concurrency", policy.partition_concurrency, 1, MAX_PARTITION_CONCURRENCY)
    _within("partition_batch", policy.partition_batch, 1, MAX_PARTITION_BATCH)
    if policy.partition_batch > 1 and policy.partition_concurrency > 1:
        raise BadPolicy(
            f"partition_batch is {policy.partition_batch}; it must be 1 unless "
            "partition_concurrency is 1, because a batch needs strict order.",
            field="partition_batch",
            limit=1,
        )
    if not isinstance(policy.ordering, Ordering):
        raise BadPolicy("ordering must be 'none' or 'partition'.", field="ordering")
    if not isinstance(policy.retry_position, RetryPosition):
        raise BadPolicy("retry_position must be 'keep' or 'back'.", field="retry_position")
    if policy.retry_position is RetryPosition.BACK and policy.ordering is Ordering.PARTITION:
        raise BadPolicy(
            "retry_position must be 'keep' in an ordered queue.", field="retry_position"
        )


def check_events(events: object) -> tuple[MessageEvent, ...]:
    """The events in a fixed order, each once, if they are ends of deliveries."""
    if not isinstance(events, tuple) or any(event not in _EVENTS for event in events):
        given = list(events) if isinstance(events, tuple) else events
        raise BadPolicy(
            f"events is {shown(given)}; it must be a list of {', '.join(_EVENTS)}.",
            field="events",
        )
    return tuple(event for event in _EVENTS if event in events)


def check_labels(labels: object) -> dict[str, str]:
    """Return ``labels`` if it is a dict of at most ``MAX_LABELS`` short texts."""
    if not isinstance(labels, dict):
        raise BadPolicy("labels must map names to texts.", field="labels")
    if len(labels) > MAX_LABELS:
        raise BadPolicy(
            f"There are {len(labels)} labels; a queue has at most {MAX_LABELS}.",
            field="labels",
            limit=MAX_LABELS,
        )
    for name, value in labels.items():
        if not isinstance(name, str) or _LABEL_NAME.fullmatch(name) is None:
            raise BadPolicy(
                f"The label {shown(name)} has no valid name: at most {_MAX_LABEL_NAME} of "
                "A-Z a-z 0-9 . _ / -, the first a letter or digit.",
                field="labels",
                limit=_MAX_LABEL_NAME,
            )
        _text(f"labels.{name}", value, MAX_LABEL_BYTES)
        if "," in value:
            raise BadPolicy(
                f"The label {name!r} has a comma, which separates labels in a query.",
                field=f"labels.{name}",
            )
    return labels


def check_topic_policy(policy: TopicPolicy) -> TopicPolicy:
    """Return ``policy`` if every field is within its bounds; its defaults as plain values."""
    if not isinstance(policy, TopicPolicy):
        raise BadPolicy("A topic's policy must be a TopicPolicy.", field="policy")
    if policy.default_ttl_ms is not None:
        _within("default_ttl_ms", policy.default_ttl_ms, 1, MAX_TTL_MS)
    _within("dedup_window_ms", policy.dedup_window_ms, 0, 30 * _DAY_S * 1000)
    if policy.dedup_scope not in ("topic", "partition_key"):
        raise BadPolicy(
            f"dedup_scope is {shown(policy.dedup_scope)}; it must be 'topic' or 'partition_key'.",
            field="dedup_scope",
        )
    if policy.schema_type not in (None, "json-schema", "avro"):
        raise BadPolicy("schema_type must be 'json-schema' or 'avro'.", field="schema_type")
    if (policy.schema is None) != (policy.schema_type is None):
        raise BadPolicy("schema and schema_type must be given together.", field="schema")
    if policy.schema is not None:
        _text("schema", policy.schema, MAX_SCHEMA_BYTES)
    changed_defaults(QueuePolicy(), policy.queue_defaults)
    if not policy.queue_defaults:
        return policy
    # A field that is None is not changed, so it is left out: TOML has no null.
    given = {name: value for name, value in policy.queue_defaults.items() if value is not None}
    return replace(policy, queue_defaults=to_builtins(plain_fields(given)))


def _within(field: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise BadPolicy(
            f"{field} is {shown(value)}; it must be a whole number from {low} to {high}.",
            field=field,
            limit=low if isinstance(value, int) and value < low else high,
        )


def _text(field: str, value: object, limit: int) -> None:
    try:
        size = len(value.encode()) if isinstance(value, str) else limit + 1
    except UnicodeEncodeError as error:
        raise BadPolicy(f"{field} holds text that is not valid Unicode.", field=field) from error
    if size > limit:
        raise BadPolicy(
            f"{field} must be a text of at most {limit} bytes.", field=field, limit=limit
        )
