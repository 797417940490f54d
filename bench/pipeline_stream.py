"""From a queue through Spark to a topic: the latency of a message at 500 per second.

A micro-batch is claimed, transformed and published. The latency is read from the log: the time
from publishing a message to publishing its copy, on the server's clock.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Final

from bench.measuring import Figure, payloads, scratch
from bench.processes import penstock_server
from bench.spark import bench_session
from penstock import NewMessage
from penstock.client import connect
from penstock.model.delivery import LogEntry
from penstock.pipeline.remote import Remote, Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["consuming"]

_RATE: Final = 500
#: Publishes per second, as from several producers.
_PULSE: Final = 25
_TARGET_MS: Final = 1_000.0
_PATIENCE_S: Final = 120.0
_WARM_S: Final = 5.0


def consuming(seconds: float) -> Figure:
    """The 95th percentile over ``seconds``, after the query has warmed up."""
    with scratch() as folder, bench_session(folder) as spark:
        (folder / "store").mkdir()
        with penstock_server(folder / "store") as server:
            took = _measure(spark, server.url, folder / "checkpoint", seconds)
    cuts = quantiles(took, n=100)
    return Figure(
        f"queue to topic through Spark at {_RATE} a second: p95 in ms",
        cuts[94],
        _TARGET_MS,
        f"p50 {cuts[49]:.0f} ms, p95 {cuts[94]:.0f} ms, p99 {cuts[98]:.0f} ms",
        f"{_TARGET_MS:.0f} ms",
        at_most=True,
    )


def _measure(spark: SparkSession, url: str, checkpoint: Path, seconds: float) -> list[float]:
    with Server(url).open() as remote:
        remote.ask(lambda q: q.create_queue("in", "topic = 'in'"))
        remote.ask(lambda q: q.create_queue("out", "topic = 'out'"))
        query = _start(spark, url, checkpoint)
        try:
            # The first micro-batch starts the processes that later ones reuse.
            published = asyncio.run(_feed(url, 1 / _PULSE))
            _await(remote, query, published)
            published += asyncio.run(_feed(url, _WARM_S))
            began = remote.ask(lambda q: q.log_end())
            published += asyncio.run(_feed(url, seconds))
            _await(remote, query, published)
        finally:
            query.stop()
    entries = _log(url)
    sources = {int(entry.message.id): entry.message.published_at for entry in entries}
    copies = [
        (int(entry.message.headers["of"]), entry.message.published_at)
        for entry in entries
        if entry.message.topic == "out"
    ]
    return [float(at - sources[source]) for source, at in copies if source >= began]


def _await(remote: Remote, query: StreamingQuery, count: int) -> None:
    """Wait until ``count`` messages have come through."""
    until = time.monotonic() + _PATIENCE_S
    while remote.ask(lambda q: q.stats("out")).available < count:
        if time.monotonic() > until or not query.isActive:
            raise AssertionError(f"the query is behind: {query.exception()}")
        time.sleep(0.1)


def _start(spark: SparkSession, url: str, checkpoint: Path) -> StreamingQuery:
    frame = spark.readStream.format("penstock").options(url=url, queue="in").load()
    changed = frame.selectExpr("value", "map('of', cast(id AS string)) AS headers")
    stream = changed.writeStream.format("penstock").trigger(processingTime="0 seconds")
    options = {"checkpointLocation": str(checkpoint), "samePartitions": "true"}
    return stream.options(url=url, topic="out", **options).start()


async def _feed(url: str, seconds: float) -> int:
    """Publish at the rate; returns the number of messages."""
    bodies = payloads(_RATE // _PULSE)
    pulses = round(seconds * _PULSE)
    async with connect(url) as q:
        begin = time.monotonic()
        for pulse in range(pulses):
            await asyncio.sleep(max(0.0, begin + pulse / _PULSE - time.monotonic()))
            await q.publish_batch("in", [NewMessage(body) for body in bodies])
    return pulses * len(bodies)


def _log(url: str) -> list[LogEntry]:
    entries: list[LogEntry] = []
    with Server(url).open() as remote:
        position, end = 0, remote.ask(lambda q: q.log_end())
        while position < end:
            page = remote.ask(lambda q, at=position: q.read_log(at))  # type: ignore[misc]
            entries += page.entries
            position = page.next_offset
    return entries
