"""Judges that read the tables of a simulated database, after every seed."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.model.queue import Ordering, QueuePolicy
from penstock.storage.sql.compaction import is_stray
from penstock.storage.sql.deliveries import DeliveryGroup
from penstock.testing.simulation.policies import NARROW, TENANTS
from penstock.testing.simulation.sql_observer import Observer

__all__ = ["judge_rows", "live_in_narrow"]

#: Queues whose counts differ from a full scan, for the phases that are tallied.
_MISCOUNTED: Final = """
SELECT queue, phase, sum(tallied), sum(found) FROM (
    SELECT queue, kind AS phase, delta AS tallied, 0 AS found FROM penstock_tally
    WHERE kind IN (1, 2, 3, 4, 5, 11, 12, 13, 14)
    UNION ALL
    SELECT queue, CASE phase WHEN 0 THEN 1 ELSE phase END, 0, size FROM penstock_run
) AS numbers
WHERE queue NOT IN (SELECT queue FROM penstock_dropped)
GROUP BY queue, phase HAVING sum(tallied) <> sum(found)
"""
#: The same for the unsettled deliveries of the partitions of ordered queues. In other queues, rows
#: that moved to the back (their row key is behind their segment) have their message there.
_MISCOUNTED_PARTITIONS: Final = """
SELECT queue, partition_key, sum(tallied), sum(found) FROM (
    SELECT queue, partition_key, unsettled AS tallied, 0 AS found FROM penstock_partition
    UNION ALL
    SELECT queue, partition_key, delta, 0 FROM penstock_partition_tally
    UNION ALL
    SELECT queue, partition_key, 0, size FROM penstock_run
    WHERE partition_key IS NOT NULL AND NOT (phase IN (1, 2) AND row_key / 16384 >= segment + 1)
) AS numbers
WHERE queue NOT IN (SELECT queue FROM penstock_dropped)
GROUP BY queue, partition_key HAVING sum(tallied) <> sum(found)
"""
#: Segments appended by an empty publish.
_EMPTY_SEGMENTS: Final = "SELECT segment FROM penstock_log WHERE entries = 0"
#: Partitions of ordered queues with more deliveries in flight than any policy allows.
_CROWDED_PARTITIONS: Final = """
SELECT queue, partition_key, sum(size) FROM penstock_run
WHERE phase = 3 AND partition_key IS NOT NULL
    AND queue IN (SELECT number FROM penstock_queue WHERE name {})
GROUP BY queue, partition_key HAVING sum(size) > {}
"""
#: The condition on the names of queues, and the most that a partition of them has in flight.
_MOST_IN_FLIGHT: Final = (("NOT IN ('lane', 'wide')", 1), ("= 'lane'", 3))
#: All deliveries of existing queues; whether the segment is in the log; the policy, unless the
#: router still has to give partitions to some of them.
_RUNS: Final = """
SELECT run.queue, run.phase, run.{0}rank{0}, run.row_key, run.segment, run.size, run.until,
    run.partition_key, run.consumer, run.members, run.record, log.segment IS NOT NULL,
    CASE WHEN queue.{0}cursor{0} IS NULL AND queue.joining IS NULL THEN queue.policy END
FROM penstock_run AS run
JOIN penstock_queue AS queue ON queue.number = run.queue
LEFT JOIN penstock_log AS log ON log.segment = run.segment
"""
#: Live deliveries of a queue.
_LIVE: Final = """
SELECT coalesce(sum(run.size), 0) FROM penstock_run AS run
JOIN penstock_queue AS queue ON queue.number = run.queue
JOIN penstock_tenant AS tenant ON tenant.number = queue.tenant
WHERE tenant.name = '{}' AND queue.name = '{}' AND run.phase IN (0, 1, 2, 3)
"""
#: Deliveries of a queue that does not exist and is not being dropped either.
_ORPHANS: Final = """
SELECT DISTINCT queue FROM penstock_run
WHERE queue NOT IN (SELECT number FROM penstock_queue)
    AND queue NOT IN (SELECT queue FROM penstock_dropped)
"""


def judge_rows(observer: Observer) -> list[str]:
    """Check the tables once all clients are done; returns the violations."""
    found = [
        f"Q2: {tallied} in phase {phase} of queue {queue}, a scan finds {there}"
        for queue, phase, tallied, there in observer.rows(_MISCOUNTED)
    ]
    for queue, key, tallied, there in observer.rows(_MISCOUNTED_PARTITIONS):
        found.append(f"Q2: {tallied} in {key!r} of queue {queue}, a scan finds {there}")
    for (queue,) in observer.rows(_ORPHANS):
        found.append(f"S3: deliveries of queue {queue}, which does not exist")
    for (segment,) in observer.rows(_EMPTY_SEGMENTS):
        found.append(f"L1: segment {segment} of the log has no entries")
    for names, most in _MOST_IN_FLIGHT:
        for queue, key, there in observer.rows(_CROWDED_PARTITIONS.format(names, most)):
            found.append(f"C4: {there} of partition {key!r} of queue {queue} are in flight")
    return found + _judge_runs(observer)


def _judge_runs(observer: Observer) -> list[str]:
    found: list[str] = []
    seen: set[tuple[int, int]] = set()
    quote = "" if observer.dialect == "postgresql" else "`"
    for *row, logged, policy in observer.rows(_RUNS.format(quote)):
        group = DeliveryGroup.read(row)
        if group.row().partition_key != row[7]:
            found.append(f"Q2: {row[7]!r} of queue {group.queue} is not what its record says")
        for message in group.ids():
            name = f"message {message} of queue {group.queue}"
            if (group.queue, message) in seen:
                found.append(f"S3: {name} is in two states")
            seen.add((group.queue, message))
            # The first entry of a replaced message may be gone.
            if not logged and group.record.entry is None:
                found.append(f"G1: {name} is not in the log")
            if policy is not None and is_stray(row) and _is_ordered(policy):
                found.append(f"C5: {name} is in no partition")
    return found


def _is_ordered(policy: bytes | str) -> bool:
    return msgspec.json.decode(policy, type=QueuePolicy).ordering is Ordering.PARTITION


def live_in_narrow(observer: Observer) -> int:
    """The number of live deliveries in ``narrow``."""
    return observer.ask(_LIVE.format(TENANTS[0], NARROW))
