"""A store with a million deliveries waiting in it, and what the statements are asked there.

The rows are written by SQL, each as if it had been published alone: one member a run. Queue 1
has a million waiting, a few in every other phase, and two hundred thousand done; queue 2 is an
ordered one; queue 3 stands for a thousand others, and queue 4 was deleted. Every list of
arguments has a hundred members at most, and no statement asks for more than a hundred rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

__all__ = ["COLUMNS", "LOAD", "WAITING", "WRITE", "WRITE_UNHELD", "arguments"]

WAITING: Final = 1_000_000
DONE: Final = 200_000
#: Runs in each of the other phases of the first queue.
FEW: Final = 500
#: Deliveries waiting in the ordered queue, its partitions, and how many of the first a segment has.
ORDERED: Final = 50_000
PARTITIONS: Final = 100
TOGETHER: Final = 1_000
SEGMENTS: Final = 100_000
IDS: Final = 100_000
#: Rows of the tally that the first queue has of each number, between two sweeps.
TALLIES: Final = 100
NOW: Final = 1_800_000_000_000
#: What stands in MySQL for no time at all.
NEVER: Final = (1 << 63) - 1
#: As many as one call asks for.
_SOME: Final = 100

_MIDDLE: Final = (SEGMENTS // 2) << 14
#: By the name of a parameter, what it is given; a statement's own come first.
_COMMON: Final[dict[str, Any]] = {
    "after": SEGMENTS // 2,
    "before": NOW,
    "consumer": "c1",
    "consumers": ["c1"],
    "dead": False,
    "entries": _SOME,
    "deadline": NOW,
    "first": SEGMENTS // 2,
    "floors": [0] * 10,
    "holder": 7,
    "id": b"00000001",
    "ids": [b"%08d" % n for n in range(_SOME)],
    "in_flight": 3,
    "index": 5,
    "kind": 0,
    "kinds": [0, 1, 2, 3],
    "key": b"00000001",
    "keys": [b"%08d" % n for n in range(_SOME)],
    "last": SEGMENTS,
    "last_rank": 9,
    "messages": [(n << 14) | 3 for n in range(1000, 1000 + _SOME)],
    "most": _SOME,
    "moved": True,
    "name": "c1",
    "names": ["c1", "c2"],
    "now": NOW,
    "number": 3,
    "numbers": list(range(1000, 1000 + _SOME)),
    "partitions": [b"p%03d" % n for n in range(20)],
    "phase": 0,
    "phases": [0, 1, 2, 3],
    "row_key": _MIDDLE,
    "row_keys": [(n << 14) | 3 for n in range(1000, 1000 + _SOME)],
    "published_at": 0,
    "queue": 1,
    "queues": [1],
    "rank": 5,
    "replay_id": "r",
    "segment": SEGMENTS - 10,
    "segments": list(range(1000, 1000 + _SOME)),
    "tenant": 1,
    "topic": "t",
    "until": NOW + 60_000,
    "window": 60_000,
}
_OWN: Final[dict[str, dict[str, Any]]] = {
    "delayed_failures": {"row_key": 0},
    "forget_owners": {"queue": 2},
    "list_partitions": {"queue": 2},
    "lock_partition_tallies": {"queue": 2},
    "lock_tallies": {"kind": 3},
    "next_deadline": {"queue": 2},
    "partition_first_groups": {"queue": 2},
    "partition_groups": {"queue": 2, "most": 5},
    "partition_stats": {"queue": 2},
    "partition_tally_sizes": {"queues": [2]},
    "partitions_in_flight": {"queue": 2},
    "remove_dropped_partition_tallies": {"queue": 4},
    "remove_dropped_partitions": {"queue": 4},
    "remove_dropped_groups": {"queue": 4},
    "remove_dropped_tallies": {"queue": 4},
    "remove_ended_partitions": {"queue": 2},
    "remove_partition_tallies": {"queue": 2, "numbers": list(range(1, _SOME + 1))},
    "remove_tallies": {"kind": 3, "numbers": list(range(_SOME + 1, 2 * _SOME + 1))},
    "stray_segments": {"queue": 2, "first": SEGMENTS - 10},
}

#: By statement, the columns of the rows that it writes.
_RUNS: Final = (
    *([1] * _SOME, [3] * _SOME, [5] * _SOME, [(1 << 50) + n for n in range(_SOME)]),
    *([1000] * _SOME, [1] * _SOME, [NOW + 60_000] * _SOME, [None] * _SOME, ["c1"] * _SOME),
    *([b"\x03\x00"] * _SOME, [b"life"] * _SOME),
)
_COUNTS: Final = ([1] * 3, [1, 3, 4], [-100, 0, 100])
_PARTITION_COUNTS: Final = ([2] * 20, _COMMON["partitions"], [-5] * 20)
_NEW_IDS: Final = (
    *([1] * _SOME, [0] * _SOME, ["t"] * _SOME, _COMMON["ids"]),
    *([NOW] * _SOME, [NOW] * _SOME, [7] * _SOME),
)
_SEGMENTS: Final = ([1] * 10, [NOW] * 10, [1] * 10, [b"heads"] * 10, [b"payloads"] * 10)
_GONE: Final = ([1] * _SOME, [0] * _SOME, [5] * _SOME, _COMMON["row_keys"])
_HELD: Final = (*_GONE, [1] * _SOME, [b"\x03\x00"] * _SOME, [b"life"] * _SOME)
#: What PostgreSQL writes at once: the tenant, that it publishes, the version that it expects;
#: segments, runs that are held, places of runs that go, runs, counts, counts by partition.
WRITE: Final = (
    *(1, True, 1, *_SEGMENTS[1][:1], *_SEGMENTS[2:], *_HELD),
    *(*_GONE, *_RUNS, 0, *_COUNTS, *_PARTITION_COUNTS),
)
#: The same for whoever has them locked already.
WRITE_UNHELD: Final = (
    *(1, False, None, *_SEGMENTS[1][:1], *_SEGMENTS[2:], *[None] * 7),
    *(*_GONE, *_RUNS, 0, *_COUNTS, *_PARTITION_COUNTS),
)
#: What a plain publish writes: the tenant, the version it expects, segments, runs of the first.
PUBLISH: Final = (
    *(1, 1, *_SEGMENTS[1][:1], *_SEGMENTS[2:]),
    *([1] * _SOME, [1] * _SOME, [5] * _SOME, list(range(_SOME)), [1] * _SOME, [b"p001"] * _SOME),
    *([b"\x03\x00"] * _SOME, [b"life"] * _SOME),
)
#: What a claim writes that has not read the first groups, and what it assumes about them.
_WRITE_FIRST: Final = (*WRITE_UNHELD, 1, [0, 1], [0] * 10, 5, _MIDDLE, 3)

COLUMNS: Final[dict[str, tuple[Any, ...]]] = {
    "add_to_partitions": _PARTITION_COUNTS,
    "append": _SEGMENTS,
    "claim_ids": _NEW_IDS,
    "count": _COUNTS,
    "count_partitions": _PARTITION_COUNTS,
    "open_keys": ([1] * _SOME, ["new"] * _SOME, _COMMON["keys"], _COMMON["messages"]),
    "put_ids": (*_NEW_IDS, [8] * _SOME, [8] * _SOME, [None] * _SOME),
    "put_keys": ([1] * _SOME, ["t"] * _SOME, _COMMON["keys"], _COMMON["messages"]),
    "put_newest": (_COMMON["messages"], [1] * _SOME, _COMMON["row_keys"]),
    "put_owners": ([3] * 20, _COMMON["partitions"], ["c1"] * 20, [1] * 20),
    "put_replayed": ([3] * _SOME, [False] * _SOME, ["r"] * _SOME, _COMMON["messages"]),
    "insert_groups": _RUNS,
    "replace_groups": _RUNS,
    "write_first": _WRITE_FIRST,
}


def arguments(statement: str, names: Sequence[str]) -> dict[str, Any]:
    """What the statement is asked with, by the names of its parameters."""
    given = {**_COMMON, **_OWN.get(statement, {})}
    return {name: given[name] for name in names}


#: By dialect, the statements that fill an empty store.
LOAD: Final = {
    "postgresql": f"""
        ALTER TABLE penstock_run SET (autovacuum_enabled = false);
        INSERT INTO penstock_tenant (name) VALUES ('t');
        INSERT INTO penstock_queue (tenant, name, policy, created_at)
        SELECT 1, 'q' || i, '', 0 FROM generate_series(1, 3) AS i;
        INSERT INTO penstock_dropped VALUES (4, 0);
        INSERT INTO penstock_log (tenant, published_at, entries, metadata, payloads)
        SELECT 1, {NOW} - {SEGMENTS} + i, 10, 'heads', 'payloads'
        FROM generate_series(1, {SEGMENTS}) AS i;
        -- Fresh ones, every other one with a time to live.
        INSERT INTO penstock_run
        SELECT 1, 0, 5, ((i / 10 + 1)::bigint << 14) + i % 10, i / 10 + 1, 1,
            CASE WHEN i % 2 = 0 THEN {NOW} + i END, NULL, NULL, '\\x0300', 'life'
        FROM generate_series(0, {WAITING} - 1) AS i;
        -- Done a while ago.
        INSERT INTO penstock_run
        SELECT 1, 4, 5, ((i / 10 + 1)::bigint << 14) + i % 10, i / 10 + 1, 1,
            {NOW} + i, NULL, NULL, '\\x0300', 'life'
        FROM generate_series(0, {DONE} - 1) AS i;
        -- A few in every other phase.
        INSERT INTO penstock_run
        SELECT 1, phase, 5, ((i + 1)::bigint << 14) + 11, i + 1, 1,
            CASE WHEN phase <> 1 THEN {NOW} + i - 50 END, NULL, 'c' || i % 10, '\\x0300', 'life'
        FROM unnest('{{1, 2, 3, 5, 11, 12, 13, 14}}'::integer[]) AS phase,
            generate_series(0, {FEW} - 1) AS i;
        -- An ordered queue.
        INSERT INTO penstock_run
        SELECT 2, CASE WHEN i < 200 THEN 3 WHEN i < 400 THEN 2 ELSE 0 END, 5,
            ((i / {TOGETHER} + 1)::bigint << 14) + i % {TOGETHER}, i / {TOGETHER} + 1, 1,
            CASE WHEN i < 400 THEN {NOW} + i END,
            convert_to('p' || lpad((i % {PARTITIONS})::text, 3, '0'), 'UTF8'),
            CASE WHEN i < 200 THEN 'c1' END, '\\x0300', 'life'
        FROM generate_series(0, {ORDERED} - 1) AS i;
        INSERT INTO penstock_owner
        SELECT 2, convert_to('p' || lpad(i::text, 3, '0'), 'UTF8'), 'c' || i % 5, i
        FROM generate_series(0, {PARTITIONS} - 1) AS i;
        INSERT INTO penstock_consumer SELECT 2, 'c' || i, {NOW} + i FROM generate_series(0, 4) AS i;
        -- What is left of a queue that was deleted.
        INSERT INTO penstock_run
        SELECT 4, 4, 5, ((i + 1)::bigint << 14) + 12, i + 1, 1, {NOW}, NULL, NULL, '\\x0300', 'life'
        FROM generate_series(0, 9999) AS i;
        INSERT INTO penstock_tally (queue, kind, delta)
        SELECT 1, kind, 1
        FROM unnest('{{1, 3, 4, 100, 101}}'::integer[]) AS kind, generate_series(1, {TALLIES});
        INSERT INTO penstock_tally (queue, kind, delta)
        SELECT 3 + i % 1000, i % 5, 1 FROM generate_series(1, 100000) AS i;
        INSERT INTO penstock_partition
        SELECT 2, convert_to('p' || lpad(i::text, 3, '0'), 'UTF8'), {ORDERED} / {PARTITIONS}
        FROM generate_series(0, {PARTITIONS} - 1) AS i;
        INSERT INTO penstock_partition
        SELECT 3 + i % 1000, convert_to('p' || i, 'UTF8'), 1 FROM generate_series(1, 100000) AS i;
        INSERT INTO penstock_partition_tally (queue, partition_key, delta)
        SELECT 2, convert_to('p' || lpad((i % {PARTITIONS})::text, 3, '0'), 'UTF8'), i % 3 - 1
        FROM generate_series(1, {TALLIES}) AS i;
        INSERT INTO penstock_partition_tally (queue, partition_key, delta)
        SELECT 3 + i % 1000, convert_to('p' || i, 'UTF8'), 1 FROM generate_series(1, 100000) AS i;
        INSERT INTO penstock_id (tenant, kind, topic, id, at, until, token, message, entry)
        SELECT 1, 0, 't', convert_to(lpad(i::text, 8, '0'), 'UTF8'), 0, {NOW} + i - 500, 1, i, i
        FROM generate_series(0, {IDS} - 1) AS i;
        INSERT INTO penstock_key
        SELECT 1, 't', convert_to(lpad(i::text, 8, '0'), 'UTF8'), (i::bigint << 14) + 3
        FROM generate_series(0, {IDS} - 1) AS i;
        INSERT INTO penstock_newest
        SELECT (i::bigint << 14) + 3, 1, (i::bigint << 14) + 4
        FROM generate_series(0, {IDS} - 1) AS i;
        INSERT INTO penstock_replayed
        SELECT 1, false, 'r', (i::bigint << 14) + 3 FROM generate_series(0, {IDS} - 1) AS i
    """,
    "mysql": f"""
        INSERT INTO penstock_tenant (name) VALUES ('t');
        INSERT INTO penstock_queue (tenant, name, policy, created_at)
        SELECT 1, concat('q', seq), '', 0 FROM seq_1_to_3;
        INSERT INTO penstock_dropped VALUES (4, 0);
        INSERT INTO penstock_log (tenant, published_at, entries, metadata, payloads)
        SELECT 1, {NOW} - {SEGMENTS} + seq, 10, 'heads', 'payloads' FROM seq_1_to_{SEGMENTS};
        INSERT INTO penstock_run
        SELECT 1, 0, 5, ((seq DIV 10 + 1) << 14) + seq MOD 10, seq DIV 10 + 1, 1,
            IF(seq MOD 2 = 0, {NOW} + seq, {NEVER}), NULL, NULL, x'0300', 'life'
        FROM seq_0_to_{WAITING - 1};
        INSERT INTO penstock_run
        SELECT 1, 4, 5, ((seq DIV 10 + 1) << 14) + seq MOD 10, seq DIV 10 + 1, 1,
            {NOW} + seq, NULL, NULL, x'0300', 'life'
        FROM seq_0_to_{DONE - 1};
        INSERT INTO penstock_run
        SELECT 1, phases.seq, 5, ((i.seq + 1) << 14) + 11, i.seq + 1, 1,
            IF(phases.seq <> 1, {NOW} + i.seq - 50, {NEVER}), NULL, concat('c', i.seq MOD 10),
            x'0300', 'life'
        FROM seq_1_to_14 AS phases JOIN seq_0_to_{FEW - 1} AS i
        WHERE phases.seq IN (1, 2, 3, 5, 11, 12, 13, 14);
        INSERT INTO penstock_run
        SELECT 2, IF(seq < 200, 3, IF(seq < 400, 2, 0)), 5,
            ((seq DIV {TOGETHER} + 1) << 14) + seq MOD {TOGETHER}, seq DIV {TOGETHER} + 1, 1,
            IF(seq < 400, {NOW} + seq, {NEVER}), concat('p', lpad(seq MOD {PARTITIONS}, 3, '0')),
            IF(seq < 200, 'c1', NULL), x'0300', 'life'
        FROM seq_0_to_{ORDERED - 1};
        INSERT INTO penstock_owner
        SELECT 2, concat('p', lpad(seq, 3, '0')), concat('c', seq MOD 5), seq
        FROM seq_0_to_{PARTITIONS - 1};
        INSERT INTO penstock_consumer SELECT 2, concat('c', seq), {NOW} + seq FROM seq_0_to_4;
        INSERT INTO penstock_run
        SELECT 4, 4, 5, ((seq + 1) << 14) + 12, seq + 1, 1, {NOW}, NULL, NULL, x'0300', 'life'
        FROM seq_0_to_9999;
        INSERT INTO penstock_tally (queue, kind, delta)
        SELECT 1, kinds.seq, 1 FROM seq_1_to_101 AS kinds JOIN seq_1_to_{TALLIES} AS i
        WHERE kinds.seq IN (1, 3, 4, 100, 101) ORDER BY kinds.seq;
        INSERT INTO penstock_tally (queue, kind, delta)
        SELECT 3 + seq MOD 1000, seq MOD 5, 1 FROM seq_1_to_100000;
        INSERT INTO penstock_partition
        SELECT 2, concat('p', lpad(seq, 3, '0')), {ORDERED // PARTITIONS}
        FROM seq_0_to_{PARTITIONS - 1};
        INSERT INTO penstock_partition
        SELECT 3 + seq MOD 1000, concat('p', seq), 1 FROM seq_1_to_100000;
        INSERT INTO penstock_partition_tally (queue, partition_key, delta)
        SELECT 2, concat('p', lpad(seq MOD {PARTITIONS}, 3, '0')), cast(seq MOD 3 AS SIGNED) - 1
        FROM seq_1_to_{TALLIES};
        INSERT INTO penstock_partition_tally (queue, partition_key, delta)
        SELECT 3 + seq MOD 1000, concat('p', seq), 1 FROM seq_1_to_100000;
        INSERT INTO penstock_id (tenant, kind, topic, id, at, until, token, message, entry)
        SELECT 1, 0, 't', lpad(seq, 8, '0'), 0, {NOW} + seq - 500, 1, seq, seq
        FROM seq_0_to_{IDS - 1};
        INSERT INTO penstock_key
        SELECT 1, 't', lpad(seq, 8, '0'), (seq << 14) + 3 FROM seq_0_to_{IDS - 1};
        INSERT INTO penstock_newest
        SELECT (seq << 14) + 3, 1, (seq << 14) + 4 FROM seq_0_to_{IDS - 1};
        INSERT INTO penstock_replayed
        SELECT 1, 0, 'r', (seq << 14) + 3 FROM seq_0_to_{IDS - 1}
    """,
}
