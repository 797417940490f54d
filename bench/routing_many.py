"""Routing in bulk: a thousand queues over a million messages, on Spark with two cores.

The reference is plain Spark: one column per filter, over the same messages. It is measured with
100 filters, because with 1,000 it takes minutes or runs out of memory.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.measuring import Figure, middle, per_second, scratch
from bench.spark import bench_session
from penstock.filters import Filter, parse
from penstock.filters.to_arrow import HEADERS_TYPE
from penstock.filters.to_spark import matches
from penstock.pipeline.router import routed_by_batch

ROWS = 1_000_000
QUEUES = 1_000
FEW = 10
NATIVE_QUEUES = 100
TOPICS = 50
_FILES = 4
_COUNTRIES = [f"{a}{b}" for a in "ABCDEF" for b in "ABCDE"]
_TIERS = ["gold", "silver", "basic", "none"]
_START_MS = 1_700_000_000_000


def routing_many(rounds: int, rows: int = ROWS) -> list[Figure]:
    """A thousand filters against Spark's own columns, and against ten filters."""
    native: list[float] = []
    few: list[float] = []
    many: list[float] = []
    filters = queue_filters(QUEUES)
    with scratch() as path, bench_session(path) as spark:
        log = _log(spark, path / "log", rows)
        works = (
            (native, _by_columns(log, _first(filters, NATIVE_QUEUES))),
            (few, _by_router(log, _first(filters, FEW))),
            (many, _by_router(log, filters)),
        )
        for number in range(rounds + 1):
            for rates, work in works:
                begin = time.perf_counter()
                work()
                # The first turn compiles and starts processes, so it does not count.
                if number:
                    rates.append(rows / (time.perf_counter() - begin))
    return [
        Figure(
            f"routing to {QUEUES:,} queues on Spark, of a column each for {NATIVE_QUEUES}",
            middle([a / b for a, b in zip(many, native, strict=True)]),
            5.0,
            per_second(middle(many)),
            per_second(middle(native)),
        ),
        Figure(
            f"cost of routing to {QUEUES:,} queues on Spark, of {FEW}",
            middle([a / b for a, b in zip(few, many, strict=True)]),
            4.0,
            per_second(middle(many)),
            per_second(middle(few)),
            at_most=True,
        ),
    ]


def queue_filters(count: int) -> dict[str, Filter]:
    """Realistic queue filters: mostly a topic and some headers, a few without equality."""
    chance = random.Random(1)
    filters = {}
    for number in range(count):
        topic = f"topic = 't{number % TOPICS}'"
        country, other = chance.sample(_COUNTRIES, 2)
        amount = chance.randrange(0, 1000, 10)
        match number % 20:
            case 19:
                text = f"amount >= {900 + amount // 10} AND tier <> 'none'"
            case 3 | 13:
                text = f"{topic} AND country LIKE '{country[0]}%' AND amount < {amount}"
            case 7:
                text = f"{topic} AND (country = '{country}' OR tier = 'gold') AND amount >= 500"
            case 11:
                text = f"{topic} AND tier = 'gold' AND amount * 1.19 >= {amount}"
            case _:
                text = f"{topic} AND country IN ('{country}', '{other}') AND amount >= {amount}"
        filters[f"queue-{number:04}"] = parse(text)
    return filters


def log_batch(start: int, rows: int) -> pa.RecordBatch:
    """Rows of the pipeline's ``log`` table with three headers each, only columns for filters."""
    chance = np.random.default_rng(start)
    topics = pa.array([f"t{n}" for n in range(TOPICS)])
    texts = pa.array([*_COUNTRIES, *_TIERS])
    places = np.full((rows, 3), -1)
    places[:, 0] = chance.integers(0, len(_COUNTRIES), rows)
    places[:, 2] = chance.integers(len(_COUNTRIES), len(texts), rows)
    amounts = np.zeros((rows, 3), np.int64)
    amounts[:, 1] = chance.integers(0, 1000, rows)
    amount = np.tile([False, True, False], rows)
    values = [
        texts.take(pa.array(places.ravel(), mask=amount)),
        pa.array(amounts.ravel(), mask=~amount),
        pa.nulls(3 * rows, pa.float64()),
        pa.nulls(3 * rows, pa.bool_()),
    ]
    headers = pa.MapArray.from_arrays(
        pa.array(np.arange(0, 3 * rows + 1, 3, dtype=np.int32)),
        pa.array(np.tile(["country", "amount", "tier"], rows)),
        pa.StructArray.from_arrays(values, fields=list(HEADERS_TYPE.item_type)),
    )
    offsets = np.arange(start, start + rows)
    times = pa.array((_START_MS + offsets) * 1000).cast(pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(offsets),
            topics.take(pa.array(chance.integers(0, TOPICS, rows))),
            pa.nulls(rows, pa.string()),
            times,
            headers,
        ],
        names=["offset", "topic", "key", "timestamp", "headers"],
    )


def _first(filters: dict[str, Filter], count: int) -> dict[str, Filter]:
    return dict(list(filters.items())[:count])


def _log(spark: SparkSession, path: Path, rows: int) -> DataFrame:
    path.mkdir()
    step = -(-rows // _FILES)
    for start in range(0, rows, step):
        batch = log_batch(start, min(step, rows - start))
        pq.write_table(pa.Table.from_batches([batch]), path / f"{start}.parquet")
    return spark.read.parquet(str(path))


def _by_router(log: DataFrame, filters: dict[str, Filter]) -> Callable[[], None]:
    return _runner(routed_by_batch(log, filters))


def _by_columns(log: DataFrame, filters: dict[str, Filter]) -> Callable[[], None]:
    numbers = [f.when(matches(each), f.lit(n)) for n, each in enumerate(filters.values())]
    queues = f.explode(f.array_compact(f.array(*numbers)))
    return _runner(log.select("offset", queues.alias("queue")))


def _runner(frame: DataFrame) -> Callable[[], None]:
    return lambda: frame.write.format("noop").mode("overwrite").save()
