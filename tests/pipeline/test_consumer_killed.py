"""A Spark program that consumes a queue and is killed after its sink has committed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.testing.laws import law
from tests.pipeline.consumer_program import start
from tests.pipeline.hosted import HOUR_MS, Hosted

#: A Spark of its own, on a machine with better things to do.
pytestmark = pytest.mark.slow
PATIENCE_S = 240


@law("S2")
def test_rows_reach_an_idempotent_sink_once(
    spark: SparkSession, server: Hosted, tmp_path: Path
) -> None:
    server.ask(lambda q: q.create_queue("q", "topic = 't'"))
    server.publish("t", *(b"%d" % n for n in range(300)))
    log = tmp_path / "log"
    with log.open("wb") as output:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.pipeline.consumer_program",
                server.url,
                tmp_path,
                "after",
            ],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            timeout=PATIENCE_S,
        )
    assert done.returncode == -signal.SIGKILL, log.read_text()
    assert len(list((tmp_path / "out").glob("*.json"))) == 1
    # Longer than the lease: all claims are lost.
    server.advance(HOUR_MS)
    server.publish("t", *(b"%d" % n for n in range(300, 400)))
    frame = spark.readStream.format("penstock").options(**server.options(queue="q")).load()
    for _ in range(2):
        start(frame, tmp_path).awaitTermination()
    found = [
        row for file in (tmp_path / "out").glob("*.json") for row in json.loads(file.read_text())
    ]
    assert Counter(found) == Counter(map(str, range(400)))
    stats = server.ask(lambda q: q.stats("q"))
    assert (stats.done, stats.lag) == (400, 0)
