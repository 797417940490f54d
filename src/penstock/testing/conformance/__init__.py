# ruff: noqa: E402  (asserts are rewritten before the modules are imported)
"""The compliance suite: the required behaviour of every engine, one file per verb.

A test depends on a capability, never on an engine; without the capability it is skipped with the
reason. ``harness`` shows what a test file for an engine looks like. Tests are marked with the laws
that they check, as in ``@law("S1")``, so a test run with strict markers has to register ``law``. P1
and X1 need failing hardware, and are covered by crash tests.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    *(
        f"{__name__}.{name}"
        for name in (
            "answers",
            "assign",
            "bulk",
            "claim",
            "concurrency",
            "dead_letter",
            "dedup_scope",
            "default_policies",
            "documents",
            "harness",
            "history",
            "idempotency",
            "keyed",
            "keyed_returns",
            "leases",
            "log",
            "lowered_limit",
            "matched_queues",
            "message_ttl",
            "next_due",
            "own_limit",
            "ownership",
            "partitions",
            "peek",
            "publish",
            "purge",
            "queue_events",
            "queues",
            "ready",
            "ready_partitions",
            "receipts",
            "reopening",
            "replay",
            "results",
            "find",
            "cancel",
            "route",
            "routers",
            "scenarios",
            "selector",
            "settle",
            "settle_and_publish",
            "stats",
            "sweep",
            "tenants",
            "throughput",
            "topics",
        )
    )
)

from penstock.testing.conformance.answers import (
    TestAnswers,
    TestErrorsShown,
    TestHistoryBounds,
    TestReplaySample,
)
from penstock.testing.conformance.assign import (
    TestAssign,
    TestAssignConflicts,
    TestAssignKeyed,
)
from penstock.testing.conformance.bulk import TestColumns, TestReadHistory, TestSplits
from penstock.testing.conformance.cancel import TestCancel, TestCancelEverywhere
from penstock.testing.conformance.claim import TestBacklog, TestClaim, TestClaimOrder
from penstock.testing.conformance.concurrency import TestConcurrency
from penstock.testing.conformance.dead_letter import (
    TestDeadLetter,
    TestDeadLetterQueue,
    TestNoDeadLetters,
)
from penstock.testing.conformance.dead_letter_topic import TestDeadLetterTopic, TestExpiredToTopic
from penstock.testing.conformance.dead_letter_topic_limits import TestNothingRefusesACopy
from penstock.testing.conformance.dedup_scope import TestDedupScope
from penstock.testing.conformance.default_policies import TestDefaultPolicies
from penstock.testing.conformance.documents import TestDocuments
from penstock.testing.conformance.find import TestFind
from penstock.testing.conformance.harness import engine_factory, store
from penstock.testing.conformance.history import TestHistory, TestMessage
from penstock.testing.conformance.idempotency import TestBatches, TestIdempotency
from penstock.testing.conformance.identity import TestIdentity
from penstock.testing.conformance.keyed import TestKeyed
from penstock.testing.conformance.keyed_returns import TestKeyedReturns
from penstock.testing.conformance.leases import TestLeases, TestTime
from penstock.testing.conformance.log import TestLog
from penstock.testing.conformance.lowered_limit import TestLoweredLimit
from penstock.testing.conformance.matched_queues import TestAutoCreateOfAMessage, TestMatchedQueues
from penstock.testing.conformance.message_ttl import TestMessageTtl
from penstock.testing.conformance.next_due import TestNextDue, TestNextDueOfPartitions
from penstock.testing.conformance.own_limit import TestOwnLimit
from penstock.testing.conformance.ownership import TestOwnership
from penstock.testing.conformance.partitions import (
    TestPartitionBatch,
    TestPartitionOrder,
    TestPartitionStats,
)
from penstock.testing.conformance.peek import TestPeek
from penstock.testing.conformance.publish import TestAutoCreate, TestDepth, TestPublish
from penstock.testing.conformance.purge import TestPurge
from penstock.testing.conformance.queue_events import TestQueueEvents
from penstock.testing.conformance.queues import TestClosing, TestIsolation, TestQueues
from penstock.testing.conformance.quotas import TestFanOut, TestFilterQuota, TestQueueQuota
from penstock.testing.conformance.ready import TestLapsed, TestReady
from penstock.testing.conformance.ready_partitions import TestReadyPartitions
from penstock.testing.conformance.receipts import TestCurrentReceipt, TestStaleReceipts
from penstock.testing.conformance.reopening import TestReopening
from penstock.testing.conformance.replay import TestReplay, TestReplayFromLog, TestReplayIds
from penstock.testing.conformance.replay_ttl import TestReplayTtl
from penstock.testing.conformance.results import TestEnded, TestResults
from penstock.testing.conformance.retry_position import TestRetryPosition
from penstock.testing.conformance.route import (
    TestCatchingUp,
    TestLargeBatches,
    TestRouting,
    TestStart,
)
from penstock.testing.conformance.routers import TestManyRouters
from penstock.testing.conformance.selector import (
    TestSelector,
    TestSelectorOfPartitions,
    TestSelectorScan,
)
from penstock.testing.conformance.settle import TestAck, TestExtend, TestNack, TestRelease
from penstock.testing.conformance.settle_and_claim import TestSettleAndClaim
from penstock.testing.conformance.settle_and_publish import TestSettleAndPublish
from penstock.testing.conformance.stats import TestStats
from penstock.testing.conformance.sweep import TestDeliveryRetention, TestLogRetention, TestSweep
from penstock.testing.conformance.tenants import TestTenantList, TestTenants
from penstock.testing.conformance.throughput import TestThroughput
from penstock.testing.conformance.topics import TestCheckedBy, TestTopics

__all__ = [
    "TestAck",
    "TestAnswers",
    "TestAssign",
    "TestAssignConflicts",
    "TestAssignKeyed",
    "TestAutoCreate",
    "TestAutoCreateOfAMessage",
    "TestBacklog",
    "TestBatches",
    "TestCancel",
    "TestCancelEverywhere",
    "TestCatchingUp",
    "TestCheckedBy",
    "TestClaim",
    "TestClaimOrder",
    "TestClosing",
    "TestColumns",
    "TestConcurrency",
    "TestCurrentReceipt",
    "TestDeadLetter",
    "TestDeadLetterQueue",
    "TestDeadLetterTopic",
    "TestDedupScope",
    "TestDefaultPolicies",
    "TestDeliveryRetention",
    "TestDepth",
    "TestDocuments",
    "TestEnded",
    "TestErrorsShown",
    "TestExpiredToTopic",
    "TestExtend",
    "TestFanOut",
    "TestFilterQuota",
    "TestFind",
    "TestHistory",
    "TestHistoryBounds",
    "TestIdempotency",
    "TestIdentity",
    "TestIsolation",
    "TestKeyed",
    "TestKeyedReturns",
    "TestLapsed",
    "TestLargeBatches",
    "TestLeases",
    "TestLog",
    "TestLogRetention",
    "TestLoweredLimit",
    "TestManyRouters",
    "TestMatchedQueues",
    "TestMessage",
    "TestMessageTtl",
    "TestNack",
    "TestNextDue",
    "TestNextDueOfPartitions",
    "TestNoDeadLetters",
    "TestNothingRefusesACopy",
    "TestOwnLimit",
    "TestOwnership",
    "TestPartitionBatch",
    "TestPartitionOrder",
    "TestPartitionStats",
    "TestPeek",
    "TestPublish",
    "TestPurge",
    "TestQueueEvents",
    "TestQueueQuota",
    "TestQueues",
    "TestReadHistory",
    "TestReady",
    "TestReadyPartitions",
    "TestRelease",
    "TestReopening",
    "TestReplay",
    "TestReplayFromLog",
    "TestReplayIds",
    "TestReplaySample",
    "TestReplayTtl",
    "TestResults",
    "TestRetryPosition",
    "TestRouting",
    "TestSelector",
    "TestSelectorOfPartitions",
    "TestSelectorScan",
    "TestSettleAndClaim",
    "TestSettleAndPublish",
    "TestSplits",
    "TestStaleReceipts",
    "TestStart",
    "TestStats",
    "TestSweep",
    "TestTenantList",
    "TestTenants",
    "TestThroughput",
    "TestTime",
    "TestTopics",
    "engine_factory",
    "store",
]
