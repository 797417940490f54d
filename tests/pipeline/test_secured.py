"""A server with TLS and keys, as Spark sees it: options reach every process that connects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.service.certificates import self_signed
from tests.service.serving import Serve, Served

ROWS = 3_000


class Secured:
    """A server that takes only whoever knows its certificate and has a key."""

    def __init__(self, served: Served, ca: Path) -> None:
        self.options = {
            "url": served.url,
            "credential": str(served.told["key"]),
            "ca": str(ca),
        }
        self.served = served


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    serve = Serve(tmp_path)
    pair = self_signed(tmp_path)
    try:
        yield Secured(
            serve("--auth", "--tls-cert", str(pair.cert), "--tls-key", str(pair.key)), pair.cert
        )
    finally:
        serve.end()


def test_what_is_written_is_read(spark: SparkSession, secured: Secured, tmp_path: Path) -> None:
    rows = spark.range(0, ROWS, 1, 2).selectExpr("concat('row ', id) AS value")
    rows.write.format("penstock").options(**secured.options, topic="t").mode("append").save()
    log = spark.read.format("penstock").options(**secured.options).load()
    assert log.selectExpr("cast(value AS string)").distinct().count() == ROWS
    stream = spark.readStream.format("penstock").options(**secured.options, payload=False).load()
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    assert query.awaitTermination(120)
    assert spark.read.parquet(str(tmp_path / "out")).count() == ROWS
    # What Spark and the server say never has the key in it.
    assert secured.options["credential"] not in secured.served.said()
    assert secured.options["credential"] not in log._jdf.queryExecution().toString()


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"credential": "psk_wrong"}, "Unauthenticated"),
        ({"ca": None}, "certificate"),
        ({"ca": "/nowhere.pem"}, "nowhere.pem"),
    ],
)
def test_who_is_not_let_in_is_told_before_a_job_starts(
    spark: SparkSession, secured: Secured, changed: dict[str, str | None], words: str
) -> None:
    options = {name: value for name, value in (secured.options | changed).items() if value}
    log = spark.read.format("penstock").options(**options).load()
    with pytest.raises(Exception, match=words) as raised:
        log.count()
    assert secured.options["credential"] not in str(raised.value)
