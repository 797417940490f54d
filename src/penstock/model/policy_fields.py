"""The fields of a queue's policy as keyword arguments, for type checkers.

A field that is not given has its default (``create_queue``, ``ensure_queue``, ``put_queue``) or
keeps its value (``update_queue``); None is the default. Durations are milliseconds (or seconds,
for ``*_s``) or a ``timedelta``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TypedDict

from penstock.model.duration import Duration
from penstock.model.queue import Backoff, Ordering, RetryPosition
from penstock.model.queue_events import MessageEvent

__all__ = ["PolicyChanges", "PolicyFields", "WorkerPolicyFields"]


class WorkerPolicyFields(TypedDict, total=False):
    """What ``@app.worker`` may give a queue that it creates; its ``lease_ms`` is that of claims."""

    max_attempts: int | None
    min_lease_ms: Duration | None
    max_lease_ms: Duration | None
    backoff: Backoff | None
    done_retention_s: int | timedelta | None
    failed_retention_s: int | timedelta | None
    max_depth: int | None
    message_ttl_ms: Duration | None
    dead_letters: bool | None
    dead_letter_topic: str | None
    dead_letter_expired: bool | None
    throughput_limit: int | None
    ordering: Ordering | str | None
    partition_concurrency: int | None
    partition_batch: int | None
    retry_position: RetryPosition | str | None
    bucket_size: int | None
    paused: bool | None
    description: str | None
    labels: Mapping[str, str] | None
    events: Sequence[MessageEvent] | None


class PolicyFields(WorkerPolicyFields, total=False):
    """Every field of ``QueuePolicy`` except the filter."""

    lease_ms: Duration | None


class PolicyChanges(PolicyFields, total=False):
    """The same with the filter, for ``update_queue``."""

    filter: str
