"""A program that writes with Spark on a cluster while one of its tasks hangs, for ``test_cluster``.

Spark starts a speculative copy of the task on another host while the first attempt is alive. The
two take turns, which each leaves word of in a folder that both see: the first publishes a chunk
and waits; the copy, which has the rows in another order, publishes chunks of its own; then both
publish what is left at the same time. The first never comes to its end, so the copy wins.

It prints what Spark says of the attempts at that task, and what they say themselves.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from penstock.pipeline.format.chunks import CHUNK_ROWS
from penstock.pipeline.remote import Server
from penstock.pipeline.session import spark_session

PARTITIONS = 3
#: Of a partition: five chunks.
ROWS = 5 * CHUNK_ROWS
#: Rows of a record batch on its way through Spark.
PIECE = 500
#: Makes rows so large that what is buffered on the way is a small part of a partition.
PADDING = "." * 300
#: Whoever waits for longer goes on, and the test sees that nothing came.
PATIENCE_S = 60

SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(PIECE),
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    # Every other task is done, and this one has run for longer than they have.
    "spark.speculation.quantile": "0.67",
    "spark.speculation.multiplier": "1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.efficiency.enabled": "false",
    # A task that fails is not tried again: a second attempt is a speculative one.
    "spark.task.maxFailures": "1",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}


def wait(happened: Callable[[], bool]) -> bool:
    """Wait for what others do; whether it was done in time."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if happened():
            return True
        time.sleep(0.02)
    return False


def first_attempt(
    pieces: Iterator[pa.RecordBatch], entries: Callable[[], int], folder: Path
) -> Iterator[pa.RecordBatch]:
    """One chunk and a half; when the copy has published, the rest, but not the end of it."""
    yield from islice(pieces, CHUNK_ROWS * 3 // 2 // PIECE)
    # More than all the other partitions have.
    if wait(lambda: entries() > (PARTITIONS - 1) * ROWS):
        say(folder, "first has published", entries())
    copied = wait((folder / "copy has published").exists)
    say(folder, "first goes on", entries())
    yield from pieces
    if copied:
        wait(lambda: False)


def copy(
    pieces: Iterator[pa.RecordBatch], entries: Callable[[], int], folder: Path
) -> Iterator[pa.RecordBatch]:
    """From the last row to the first: two chunks and a half, and then the rest."""
    backwards = [piece.take(pa.array(range(len(piece) - 1, -1, -1))) for piece in pieces][::-1]
    count = CHUNK_ROWS * 5 // 2 // PIECE
    wait((folder / "first has published").exists)
    before = entries()
    yield from backwards[:count]
    if wait(lambda: entries() > before):
        say(folder, "copy has published", entries())
    wait((folder / "first goes on").exists)
    yield from backwards[count:]


def say(folder: Path, what: str, entries: int) -> None:
    """Leave word, whole or not at all."""
    new = folder / f"{what}.new"
    new.write_text(str(entries))
    new.rename(folder / what)


def write(master: str, url: str, folder: Path, settings: Mapping[str, str]) -> str:
    """Write as many rows as there are, each different; the application's id."""

    def hang(pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() != 0:
            yield from pieces
            return
        attempt = copy if context.attemptNumber() else first_attempt
        with Server(url).open() as remote:
            yield from attempt(pieces, lambda: remote.ask(lambda q: q.log_end()), folder)

    chosen = {**SETTINGS, "spark.eventLog.dir": folder.as_uri(), **settings}
    spark = spark_session("speculative", master=master, settings=chosen)
    rows = spark.range(0, PARTITIONS * ROWS, 1, PARTITIONS)
    frame = rows.selectExpr(f"concat(id, '{PADDING}') AS value").mapInArrow(hang, "value string")
    frame.write.format("penstock").options(url=url, topic="t").mode("append").save()
    application = spark.sparkContext.applicationId
    spark.stop()
    return application


def attempts(events: Path) -> list[dict[str, Any]]:
    """What Spark's own log says of the attempts at the first partition."""
    found: dict[int, dict[str, Any]] = {}
    for line in events.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] in ("SparkListenerTaskStart", "SparkListenerTaskEnd"):
            task = event["Task Info"]
            if task["Index"] == 0:
                about = {"speculative": task["Speculative"], "host": task["Host"]}
                end = event.get("Task End Reason", {}).get("Reason")
                found[task["Attempt"]] = {**about, "end": end}
    return [found[number] for number in sorted(found)]


if __name__ == "__main__":
    folder = Path(sys.argv[3])
    application = write(sys.argv[1], sys.argv[2], folder, json.loads(sys.argv[4]))
    # A task that Spark has given up may still be writing one that is not whole yet.
    words = (path for path in folder.glob("* *") if path.suffix != ".new")
    said = {path.name: int(path.read_text()) for path in words}
    summary = {"app": application, "said": said, "attempts": attempts(folder / application)}
    json.dump(summary, sys.stdout)
