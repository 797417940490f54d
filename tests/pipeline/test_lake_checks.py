"""Digests of rows: the same for the same rows however they lie, another for any other row."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.model.checksum import checksum
from penstock.pipeline.lake.checks import (
    Digest,
    corrupt,
    digest_of,
    examine_batches,
    lost,
    row_hash,
)
from penstock.pipeline.lake.commits import File
from penstock.pipeline.lake.schemas import SCHEMAS
from penstock.testing.laws import law

PAYLOADS = [b"", b"a", b"\x00" * 1000, b"b"]


def batch(files: list[str], payloads: list[bytes | None]) -> pa.RecordBatch:
    whole = [payload or b"" for payload in payloads]
    return pa.RecordBatch.from_pydict(
        {
            "file": files,
            "hash": pa.array([2**n for n in range(len(files))], pa.int64()),
            "number": pa.array(range(10, 10 + len(files)), pa.int64()),
            "size": pa.array([len(payload) for payload in whole], pa.int64()),
            "checksum": pa.array([checksum(payload) for payload in whole], pa.int64()),
            "value": pa.array(payloads, pa.binary()),
            "time": pa.array(range(1000, 1000 + len(files)), pa.int64()),
            "topic": [f"t{n}" for n in range(len(files))],
        }
    )


def examined(*batches: pa.RecordBatch) -> list[tuple[str | int | None, ...]]:
    return [tuple(row.values()) for out in examine_batches(batches) for row in out.to_pylist()]


def test_a_batch_is_added_up_file_by_file() -> None:
    assert examined(batch(["x", "y", "x", "y"], [*PAYLOADS])) == [
        ("x", 2, 0b101, 10, 12, 0, 1000, 1000, "t0", "t2", 1000, 1002),
        ("y", 2, 0b1010, 11, 13, 0, 2, 1, "t1", "t3", 1001, 1003),
    ]
    assert examined(batch(["x"] * 4, [*PAYLOADS])) == [
        ("x", 4, 0b1111, 10, 13, 0, 1002, 1000, "t0", "t3", 1000, 1003)
    ]
    without = batch(["x"] * 2, [b"", b""]).select(["file", "hash", "number", "time"])
    assert examined(without) == [("x", 2, 0b11, 10, 11, 0, 0, 0, None, None, 1000, 1001)]


@law("P3")
@pytest.mark.parametrize("wrong", [b"c", b"bb", b"", None])
def test_a_payload_that_is_another_is_seen(wrong: bytes | None) -> None:
    good = batch(["x"] * 4, [*PAYLOADS])
    values = pa.array([*PAYLOADS[:3], wrong], pa.binary())
    ((_, rows, _, _, _, found, *_),) = examined(good.set_column(5, "value", values))
    assert (rows, found) == (4, 1)


def test_digests_add_up_in_any_order() -> None:
    one, two = Digest(2, "F0", 5, 9, 10, 7), Digest(1, "FF", 2, 2, 3, 3)
    assert one + two == two + one == Digest(3, "F", 2, 9, 13, 7)
    assert one + Digest() == Digest() + one == one
    assert one.same(Digest(2, "F0", 5, 9))
    early = Digest(1, "F", 0, 0, topics=("a", "c"), times=(1, 5))
    late = Digest(1, "F", 0, 0, topics=("b", "d"), times=(4, 9))
    assert ((early + late).topics, (early + late).times) == (("a", "d"), (1, 9))
    assert (early + one).topics is None
    assert not one.same(Digest(2, "F1", 5, 9))
    assert not one.same(Digest(3, "F0", 5, 9))
    assert not one.same(Digest(2, "F0", 5, 9, wrong=1))


def header(value: str) -> str:
    others = "'d', double(null), 'b', boolean(null)"
    return f"map('h', named_struct('s', string(null), 'i', {value}, {others}))"


def test_any_other_value_is_another_digest(spark: SparkSession) -> None:
    fields = {
        "offset": "1L",
        "id": "1L",
        "key": "'k'",
        "value": "X'00'",
        "headers": header("1L"),
        "timestamp": "timestamp_millis(1)",
        "partition_key": "string(null)",
        "priority": "4",
        "content_type": "string(null)",
        "deliver_at": "timestamp_millis(1)",
        "expires_at": "timestamp(null)",
        "size": "1L",
        "checksum": "7L",
        "max_attempts": "int(null)",
        "date": "date'2026-01-01'",
        "topic": "'t'",
    }
    changes = {
        "offset": "2L",
        "id": "2L",
        "key": "'K'",
        "headers": header("2L"),
        "timestamp": "timestamp_millis(2)",
        "partition_key": "''",
        "priority": "5",
        "content_type": "''",
        "deliver_at": "timestamp_millis(2)",
        "expires_at": "timestamp_millis(1)",
        "size": "2L",
        "checksum": "8L",
        "max_attempts": "1",
        "topic": "'u'",
    }
    assert list(fields) == SCHEMAS["messages"].names

    def row(**changed: str) -> str:
        values = {**fields, **changed}
        return "SELECT " + ", ".join(f"{value} AS `{name}`" for name, value in values.items())

    rows = [row(), *(row(**{name: value}) for name, value in changes.items())]
    # What one field has is not what another has.
    rows.append(row(key="string(null)", partition_key="'k'"))
    frame = spark.sql(" UNION ALL ".join(rows))
    found = [hashed for (hashed,) in frame.select(row_hash("messages")).collect()]
    assert len(set(found)) == len(rows)
    # In any order, and twice is not once.
    low = 2**64 - 1
    both = digest_of(spark.sql(f"{rows[1]} UNION ALL {rows[0]}"), "messages")
    assert both.digest == f"{(found[0] ^ found[1]) & low:X}"
    assert digest_of(frame.where("false"), "messages") == Digest()


def test_files_are_named() -> None:
    files = [File(f"messages/{n}", "messages", 1, 10, n, n, "A") for n in range(3)]
    assert lost({"messages/0": 10, "messages/1": 9}, files) == ["messages/1", "messages/2"]
    error = corrupt([f"f{n}" for n in range(12)], "Gone")
    assert "Gone: f0, f1" in error.detail
    assert error.detail.endswith("f9 and 2 more.")
