"""Archiving: what was published is what the lake has, for whoever reads it (A1, P3)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock import NewMessage
from penstock.broker import Broker
from penstock.errors import BadInput, OffsetsGone
from penstock.pipeline.format.schemas import spark_schema
from penstock.pipeline.jobs.archive import archive
from penstock.pipeline.lake import archive as archiving
from penstock.pipeline.lake import checks, compaction, schemas
from penstock.pipeline.lake.archive import Archiver
from penstock.pipeline.lake.commits import Table
from penstock.pipeline.lake.files import LocalFiles
from penstock.pipeline.lake.reader import read_lake
from penstock.testing.laws import law
from tests.databases import store_url
from tests.pipeline.hosted import HOUR_MS, Hosted
from tests.pipeline.jobs import run
from tests.pipeline.lakes import archived, data_files, lake_of, left_over, log, messages

DAY_MS = 24 * HOUR_MS


def settled_through(server: Hosted) -> int:
    """What the engine was told to be archived."""
    engine: object = server.broker.engine
    return int(engine._core.log.tenants["default"].archived)  # type: ignore[attr-defined]


def ack_all(server: Hosted, queue: str) -> None:
    receipts = server.claim(queue, 100)

    async def ack(broker: Broker) -> None:
        for delivery in receipts:
            await broker.ack(delivery)

    server.ask(ack)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "a lake"


def test_every_value_is_archived_as_it_was_published(
    server: Hosted, spark: SparkSession, lake: Path
) -> None:
    now = server.clock.now()
    headers = {"n": 2**53 + 1, "x": -0.5, "text": "naïve ☃ 😀", "yes": True, "empty": ""}
    server.publish(
        "007",
        NewMessage(
            "☃ 😀".encode(),
            headers,  # type: ignore[arg-type]
            key="schlüssel",
            partition_key="p",
            priority=9,
            content_type="text/plain",
            deliver_at=now + 12_345,
            expires_at=now + DAY_MS,
            max_attempts=3,
        ),
        NewMessage(b""),
    )
    server.publish("1e3", NewMessage(bytes(range(256)) * 10, key="k"), b"x")
    server.publish("1e3", NewMessage(b"replaced", key="k"))
    server.advance(DAY_MS)
    server.publish("007", b"tomorrow")
    summary = run(server, spark, archive, lake=lake)

    assert archived(spark, lake) == log(server)
    assert (summary["entries"], summary["through"], summary["payload_bytes"]) == (6, 6, 2585)
    assert summary["file_bytes"] == sum(file.bytes for file in lake_of(lake).of("messages"))
    assert settled_through(server) == 5
    rows = messages(spark, lake)
    first = rows[0]
    assert (first["key"], first["partition_key"], first["priority"]) == ("schlüssel", "p", 9)
    assert (first["max_attempts"], rows[1]["max_attempts"]) == (3, None)
    assert first["headers"]["n"] == {"s": None, "i": 2**53 + 1, "d": None, "b": None}
    assert first["headers"]["text"]["s"] == "naïve ☃ 😀"
    assert {name: value for name, value in first["headers"].items() if value["b"]} == {
        "yes": {"s": None, "i": None, "d": None, "b": True}
    }
    assert first["deliver_at"] == datetime.fromtimestamp((now + 12_345) / 1000, UTC).replace(
        tzinfo=None
    )
    assert (rows[1]["headers"], rows[1]["key"], bytes(rows[1]["value"])) == ({}, None, b"")
    # A replacement is an entry of its own, of the same message.
    assert (rows[4]["offset"], rows[4]["id"]) == (4, rows[2]["id"])
    today = datetime.fromtimestamp(now / 1000, UTC).date()
    assert {(row["date"], row["topic"]) for row in rows} == {
        (today, "007"),
        (today, "1e3"),
        (date.fromordinal(today.toordinal() + 1), "007"),
    }
    assert data_files(lake) == sorted(lake_of(lake).files)

    again = run(server, spark, archive, lake=lake, run="run-2")
    assert (again["entries"], again["files"], again["transitions"]) == (0, 0, 0)
    assert archived(spark, lake) == log(server)


def test_history_follows_what_happens(server: Hosted, spark: SparkSession, lake: Path) -> None:
    server.ask(lambda q: q.create_queue("q", "TRUE", done_retention_s=3600))
    server.publish("t", *[b"%d" % n for n in range(6)])
    run(server, spark, archive, lake=lake)
    first = server.claim("q", 2)
    server.ask(lambda q: q.ack(first[0]))
    server.ask(lambda q: q.reject(first[1], "boom"))
    assert run(server, spark, archive, lake=lake, run="run-2")["transitions"] == 4

    def transitions(message: int) -> list[tuple[int, str, str | None]]:
        rows = read_lake(spark, LocalFiles(lake), "history").where(f"id = {message}")
        return [(row.seq, row.transition, row.state) for row in rows.orderBy("seq").collect()]

    assert transitions(0) == [
        (0, "publish", "available"),
        (1, "claim", "in_flight"),
        (2, "ack", "done"),
    ]
    assert transitions(1)[-1] == (2, "reject", "failed")
    ack_all(server, "q")
    # The store forgets what is done; the lake has it, and keeps it.
    server.advance(2 * HOUR_MS)
    assert server.ask(lambda q: q.sweep()).removed == 5
    run(server, spark, archive, lake=lake, run="run-3")
    assert transitions(0)[-1] == (2, "ack", "done")
    server.ask(lambda q: q.replay("q", "failed"))
    run(server, spark, archive, lake=lake, run="run-4")
    assert transitions(1)[-1] == (3, "replay", "available")
    assert [block.settled for block in lake_of(lake).blocks] == [False]
    # Nothing of it is in the store any more.
    ack_all(server, "q")
    run(server, spark, archive, lake=lake, run="run-5")
    server.forget()
    run(server, spark, archive, lake=lake, run="run-6")
    assert lake_of(lake).blocks[0].settled
    assert transitions(1)[-1] == (5, "ack", "done")


def test_files_are_bounded_and_compaction_keeps_what_is_in_them(
    server: Hosted, spark: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "FILE_BYTES", 10_000)
    monkeypatch.setattr(archiving, "STEP_BYTES", 60_000)
    server.publish("t", *[bytes([n % 256]) * 1_000 for n in range(100)])
    run(server, spark, archive, lake=lake, history=False, compaction=False)
    files = lake_of(lake).of("messages")
    assert sum(file.payload_bytes for file in files) == 100_000
    assert max(file.payload_bytes for file in files) <= 10_000
    assert len(lake_of(lake).blocks) >= 2
    before = archived(spark, lake)
    assert before == log(server)

    fewer = run(server, spark, archive, lake=lake, run="run-2", history=False)["files_compacted"]
    assert fewer == len(files) - 1 >= 7
    assert archived(spark, lake) == before
    assert left_over(lake) == []


def test_a_store_whose_offsets_have_gaps(spark: SparkSession, lake: Path) -> None:
    server = Hosted(store_url("postgresql")).start()
    try:
        for size in (1, 30, 2):
            server.publish("t", *[b"%d" % n for n in range(size)])
        run(server, spark, archive, lake=lake, history=False)
        assert archived(spark, lake) == log(server)
        # The gap after what was archived is none.
        server.forget()
        server.publish("t", b"later")
        summary = run(server, spark, archive, lake=lake, run="run-2", history=False)
        assert [row[3] for row in archived(spark, lake)][-1] == b"later"
        assert summary["entries"] == lake_of(lake).blocks[-1].entries
    finally:
        server.stop()


def test_what_retention_took_first_is_said_or_left_out(
    server: Hosted, spark: SparkSession, lake: Path
) -> None:
    server.publish("t", b"archived")
    run(server, spark, archive, lake=lake, history=False)
    server.ask(lambda q: q.delete_queue("t"))
    server.advance(2 * HOUR_MS)
    server.publish("other", b"lost")
    server.ask(lambda q: q.delete_queue("other"))
    server.advance(2 * HOUR_MS)
    server.forget()
    with pytest.raises(OffsetsGone, match="skip-missing"):
        run(server, spark, archive, lake=lake, run="run-2", history=False)
    run(server, spark, archive, lake=lake, run="run-3", history=False, skip_missing=True)
    assert list(lake_of(lake).gaps()) == [(1, 2)]
    assert archived(spark, lake)[1:] == log(server)


def test_an_empty_log_makes_an_empty_lake(server: Hosted, spark: SparkSession, lake: Path) -> None:
    assert run(server, spark, archive, lake=lake)["through"] == 0
    assert messages(spark, lake) == []
    assert data_files(lake) == []


@law("E1")
def test_bad_options(server: Hosted, spark: SparkSession, lake: Path) -> None:
    with pytest.raises(BadInput):
        run(server, spark, archive)
    with pytest.raises(BadInput):
        run(server, spark, archive, lake=lake, step=0)
    assert not lake.exists()


def test_small_topics_share_files(server: Hosted, spark: SparkSession, lake: Path) -> None:
    for archive_number in range(3):
        for number in range(300):
            server.publish(f"topic-{number:03}", b"x" * 100)
        run(server, spark, archive, lake=lake, run=f"run-{archive_number}", history=False)
    files = lake_of(lake).of("messages")
    # A file per topic and archive were 900, with 236 times the payload.
    assert [(file.rows, file.topics) for file in files] == [(300, ("topic-000", "topic-299"))] * 3
    assert sum(file.bytes for file in files) < 900 * 100
    assert archived(spark, lake) == log(server)


def test_two_passes_of_a_continuous_run(
    server: Hosted, spark: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Histories of one block are replaced by the same run more than once."""
    from penstock.pipeline.context import JobContext, JobOptions
    from penstock.pipeline.lake.histories import archive_histories
    from penstock.pipeline.remote import Server

    server.publish("t", b"x", b"y")
    context = JobContext(
        JobOptions(server=Server(server.url), lake=str(lake), continuous=True),
        run="r",
        job="archive",
        spark=spark,
        clock=server.clock,
    )
    try:
        archiver = Archiver(context)
        archiver.begin()
        archiver.archive()
        server.publish("t", b"z")
        archiver.archive()
        assert archive_histories(archiver).histories == 3
        for _ in range(2):
            server.claim("t")
            server.advance(HOUR_MS)
            assert archive_histories(archiver).histories >= 1
        assert archive_histories(archiver).histories == 0
        monkeypatch.setattr(compaction, "FEWEST", 2)
        assert compaction.compact(archiver, "messages") == 1
    finally:
        context.close()
    assert archived(spark, lake) == log(server)
    assert left_over(lake) == []


