"""Stored policies: what the present release wrote is read, and the stored names stay."""

from __future__ import annotations

import json

from penstock.model.queue import QueuePolicy
from penstock.storage.sql.catalog import encode_policy, read_policy

#: A row's policy as version 0.1 wrote it.
RELEASED = (
    b'{"filter":"a = 1","max_attempts":7,"visibility_timeout_ms":45000,"min_lease_ms":100,'
    b'"max_lease_ms":43200000,"backoff":{"base_ms":1000,"max_ms":300000},"done_retention_s":3600,'
    b'"failed_retention_s":1209600,"max_depth":null,"throughput_limit":null,"ordering":"none",'
    b'"partition_concurrency":1,"bucket_size":2,"paused":false,"description":""}'
)


def test_a_released_policy_is_read() -> None:
    policy = QueuePolicy(filter="a = 1", max_attempts=7, lease_ms=45_000)
    assert read_policy(RELEASED) == policy


def test_a_released_server_reads_what_this_one_writes() -> None:
    written = json.loads(encode_policy(read_policy(RELEASED)))
    assert written.items() >= json.loads(RELEASED).items()
    assert "lease_ms" not in written
