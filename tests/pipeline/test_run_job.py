"""``run``: route, archive and report in one go, under one session."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from penstock import NewMessage
from penstock.pipeline.jobs import run as run_module
from tests.pipeline.hosted import Hosted
from tests.pipeline.jobs import run


def test_one_pass_of_each(server: Hosted, spark: SparkSession, tmp_path: Path) -> None:
    server.publish("orders", *[NewMessage(b"%d" % n, headers={"n": n}) for n in range(30)])
    server.ask(lambda q: q.create_queue("some", "n < 10", start="earliest"))
    lake = tmp_path / "lake"
    summary = run(server, spark, run_module.run, lake=lake)
    assert (summary["route_assigned"], summary["archive_entries"], summary["reports"]) == (
        10,
        30,
        1,
    )
    assert (lake / "reports" / "index.html").exists()
    (record,) = server.ask(lambda q: q.runs("run"))
    assert (record.state, record.report) == ("succeeded", str(lake / "reports" / "index.html"))
