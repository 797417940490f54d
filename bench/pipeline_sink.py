"""The sink of ``format("penstock")`` against the engine: a million messages of 1 KiB.

The reference is the engine in process, with a thousand messages per batch; ours is a DataFrame
written to a private server. Both are durable, and both stores are on the same disk.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import penstock
from bench.measuring import PAYLOAD_BYTES, Figure, middle, payloads, per_second, scratch
from bench.processes import penstock_server
from bench.spark import bench_session
from penstock import NewMessage
from penstock.pipeline.remote import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["publishing"]

_BATCH: Final = 1_000
_PARTITIONS: Final = 4
_TARGET: Final = 0.5


def publishing(count: int, rounds: int) -> Figure:
    """Publish ``count`` messages per round on both sides, in turns."""
    with scratch() as folder, bench_session(folder) as spark:
        _write(spark, folder / "warm", _BATCH)
        pairs = [
            (
                _write(spark, folder / f"ours-{number}", count),
                asyncio.run(_publish(folder / f"engine-{number}", count)),
            )
            for number in range(rounds)
        ]
    ours, engine = (middle([pair[side] for pair in pairs]) for side in (0, 1))
    return Figure(
        "sink of a DataFrame, against the engine's own batches of 1,000",
        middle([mine / theirs for mine, theirs in pairs]),
        _TARGET,
        per_second(ours),
        per_second(engine),
    )


def _write(spark: SparkSession, folder: Path, count: int) -> float:
    """The rate at which a DataFrame is published."""
    folder.mkdir()
    with penstock_server(folder) as server:
        # Eight hashes per row: incompressible payloads.
        hashes = ", ".join(f"sha2(concat(id, '-{part}'), 512)" for part in range(8))
        rows = spark.range(0, count, 1, _PARTITIONS)
        frame = rows.selectExpr(f"cast(concat({hashes}) AS binary) AS value")
        assert {len(row.value) for row in frame.take(1)} == {PAYLOAD_BYTES}
        begin = time.perf_counter()
        frame.write.format("penstock").options(url=server.url, topic="t").mode("append").save()
        spent = time.perf_counter() - begin
        with Server(server.url).open() as remote:
            found = remote.ask(lambda q: q.stats("t")).available
    if found != count:
        raise AssertionError(f"{found} messages were published of {count}")
    return count / spent


async def _publish(folder: Path, count: int) -> float:
    """The rate of the engine's own batches."""
    bodies = payloads(_BATCH)
    async with penstock.open(f"rocksdb://{folder}") as q:
        begin = time.perf_counter()
        for _ in range(count // _BATCH):
            await q.publish_batch("t", [NewMessage(body) for body in bodies])
        return count / (time.perf_counter() - begin)
