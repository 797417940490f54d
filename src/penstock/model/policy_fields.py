"""The fields of a queue's policy as keyword arguments, for type checkers.

A field that is not given has its default (``create_queue``, ``ensure_queue``, ``put_queue``) or
keeps its value (``update_queue``). Durations are milliseconds (or seconds, for ``*_s``) or a
``timedelta``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TypedDict

from penstock.model.duration import Duration
from penstock.model.queue import Backoff, Ordering

__all__ = ["PolicyChanges", "PolicyFields", "WorkerPolicyFields"]


class WorkerPolicyFields(TypedDict, total=False):
    """What ``@app.worker`` may give a queue that it creates; its ``lease_ms`` is that of claims."""

    max_attempts: int
    min_lease_ms: Duration
    max_lease_ms: Duration
    backoff: Backoff
    done_retention_s: int | timedelta
    failed_retention_s: int | timedelta
    max_depth: int | None
    message_ttl_ms: Duration | None
    dead_letters: bool
    throughput_limit: int | None
    ordering: Ordering | str
    partition_concurrency: int
    bucket_size: int
    paused: bool
    description: str
    labels: Mapping[str, str]


class PolicyFields(WorkerPolicyFields, total=False):
    """Every field of ``QueuePolicy`` except the filter."""

    lease_ms: Duration


class PolicyChanges(PolicyFields, total=False):
    """The same with the filter, for ``update_queue``."""

    filter: str
