"""The router on Spark: which queues take which entries of the log (R1).

All filters at once over record batches, the same compiler as the broker's. A task gives, for
each queue, the offsets that it takes of one batch; entries that have a key go to every queue,
because only the broker knows which values of theirs are the newest. What the driver then hands
to the broker is assigned with the queue's cursor in one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock.filters import Filter
from penstock.filters.to_arrow.many import ManyFilters
from penstock.filters.to_arrow.reading import Numbers
from penstock.filters.to_spark import narrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ROUTED_SCHEMA", "routed", "routed_by_batch", "router"]

#: For each queue that takes some of a batch, which.
ROUTED_SCHEMA: Final = pa.schema([("queue", pa.string()), ("offsets", pa.list_(pa.int64()))])
_ROUTED: Final = "queue string, offsets array<bigint>"
#: The offset of an entry; its complement, which is below 0, if the entry has a key. A column for
#: that alone would cost a tenth of the way to Python.
_MARKED: Final = "marked"
#: Pairs of a queue and an entry that are held at once, at the most; twice as many for a moment.
_MOST_PAIRS: Final = 10_000_000


class _Pairs(NamedTuple):
    """Which queues take which entries, by queue and then by offset."""

    queues: Numbers
    offsets: Numbers


def routed(log: DataFrame, filters: Mapping[str, Filter]) -> DataFrame:
    """By queue, the offsets of the entries that it may take, in order; none: no row."""
    together = F.sort_array(F.flatten(F.collect_list("offsets")))
    return routed_by_batch(log, filters).groupBy("queue").agg(together.alias("offsets"))


def routed_by_batch(log: DataFrame, filters: Mapping[str, Filter]) -> DataFrame:
    """The same, once for every batch of the log that a queue takes some of."""
    many = ManyFilters(filters)
    offset = F.col("offset")
    marked = F.when(F.col("key").isNull(), offset).otherwise(F.bitwise_not(offset))
    needed = log.select(marked.alias(_MARKED), *narrow(many))
    return needed.mapInArrow(router(many), _ROUTED)


def router(
    many: ManyFilters,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that runs in Spark's workers; the filters travel with it."""

    def route(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from _route(many, batch)

    return route


def _route(many: ManyFilters, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """What queues take of the batch: a row a queue, unless they take very much of it."""
    found: list[_Pairs] = []
    step = max(1, _MOST_PAIRS // max(1, len(many)))
    for start in range(0, len(batch), step):
        found.append(_pairs(many, batch.slice(start, step)))
        if sum(len(pairs.queues) for pairs in found) > _MOST_PAIRS:
            yield _lists(many, found)
            found = []
    if found:
        yield _lists(many, found)


def _pairs(many: ManyFilters, batch: pa.RecordBatch) -> _Pairs:
    rows, queues = many.match(batch)
    offsets = batch.column(_MARKED).to_numpy()
    keyed = np.flatnonzero(offsets < 0)
    if len(keyed):
        offsets = np.where(offsets < 0, ~offsets, offsets)
        every = np.arange(len(many))[:, None] * len(batch) + keyed
        queues, rows = np.divmod(np.union1d(queues * len(batch) + rows, every), len(batch))
    return _Pairs(queues, offsets.take(rows))


def _lists(many: ManyFilters, found: list[_Pairs]) -> pa.RecordBatch:
    queues = np.concatenate([pairs.queues for pairs in found])
    order = np.argsort(queues, kind="stable")
    queues = queues.take(order)
    offsets = np.concatenate([pairs.offsets for pairs in found]).take(order)
    firsts = np.flatnonzero(np.diff(queues, prepend=-1))
    names = pa.array(many.names, pa.string()).take(pa.array(queues.take(firsts)))
    ends = pa.array(np.append(firsts, len(queues)), pa.int32())
    lists = pa.ListArray.from_arrays(ends, pa.array(offsets))
    return pa.RecordBatch.from_arrays([names, lists], schema=ROUTED_SCHEMA)
