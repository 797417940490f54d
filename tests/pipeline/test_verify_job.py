"""The job ``verify``: it finds what is wrong, and nothing where nothing is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from penstock import NewMessage
from penstock.model.delivery import Snapshot
from penstock.model.states import State
from penstock.pipeline.context import JobContext
from penstock.pipeline.jobs import verify as job
from penstock.pipeline.jobs.archive import archive
from penstock.pipeline.jobs.verify import verify
from penstock.pipeline.lake.audit import check_histories
from penstock.pipeline.lake.checks import wrong_payloads
from penstock.pipeline.lake.files import LocalFiles
from penstock.pipeline.lake.manifest import Manifest
from penstock.pipeline.tables import read_table
from tests.pipeline.hosted import Hosted
from tests.pipeline.jobs import run
from tests.pipeline.lakes import lake_of


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def busy(server: Hosted) -> Hosted:
    """Deliveries in most states, a replaced message, a message that makes its own queue."""
    server.ask(lambda q: q.create_queue("q", "topic = 't'", max_attempts=2))
    server.ask(lambda q: q.create_queue("all", "topic <> 'nobody'"))
    server.publish("t", *(NewMessage(b"%d" % n, {"n": n}) for n in range(8)))
    server.publish("t", NewMessage(b"later", delay_ms=1000), NewMessage(b"old", key="k"))
    server.publish("t", NewMessage(b"new", key="k"))
    server.publish("nobody", b"x")
    held = server.claim("q", 4)
    server.ask(lambda q: q.ack(held[0]))
    server.ask(lambda q: q.reject(held[1], "boom"))
    server.ask(lambda q: q.nack(held[2], "again", delay_ms=0))
    server.advance(1_000)
    server.claim("q", 1)
    return server


def test_nothing_is_found_where_nothing_is_wrong(
    busy: Hosted, spark: SparkSession, lake: Path
) -> None:
    run(busy, spark, archive, lake=lake)
    summary = run(busy, spark, verify, lake=lake, run="run-2")
    assert summary["violations"] == summary["unresolved"] == 0, summary
    entries = busy.ask(lambda q: q.log_end())
    for name in ("copies", "offsets", "payloads"):
        assert summary[f"{name}_examined"] == entries == 12
    assert summary["states_examined"] == summary["references_examined"] == 21
    assert summary["files_examined"] == len(lake_of(lake).files)
    assert summary["histories_examined"] == sum(f.rows for f in lake_of(lake).of("history"))
    alone = run(busy, spark, verify, run="run-3")
    assert (alone["violations"], "files_examined" in alone) == (0, False)


def test_what_is_wrong_in_the_lake_is_found(busy: Hosted, spark: SparkSession, lake: Path) -> None:
    run(busy, spark, archive, lake=lake, step=11)
    others, nobody = lake_of(lake).of("messages")
    # Some entries are there twice by what a commit says.
    twice = replace(others, path=others.path.replace("/0-11-", "/0-12-"))
    shutil.copy(lake / others.path, lake / twice.path)
    manifest = Manifest(LocalFiles(lake))
    manifest.begin("x", 0, busy.ask(lambda q: q.identity()), lambda _: None)
    manifest.commit("compact", "x", 0, table="messages", added=[twice])
    (lake / nobody.path).unlink()
    summary = run(busy, spark, verify, lake=lake, run="run-2")
    assert (summary["files_violations"], summary["copies_violations"]) == (1, 1)
    assert summary["offsets_violations"] == others.rows + 1
    assert any(nobody.path in str(value) for value in summary.values())
    (record, *_) = busy.ask(lambda q: q.runs("verify"))
    assert record.state == "failed"
    assert record.summary["violations"] == summary["violations"]


def test_histories_of_nobody_are_found(spark: SparkSession) -> None:
    def ids(*numbers: int) -> Any:
        return spark.createDataFrame([(number,) for number in numbers], "id bigint")

    check = check_histories(ids(1, 1, 2, 3), ids(2), ids(1))
    assert (check.examined, check.violation_count) == (4, 1)
    assert check.violations[0].message_id == 3


def test_wrong_payloads_are_found(spark: SparkSession, busy: Hosted) -> None:
    from penstock.pipeline.remote import Server

    rows = read_table(spark, Server(busy.url), "log")
    assert wrong_payloads(rows).collect() == []
    changed = rows.selectExpr(
        "offset", "id", "size", "checksum", "if(offset = 2, X'00', value) AS value"
    )
    assert [row.offset for row in wrong_payloads(changed).collect()] == [2]


def test_suspects_are_looked_at_again(
    busy: Hosted, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(session: Any, server: Any, table: str, **options: Any) -> Any:
        rows = read_table(session, server, table, **options)
        if table == "deliveries":
            # One is seen in two states, as one that moves while it is read.
            again = rows.where("queue = 'q' AND state = 'done'").selectExpr(
                *["'in_flight' AS state" if c == "state" else c for c in rows.columns]
            )
            return rows.union(again)
        return rows

    monkeypatch.setattr(job, "read_table", read)
    summary = run(busy, spark, verify)
    assert (summary["violations"], summary["unresolved"]) == (0, 1)

    def places(context: JobContext, message_id: int, queue: str) -> list[Snapshot]:
        (place,) = found(context, message_id, queue)
        return [place, replace(place, state=State.IN_FLIGHT)]

    found = job._places
    monkeypatch.setattr(job, "_places", places)
    summary = run(busy, spark, verify, run="run-2")
    assert (summary["states_violations"], summary["unresolved"]) == (1, 0)
    assert "it is done and in_flight" in str(summary["violation_1"])
