"""The tenants and queues of a simulation, with their initial policies.

Programs change, delete and recreate most queues at any time. Five are never deleted, purged or
replayed, so that the replies about them can be checked:

- ``work`` takes every message of its topic and is never changed: the history checker judges it;
- ``dead`` has the dead-letter copies of ``work``, and is never claimed from; programs change its
  labels, and nothing else;
- ``narrow`` has a ``max_depth`` and a ``throughput_limit``; programs change its filter and its
  ``max_depth``, and nothing else;
- ``line`` is ordered, and never changed;
- ``reports`` has the events of ``line``, and is never claimed from.
"""

from __future__ import annotations

from typing import Final

from penstock.broker import Broker
from penstock.model.queue import Backoff, Ordering, QueuePolicy, RetryPosition, TopicPolicy
from penstock.model.queue_events import EVENTS_TOPIC

__all__ = [
    "DEAD",
    "FILTERS",
    "FIXED",
    "FRESH",
    "LINE",
    "NARROW",
    "POLICIES",
    "REPORTS",
    "TENANTS",
    "WORK",
    "WORK_POLICY",
    "create_first_queues",
    "default_policy",
]

TENANTS: Final = ("acme", "rival")
#: The queue and the topic that the history checker judges, in the first tenant.
WORK: Final = "work"
WORK_POLICY: Final = QueuePolicy(
    filter="topic = 'work'",
    max_attempts=3,
    min_lease_ms=10,
    backoff=Backoff(100, 2_000),
    done_retention_s=0,
    failed_retention_s=0,
    bucket_size=1,
    dead_letter_topic="dead",
)
#: The queue and the topic of the copies of what fails in ``work``, and in some other queues.
DEAD: Final = "dead"
#: The topic and the queue that a publish creates; programs change its defaults.
FRESH: Final = "fresh"
#: The dedup window of ``work`` and ``line``: longer than any run. The checker ignores windows.
_DURABLE_TOPIC_MS: Final = 7 * 24 * 3600 * 1000
NARROW: Final = "narrow"
LINE: Final = "line"
#: The queue of the events of ``line``, and of some other queues.
REPORTS: Final = "reports"
#: The filters of ``narrow``; the first one is the initial filter.
FILTERS: Final = ("topic = 'narrow'", "topic = 'narrow' AND color = 'red'")
#: The queues that are never deleted, in the first tenant.
FIXED: Final = {
    WORK: WORK_POLICY,
    DEAD: QueuePolicy(filter="topic = 'dead'", done_retention_s=0, bucket_size=1),
    NARROW: QueuePolicy(
        filter=FILTERS[0],
        max_attempts=9,
        max_depth=4,
        throughput_limit=2,
        done_retention_s=0,
        failed_retention_s=0,
        bucket_size=1,
    ),
    LINE: QueuePolicy(
        filter="topic = 'line'",
        ordering=Ordering.PARTITION,
        max_attempts=9,
        done_retention_s=0,
        failed_retention_s=0,
        events=("done", "failed", "expired"),
    ),
    REPORTS: QueuePolicy(filter=f"topic = '{EVENTS_TOPIC}'", done_retention_s=0, bucket_size=1),
}
#: The initial policies of the other queues. Limits are small, so that programs reach them.
POLICIES: Final = {
    "all": QueuePolicy(
        filter="topic <> 'fresh'",
        max_attempts=2,
        backoff=Backoff(1000, 4000),
        retry_position=RetryPosition.BACK,
        bucket_size=1,
    ),
    "lane": QueuePolicy(
        filter="color IS NOT NULL",
        ordering=Ordering.PARTITION,
        partition_batch=3,
        max_attempts=2,
        bucket_size=0,
    ),
    "late": QueuePolicy(filter="amount >= 5", bucket_size=1, failed_retention_s=60),
    # Bound to one topic: on a database, publishes that may meet a limit wait for each other.
    "red": QueuePolicy(
        filter="topic = 'orders' AND color = 'red'", max_attempts=1, max_depth=6, bucket_size=0
    ),
    "wide": QueuePolicy(
        filter="topic = 'orders'", ordering=Ordering.PARTITION, partition_concurrency=2
    ),
}
#: Queues that exist from the beginning, by tenant; steps create the others. The second tenant
#: exists to detect leaks.
_FIRST: Final = {
    "acme": (*FIXED, "all", "lane", "red", "wide"),
    "rival": (WORK, "all"),
}


def default_policy(seed: int) -> QueuePolicy:
    """The server's default policy: half of the runs have one of their own."""
    if seed // 2 % 2:
        return QueuePolicy(max_attempts=4, labels={"team": "ops"}, backoff=Backoff(0, 0))
    return QueuePolicy()


async def create_first_queues(server: Broker) -> None:
    """Create the queues that programs find."""
    for tenant, names in _FIRST.items():
        broker = server.for_tenant(tenant)
        await broker.put_topic(WORK, TopicPolicy(dedup_window_ms=_DURABLE_TOPIC_MS))
        await broker.put_topic("bills", TopicPolicy(dedup_scope="partition_key"))
        lasting = TopicPolicy(dedup_scope="partition_key", dedup_window_ms=_DURABLE_TOPIC_MS)
        await broker.put_topic(LINE, lasting)
        for name in names:
            policy = FIXED.get(name) or POLICIES[name]
            fields = {field: getattr(policy, field) for field in policy.__struct_fields__}
            await broker.create_queue(name, fields.pop("filter"), **fields)