def earlier_hash(table: Table) -> Column:
    """The hash of rows before messages had max_attempts."""
    names = checks._COLUMNS[table]
    there = F.concat(*[F.when(F.col(name).isNull(), "n").otherwise("v") for name in names])
    more = [F.map_entries("headers")] if table == "messages" else []
    return F.xxhash64(there, *[F.col(name) for name in names], *more)


@contextmanager
def earlier_version() -> Iterator[None]:
    """Write lakes as the version did that had no column max_attempts."""
    schema = schemas.ARROW_SCHEMAS["messages"]
    earlier = pa.schema([field for field in schema if field.name != "max_attempts"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(schemas.ARROW_SCHEMAS, "messages", earlier)
        patch.setitem(schemas.SCHEMAS, "messages", spark_schema(earlier))
        patch.setattr(checks, "row_hash", earlier_hash)
        yield


@law("A1")
def test_a_lake_without_a_newer_column_is_continued(
    server: Hosted, spark: SparkSession, lake: Path
) -> None:
    run_archive = partial(run, server, spark, archive, lake=lake)
    with earlier_version():
        server.publish("orders", NewMessage(b"old", {"n": 1}))
        run_archive()
        assert "max_attempts" not in read_lake(spark, LocalFiles(lake)).columns
    assert [row["max_attempts"] for row in messages(spark, lake)] == [None]
    server.publish("orders", NewMessage(b"new", {"n": 2}, max_attempts=3), NewMessage(b"plain"))
    run_archive(run="run-2")
    assert archived(spark, lake) == log(server)
    assert [row["max_attempts"] for row in messages(spark, lake)] == [None, 3, None]
    # The digests of the earlier files still hold.
    files = lake_of(lake).of("messages")
    assert len(files) == 2
    assert checks.damaged(spark, LocalFiles(lake), files) == []
    found = DeltaTable(lake / "messages").to_pyarrow_table().sort_by("offset")
    assert found.column("max_attempts").to_pylist() == [None, 3, None]
