"""A query that consumes a queue and kills itself at a step, for ``test_consumer_killed``.

Its sink writes a file per micro-batch, and ignores a batch id that it has seen.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from penstock.pipeline.session import spark_session
from tests.pipeline.sink_program import SETTINGS


def write_once(frame: DataFrame, number: int, folder: Path) -> None:
    """Write the values of a micro-batch, unless its file is there."""
    target = folder / f"{number:06}.json"
    if target.exists():
        return
    part = folder / f".{number}.part"
    part.write_text(json.dumps([bytes(row.value).decode() for row in frame.collect()]))
    part.rename(target)


def start(frame: DataFrame, folder: Path, step: str | None = None) -> StreamingQuery:
    """Start the query; it dies in its first micro-batch, before or after the sink has it."""

    def sink(batch: DataFrame, number: int) -> None:
        if step == "before":
            os.killpg(0, signal.SIGKILL)
        write_once(batch, number, folder / "out")
        if step == "after":
            os.killpg(0, signal.SIGKILL)

    (folder / "out").mkdir(exist_ok=True)
    writer = frame.writeStream.foreachBatch(sink).trigger(availableNow=True)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def main(url: str, folder: str, step: str) -> None:
    spark = spark_session("killed", master="local[1]", settings=SETTINGS)
    frame = spark.readStream.format("penstock").options(url=url, queue="q").load()
    start(frame, Path(folder), step).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
