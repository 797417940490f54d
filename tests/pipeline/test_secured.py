"""A server with TLS and keys, as Spark sees it: options reach every process that connects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.service.certificates import Pair, self_signed
from tests.service.serving import Serve, Served

ROWS = 3_000


class Secured:
    """A server that takes only callers with a certificate and a key, and has one of its own."""

    def __init__(self, served: Served, ca: Path, client: Pair) -> None:
        self.options = {
            "url": served.url,
            "credential": str(served.told["key"]),
            "ca": str(ca),
            "cert": str(client.cert),
            "certKey": str(client.key),
        }
        self.served = served


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    serve = Serve(tmp_path)
    pair, client = self_signed(tmp_path), self_signed(tmp_path, "spark")
    tls = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    try:
        served = serve("--auth", *tls, "--tls-client-ca", str(client.cert))
        yield Secured(served, pair.cert, client)
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
        ({"cert": None, "certKey": None}, "certificate|Unreachable"),
        ({"cert": "/nowhere.crt"}, "nowhere.crt"),
        ({"cert": None}, "key of cert"),
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


def test_jobs_and_flows_send_the_certificate(secured: Secured, tmp_path: Path) -> None:
    given = secured.options
    flags = ("--ca", given["ca"], "--cert", given["cert"], "--cert-key", given["certKey"])
    server = ("--url", given["url"], "--credential", given["credential"], *flags)
    (tmp_path / "orders.jsonl").write_text('{"order": 1}\n{"order": 2}\n')
    ingested = _penstock("pipeline", "ingest", str(tmp_path / "orders.jsonl"), "orders", *server)
    assert json.loads(ingested)["published"] == 2
    # The options of a context are the same ones.
    home = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    (tmp_path / "key").write_text(given["credential"])
    credential = ("--credential-file", str(tmp_path / "key"))
    _penstock("context", "add", "prod", given["url"], *credential, *flags, **home)
    verified = _penstock("pipeline", "verify", "--context", "prod", **home)
    assert json.loads(verified)["violations"] == 0


def _penstock(*arguments: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments, "--json"],
        env=os.environ | environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=240,
    ).stdout
