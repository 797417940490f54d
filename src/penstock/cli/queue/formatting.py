"""Policies and statistics of queues, formatted."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import asdict

from penstock.cli import printing
from penstock.cli.printing import Cell, Column, age, moment
from penstock.model.delivery import PartitionStats, QueueStats
from penstock.model.message import Message
from penstock.model.queue import QueueInfo

__all__ = [
    "MESSAGES",
    "NUMBERS",
    "PARTITIONS",
    "QUEUES",
    "Counted",
    "called",
    "combined",
    "info_fields",
    "print_info",
    "stat_fields",
]


class Counted(Struct, frozen=True):
    """A queue in a table of statistics."""

    name: str
    stats: QueueStats
    filter: str = ""


NUMBERS: Final[tuple[Column[Counted], ...]] = (
    Column("queue", lambda item: item.name, style="bold"),
    Column("available", lambda item: item.stats.available, right=True),
    Column("in flight", lambda item: item.stats.in_flight, right=True),
    Column("delayed", lambda item: item.stats.delayed, right=True),
    Column("done", lambda item: item.stats.done, right=True),
    Column("failed", lambda item: item.stats.failed, right=True, alarm=True),
    Column("expired", lambda item: item.stats.expired, right=True),
    Column("lag", lambda item: item.stats.lag, right=True),
    Column("oldest", lambda item: age(item.stats.oldest_available_ms), right=True),
)
QUEUES: Final = (
    *NUMBERS,
    Column[Counted]("filter", lambda item: item.filter, style="dim", wide=True),
)
PARTITIONS: Final[tuple[Column[PartitionStats], ...]] = (
    Column("partition", lambda part: part.partition),
    Column("owner", lambda part: part.owner),
    Column("epoch", lambda part: part.epoch, right=True),
    Column("unsettled", lambda part: part.unsettled, right=True),
    Column("in flight", lambda part: part.in_flight, right=True),
    Column("watermark", lambda part: part.watermark, right=True),
)
MESSAGES: Final[tuple[Column[Message], ...]] = (
    Column("id", lambda message: message.id, right=True),
    Column("topic", lambda message: message.topic),
    Column("headers", lambda message: printing.headers(message.headers), wide=True),
)


def called(info: QueueInfo) -> str:
    """The name, marked if the queue is paused."""
    return f"{info.name} (paused)" if info.policy.paused else info.name


def combined(info: QueueInfo, stats: QueueStats) -> dict[str, object]:
    """A queue with its statistics, as JSON."""
    return {**asdict(info), "stats": stats}


def print_info(info: QueueInfo) -> None:
    """Print the queue's current policy."""
    if not printing.as_json(info):
        printing.fields(info_fields(info))


def info_fields(info: QueueInfo) -> list[tuple[str, Cell]]:
    """The policy, one field per line."""
    policy = info.policy
    return [
        ("queue", info.name),
        ("filter", policy.filter),
        ("filter version", info.filter_version),
        ("description", policy.description),
        ("labels", ", ".join(f"{name}={value}" for name, value in sorted(policy.labels.items()))),
        ("dead letters", policy.dead_letters),
        ("dead letter topic", policy.dead_letter_topic or "none"),
        ("expired to topic", policy.dead_letter_expired),
        ("events", ", ".join(policy.events)),
        ("paused", policy.paused),
        ("max attempts", policy.max_attempts),
        ("lease", age(policy.lease_ms)),
        ("lease bounds", f"{age(policy.min_lease_ms)} to {age(policy.max_lease_ms)}"),
        ("backoff", f"{age(policy.backoff.base_ms)} to {age(policy.backoff.max_ms)}"),
        ("done retention", _kept(policy.done_retention_s)),
        ("failed retention", _kept(policy.failed_retention_s)),
        ("max depth", "none" if policy.max_depth is None else policy.max_depth),
        ("message ttl", "none" if policy.message_ttl_ms is None else age(policy.message_ttl_ms)),
        (
            "throughput limit",
            "none" if policy.throughput_limit is None else f"{policy.throughput_limit} per second",
        ),
        ("ordering", policy.ordering.value),
        ("partition concurrency", policy.partition_concurrency),
        ("partition batch", policy.partition_batch),
        ("retry position", policy.retry_position.value),
        ("bucket size", policy.bucket_size),
        ("created", moment(info.created_at)),
        ("routed", "caught up" if info.cursor is None else f"next is offset {info.cursor}"),
    ]


def stat_fields(stats: QueueStats) -> list[tuple[str, Cell]]:
    """The statistics, one field per line."""
    consumers = ", ".join(
        f"{name} {count}" for name, count in sorted(stats.in_flight_by_consumer.items())
    )
    return [
        ("available", stats.available),
        ("in flight", stats.in_flight),
        ("by consumer", consumers),
        ("delayed", stats.delayed),
        ("done", stats.done),
        ("failed", stats.failed),
        ("expired", stats.expired),
        ("oldest available", age(stats.oldest_available_ms)),
        ("lag", stats.lag),
        ("watermark", stats.watermark),
        ("grants", stats.grants),
        ("acks", stats.acks),
        ("nacks", stats.nacks),
        ("failures", stats.failures),
    ]


def _kept(seconds: int) -> str:
    return age(seconds * 1000) if seconds else "forever"
