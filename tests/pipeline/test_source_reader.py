"""Spark reads a store on an object store from a server that only reads, without its writer."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import NewMessage, Reject
from penstock.errors import NotWriter
from tests.pipeline.hosted import Hosted


def test_log_and_deliveries_come_from_a_reader(spark: SparkSession, tmp_path: Path) -> None:
    store = f"slatedb+file://{tmp_path}/store"
    writer = Hosted(store).start()
    reader = Hosted(f"{store}?reader=true")
    try:
        writer.ask(lambda q: q.create_queue("q", "TRUE"))
        writer.publish("t", *(NewMessage(b"%d" % n, priority=n % 10) for n in range(100)))
        (first,) = writer.claim("q")
        writer.ask(lambda q: q.settle("q", [Reject("boom", receipt=first.receipt)]))
        reader.start()
        load = spark.read.format("penstock").options(**reader.options(entriesPerPartition=40)).load
        assert sorted(int(row.value) for row in load().collect()) == list(range(100))
        failed = spark.read.format("penstock").options(**reader.options(table="failed")).load()
        assert [(row.queue, row.error) for row in failed.collect()] == [("q", "boom")]
        # Nothing was asked of the writer's server, and the reader changes nothing.
        assert writer.host.requests == []
        assert reader.ask(lambda q: q.stats("q")).available == 99
        assert len(reader.ask(lambda q: q.peek("q", limit=200)).items) == 99
        with pytest.raises(NotWriter):
            reader.publish("t", b"refused")
    finally:
        if hasattr(reader, "broker"):
            reader.stop()
        writer.stop()
