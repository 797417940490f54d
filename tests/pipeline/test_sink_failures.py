"""Tasks that are tried again and a query that is killed: every row is published once (P4)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock import NewMessage
from penstock.testing.laws import law
from tests.pipeline.hosted import Hosted
from tests.pipeline.sink_program import PADDING, ROWS, backwards, copy, source

#: Two Sparks, one after the other, on a machine with better things to do.
pytestmark = pytest.mark.slow
PATIENCE_S = 240

ROUND = [f"{number}{PADDING}".encode() for number in range(ROWS // 3)]


@contextmanager
def program(log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program with its Java and its Python workers, none of which outlives the test."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.sink_program", *arguments],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@law("P4")
def test_tasks_that_fail_half_way_and_are_tried_again(server: Hosted, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with program(log, "batch", server.url) as process:
        assert process.wait(PATIENCE_S) == 0, log.read_text()
    assert server.payloads("t") == Counter(dict.fromkeys(ROUND, 3))


@law("P4")
def test_a_query_that_is_killed_between_write_and_commit(
    spark: SparkSession, server: Hosted, tmp_path: Path
) -> None:
    rows = ROUND * 3
    for start in range(0, ROWS, ROWS // 2):
        server.publish("in", *(NewMessage(row) for row in rows[start : start + ROWS // 2]))
    log, checkpoint = tmp_path / "log", str(tmp_path / "checkpoint")
    with program(log, "stream", server.url, checkpoint) as process:
        until = time.monotonic() + PATIENCE_S
        # One partition is published as a whole, the other in part.
        while server.ask(lambda q: q.log_end()) < ROWS + ROWS // 2 + 4_000:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)
    assert not list(Path(checkpoint, "commits").glob("[0-9]*"))

    def turn(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from reversed([piece.take(backwards(piece)) for piece in batches])

    frame = spark.readStream.format("penstock").options(**source(server.url)).load()
    copy(frame.select("value").mapInArrow(turn, "value binary"), server.url, checkpoint)
    assert server.payloads("out") == Counter(rows)
