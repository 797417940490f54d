"""The router on Spark: finds which queues take which log entries (R1).

It evaluates all filters together over record batches, with the broker's compiler. A task returns,
per queue, the offsets of one batch that it takes. Entries with a key go to every queue, because
only the broker knows which of their values are the newest. The driver passes the result to the
broker, which assigns it and advances the queue's cursor in one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock.filters import Filter
from penstock.filters.to_arrow.many import ManyFilters
from penstock.filters.to_arrow.rows import Numbers
from penstock.filters.to_spark import narrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ROUTED_SCHEMA", "routed", "routed_by_batch", "router"]

#: One row per queue that takes entries of a batch, with their offsets.
ROUTED_SCHEMA: Final = pa.schema([("queue", pa.string()), ("offsets", pa.list_(pa.int64()))])
_ROUTED: Final = "queue string, offsets array<bigint>"
#: The offset of an entry, or its bitwise complement, which is negative, if the entry has a key. A
#: separate column would cost a tenth of the transfer to Python.
_MARKED: Final = "marked"
#: The most pairs of queue and entry held at one time; briefly twice as many.
_MOST_PAIRS: Final = 10_000_000


class _Pairs(NamedTuple):
    """Pairs of queue and entry, by queue and then by offset."""

    queues: Numbers
    offsets: Numbers


def routed(log: DataFrame, filters: Mapping[str, Filter]) -> DataFrame:
    """The offsets that each queue may take, in order; a queue that takes none has no row."""
    together = F.sort_array(F.flatten(F.collect_list("offsets")))
    return routed_by_batch(log, filters).groupBy("queue").agg(together.alias("offsets"))


def routed_by_batch(log: DataFrame, filters: Mapping[str, Filter]) -> DataFrame:
    """The same, with one row per queue and batch of the log."""
    many = ManyFilters(filters)
    offset = F.col("offset")
    marked = F.when(F.col("key").isNull(), offset).otherwise(F.bitwise_not(offset))
    needed = log.select(marked.alias(_MARKED), *narrow(many))
    return needed.mapInArrow(router(many), _ROUTED)


def router(
    many: ManyFilters,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that runs in Spark's workers; the filters are pickled with it."""

    def route(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from _route(many, batch)

    return route


def _route(many: ManyFilters, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Route one batch: one row per queue, or several if the queues take very many entries."""
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
