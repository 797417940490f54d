"""Strategies for random programs: the next verb and its arguments.

A step is the name of a method of ``tests.properties.machine`` and its arguments. Hypothesis could
choose between rules by itself, but would then disable half of them in most programs, and programs
without claims, or with claims but no settlements, find nothing.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import hypothesis.strategies as st

from penstock.model.delivery import ReplaySource
from penstock.model.queue import Backoff, IfExists, Ordering, QueuePolicy, RetryPosition, Start
from penstock.model.states import State

__all__ = ["FIRST", "KINDS", "POLICIES", "STEPS", "Draft", "Step"]

#: A message: headers, fields, and a relative delay and ttl, which the call makes absolute.
Draft: TypeAlias = dict[str, Any]
#: A method of the machine, and its arguments.
Step: TypeAlias = tuple[str, dict[str, object]]

#: Queue to its initial policy: with small limits, so that programs reach them.
POLICIES: Final = {
    "all": QueuePolicy(filter="topic <> 'fresh'", max_attempts=2, backoff=Backoff(1000, 4000)),
    "lane": QueuePolicy(
        filter="color IS NOT NULL",
        ordering=Ordering.PARTITION,
        partition_batch=2,
        max_attempts=2,
        bucket_size=0,
    ),
    "late": QueuePolicy(
        filter="amount >= 5", bucket_size=1, failed_retention_s=60, events=("done", "expired")
    ),
    "red": QueuePolicy(
        filter="color = 'red'",
        max_attempts=2,
        max_depth=6,
        retry_position=RetryPosition.BACK,
        bucket_size=0,
        dead_letter_topic="dead",
        dead_letter_expired=True,
    ),
    "wide": QueuePolicy(
        filter="topic = 'orders'", ordering=Ordering.PARTITION, partition_concurrency=2
    ),
}
#: Kinds of documents.
KINDS: Final = ("keys", "runs")

_TENANTS = st.sampled_from(["acme"] * 5 + ["rival"])
#: The last one has no queue until a publish creates it.
_TOPICS = st.sampled_from(["orders"] * 3 + ["bills", "bills", "fresh"])
#: Weighted by repetition. ``orders`` and ``bills`` may have been created by a publish.
_NAMES = st.sampled_from(["all"] * 4 + ["lane", "late", "red", "wide"] * 2 + ["orders", "fresh"])
_CLAIMABLE = st.sampled_from(
    ["all"] * 5
    + ["lane", "wide"] * 3
    + ["late", "red", "all.dlq", "red.dlq"] * 2
    + ["orders", "bills", "fresh", "dead", "lane.dlq", "late.dlq"]
)
_ORDERED = st.sampled_from(["lane", "wide"])
_CONSUMERS = st.sampled_from(["c1", "c2", "c3"])
_CONDITIONS = st.sampled_from([None, None, "color = 'red'", "amount >= 5", "priority > 4"])
_LIMITS = st.sampled_from([1, 2, 3, 100])
_VERBS = st.sampled_from(["ack", "ack", "nack", "nack", "reject", "release", "extend"])
_DELAYS_MS = st.sampled_from([None, None, 0, 500, 5_000])
_PICKS = st.integers(0, 10_000)


def _choice(*values: object) -> st.SearchStrategy[object]:
    return st.sampled_from(values)


#: Contains only what differs from a plain message, so that a failing program is readable.
_DRAFTS: Final[st.SearchStrategy[Draft]] = st.fixed_dictionaries(
    {
        "color": _choice(None, "red", "blue"),
        "amount": _choice(None, 1, 5, 9.5),
        "payload": _choice(None, b"x", b"yy", b"\x00\xff"),
        "id": _choice(None, None, None, "i", "j"),
        "key": _choice(None, None, "k", "l"),
        "partition_key": _choice(None, "a", "b", "c"),
        "priority": _choice(None, None, None, 0, 9),
        "delay_ms": _choice(None, None, None, 500, 5_000),
        "ttl_ms": _choice(None, None, None, 1_000, 40_000),
        "auto_create": _choice(None, None, False),
        "max_attempts": _choice(None, None, None, 1, 3),
    }
).map(lambda fields: {name: value for name, value in fields.items() if value is not None})


_BATCHES = st.lists(_DRAFTS, min_size=1, max_size=4)
#: The first batch of every program, so that its first step has something to claim.
FIRST: Final[st.SearchStrategy[list[Draft]]] = _BATCHES

#: Step to its weight and its arguments.
_STEPS: Final[dict[str, tuple[int, dict[str, st.SearchStrategy[object]]]]] = {
    "publish": (
        12,
        {
            "tenant": _TENANTS,
            "topic": _TOPICS,
            "batch": _BATCHES,
            "batch_id": st.sampled_from([None, None, None, "x", "y"]),
            "batch_ms": st.sampled_from([None, None, 1_000, 60_000, 8_000_000]),
        },
    ),
    "claim": (
        24,
        {
            "tenant": _TENANTS,
            "queue": _CLAIMABLE,
            "consumer": _CONSUMERS,
            "limit": _LIMITS,
            "lease_ms": st.sampled_from([None, 1_000, 5_000, 45_000]),
            "where": _CONDITIONS,
        },
    ),
    "settle": (
        20,
        {
            # The claim, counted back from the last; the verb; the delay of a nack or release.
            "chosen": st.lists(
                st.tuples(st.integers(0, 12), _VERBS, _DELAYS_MS), min_size=1, max_size=4
            ),
            "batch": st.one_of(st.none(), _BATCHES),
            "topic": _TOPICS,
        },
    ),
    "advance": (
        12,
        {
            "ms": st.sampled_from(
                [1, 499, 500, 500, 1_000, 1_000, 2_000, 5_000, 29_999, 30_000, 60_000, 4_000_000]
            )
        },
    ),
    "sweep": (3, {"limit": st.sampled_from([1, 5, 10_000])}),
    "put_queue": (
        5,
        {
            "tenant": _TENANTS,
            "name": st.sampled_from(sorted(POLICIES)),
            "start": st.sampled_from([Start.LATEST, Start.EARLIEST, Start.OFFSET, Start.TIME]),
            "back": _PICKS,
            "filter": st.sampled_from([None, None, "amount >= 5", "topic = 'bills'"]),
            "max_attempts": st.sampled_from([1, 2, 3]),
            "partition_batch": st.sampled_from([1, 2, 3]),
            "retry_position": st.sampled_from(RetryPosition),
            "max_depth": st.sampled_from([None, None, 5]),
            "message_ttl_ms": st.sampled_from([None, None, 1_000, 30_000]),
            "done_retention_s": st.sampled_from([0, 10, 3600]),
            "dead_letters": st.sampled_from([True, True, False]),
            "dead_letter_topic": st.sampled_from([None, None, "bills", "dead"]),
            "dead_letter_expired": st.booleans(),
            "events": st.sampled_from([(), (), ("done",), ("failed", "expired")]),
            "labels": st.sampled_from([{}, {"team": "ops"}, {"team": "ops", "tier": "1"}]),
            "bucket_size": st.sampled_from([None, None, None, 0, 1]),
            "if_exists": st.sampled_from([IfExists.REPLACE, IfExists.REPLACE, *IfExists]),
        },
    ),
    "lower_attempts": (
        4,
        {
            "tenant": _TENANTS,
            "queue": st.sampled_from(["all", "lane", "late", "wide"]),
            "consumer": _CONSUMERS,
            "limit": _LIMITS,
            "max_attempts": st.sampled_from([1, 1, 2]),
        },
    ),
    "route": (4, {"tenant": _TENANTS, "queue": _NAMES, "limit": _LIMITS}),
    "assign": (
        5,
        {
            "tenant": _TENANTS,
            "queue": _NAMES,
            # Relative to the queue's cursor: a later entry is a gap, earlier ones are stale.
            "skipped": st.sampled_from([0, 0, 0, 1, -1, -3]),
            "count": _LIMITS,
            "named": st.sampled_from(["found", "found", "found", "all"]),
            "wrong": st.sampled_from([None, None, None, None, "filter", "end"]),
        },
    ),
    "replay": (
        7,
        {
            "tenant": _TENANTS,
            "queue": _CLAIMABLE,
            "source": st.sampled_from(ReplaySource),
            "where": _CONDITIONS,
            "limit": _LIMITS,
            "rate": st.sampled_from([None, None, 2]),
            "dry_run": st.sampled_from([False, False, True]),
            "replay_id": st.sampled_from([None, None, "r1", "r2"]),
            "ttl_ms": st.sampled_from([None, None, 1_000, 40_000]),
        },
    ),
    "purge": (
        3,
        {
            "tenant": _TENANTS,
            "queue": _CLAIMABLE,
            "state": st.sampled_from(State),
            "where": _CONDITIONS,
            "limit": _LIMITS,
            "numbers": st.one_of(st.none(), st.lists(_PICKS, min_size=1, max_size=3)),
        },
    ),
    "cancel": (
        4,
        {
            "tenant": _TENANTS,
            "queue": st.one_of(st.none(), _CLAIMABLE),
            "number": _PICKS,
        },
    ),
    "find": (
        2,
        {
            "tenant": _TENANTS,
            "topic": _TOPICS,
            "id": st.sampled_from(["i", "j"]),
            "partition_key": st.sampled_from([None, "a", "b", "c"]),
        },
    ),
    "peek": (
        3,
        {
            "tenant": _TENANTS,
            "queue": _CLAIMABLE,
            "state": st.sampled_from(State),
            "where": _CONDITIONS,
            "page": st.integers(1, 3),
        },
    ),
    "read": (4, {"tenant": _TENANTS, "queue": _CLAIMABLE, "number": _PICKS}),
    "pause": (
        2,
        {
            "tenant": _TENANTS,
            "queue": _CLAIMABLE,
            "paused": st.sampled_from([True, False, False]),
        },
    ),
    # Rare: long-lived queues find more.
    "delete_queue": (1, {"tenant": _TENANTS, "queue": _NAMES}),
    "put_topic": (
        1,
        {
            "tenant": _TENANTS,
            "topic": _TOPICS,
            "ttl_ms": st.sampled_from([None, 30_000]),
            "dedup_scope": st.sampled_from(["topic", "partition_key"]),
            "queue_defaults": st.sampled_from(
                [{}, {"max_attempts": 1, "labels": {"tier": "1"}}, {"ordering": "partition"}]
            ),
        },
    ),
    "join": (4, {"tenant": _TENANTS, "queue": _ORDERED, "consumer": _CONSUMERS}),
    "leave": (1, {"tenant": _TENANTS, "queue": _ORDERED, "consumer": _CONSUMERS}),
    "document": (
        2,
        {
            "kind": st.sampled_from(KINDS),
            "name": st.sampled_from(["a", "b", "acme/a"]),
            "value": st.sampled_from([None, b"", b"x", b"yy"]),
        },
    ),
    "reopen": (3, {}),
    "lapse_number": (3, {}),
}


def _arguments(name: str) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(name), st.fixed_dictionaries(_STEPS[name][1]))


STEPS: Final[st.SearchStrategy[Step]] = st.sampled_from(
    [name for name, (weight, _) in _STEPS.items() for _ in range(weight)]
).flatmap(_arguments)
