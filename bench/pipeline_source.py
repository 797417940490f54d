"""The log read by Spark, against the same rows in Arrow files read through the same interface.

Both go to Spark's ``noop`` sink, which discards every row. The files contain the same batches
that the server sends, uncompressed and in the page cache, so the difference is the server, the
store and HTTP. ``python -m bench.pipeline_source --messages 100000`` runs it alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bench.measuring import PAYLOAD_BYTES, Figure, middle, payloads, per_second, scratch
from bench.processes import penstock_server
from bench.spark import CORES, bench_session
from penstock import NewMessage
from penstock.pipeline.format.source import PenstockSource
from penstock.pipeline.remote import Server

__all__ = ["reading"]

MESSAGES: Final = 1_000_000
#: Messages per publish; the payloads are created once and reused.
_BATCH: Final = 5_000


class ArrowFiles(DataSource):
    """A folder of Arrow IPC streams, one per partition."""

    @classmethod
    def name(cls) -> str:
        return "arrow_files"

    def schema(self) -> StructType:
        return PenstockSource({"url": "http://localhost"}).schema()

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return FilesReader(self.options["folder"])


class FilesReader(DataSourceReader):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(str(path)) for path in sorted(Path(self._folder).iterdir())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(partition.value) as file, pa.ipc.open_stream(file) as batches:
            yield from batches


def reading(messages: int, rounds: int, *, headers: bool = False) -> list[Figure]:
    """Reading with payloads against files; reading without payloads against with."""
    with scratch() as folder, penstock_server(folder) as served:
        _publish(served.url, messages, headers=headers)
        _copy(served.url, folder / "files")
        with bench_session(folder) as spark:
            return _measure(spark, served.url, folder / "files", messages, rounds)


def _measure(
    spark: SparkSession, url: str, files: Path, messages: int, rounds: int
) -> list[Figure]:
    spark.dataSource.register(ArrowFiles)
    log = spark.read.format("penstock").option("url", url)
    reads: dict[str, Callable[[], DataFrame]] = {
        "files": lambda: spark.read.format("arrow_files").option("folder", str(files)).load(),
        "whole": lambda: log.option("payload", True).load(),
        "bare": lambda: log.option("payload", False).load(),
    }
    for read in reads.values():
        if (found := read().count()) != messages:
            raise AssertionError(f"{found} messages came back of {messages}")
    rates: dict[str, list[float]] = {name: [] for name in reads}
    for _ in range(rounds):
        for name, read in reads.items():
            rates[name].append(messages / _seconds(read()))
    kib = PAYLOAD_BYTES // 1024
    whole, reference, bare = (middle(rates[name]) for name in ("whole", "files", "bare"))
    return [
        Figure(
            f"Spark reads {messages:,} messages of {kib} KiB, against Arrow files",
            whole / reference,
            0.5,
            per_second(whole),
            per_second(reference),
        ),
        Figure(
            "Spark reads them without their payloads, against with",
            bare / whole,
            2.0,
            per_second(bare),
            per_second(whole),
        ),
    ]


def _seconds(frame: DataFrame) -> float:
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def _publish(url: str, messages: int, *, headers: bool) -> None:
    batch = [
        NewMessage(body, {"number": number, "kind": "bench"} if headers else {})
        for number, body in enumerate(payloads(_BATCH))
    ]
    with Server(url).open() as remote:
        remote.ask(lambda q: q.create_queue("nothing", "FALSE"))
        for done in range(0, messages, _BATCH):
            part = batch[: messages - done]
            remote.ask(lambda q, part=part: q.publish_batch("bench", part))  # type: ignore[misc]


def _copy(url: str, folder: Path) -> None:
    """Write the partitions of the log to files."""
    folder.mkdir()
    source = PenstockSource({"url": url})
    reader = source.reader(source.schema())

    def copy(item: tuple[int, InputPartition]) -> None:
        number, part = item
        batches: Iterator[Any] = iter(reader.read(part))
        first = next(batches)
        with pa.ipc.new_stream(str(folder / f"{number:06}.arrow"), first.schema) as writer:
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)

    with ThreadPoolExecutor(CORES) as threads:
        list(threads.map(copy, enumerate(reader.partitions())))


def main() -> int:
    """Exit 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline_source", description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--rounds", type=int, default=3, help="a figure is the median of these")
    parser.add_argument("--headers", action="store_true", help="two headers per message")
    arguments = parser.parse_args()
    figures = reading(arguments.messages, arguments.rounds, headers=arguments.headers)
    for figure in figures:
        sys.stdout.write(
            f"{figure.ratio:6.2f}  (at least {figure.target:.2f})  {figure.name}"
            f"  [{figure.ours} : {figure.reference}]\n"
        )
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    # Import by name: Spark would send classes in ``__main__`` to workers by value.
    from bench.pipeline_source import main as importable_main

    sys.exit(importable_main())
