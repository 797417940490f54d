"""The router on Spark: which queues take which entries of the log (R1).

All filters at once over record batches, the same compiler as the broker's. A task gives, for
each queue, the offsets that it takes of one batch; entries that have a key go to every queue,
because only the broker knows which values of theirs are the newest. What the driver then hands
to the broker is assigned with the queue's cursor in one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock.filters import Filter
from penstock.filters.to_arrow.many import ManyFilters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ROUTED_SCHEMA", "routed", "router"]

#: For each queue that takes some of a batch, which.
ROUTED_SCHEMA: Final = pa.schema([("queue", pa.string()), ("offsets", pa.list_(pa.int64()))])
_ROUTED: Final = "queue string, offsets array<bigint>"


def routed(log: DataFrame, filters: Mapping[str, Filter]) -> DataFrame:
    """By queue, the offsets of the entries that it may take, in order; none: no row."""
    pieces = log.mapInArrow(router(filters), _ROUTED)
    together = F.sort_array(F.flatten(F.collect_list("offsets")))
    return pieces.groupBy("queue").agg(together.alias("offsets"))


def router(
    filters: Mapping[str, Filter],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that runs in Spark's workers; the filters travel with it."""
    many = ManyFilters(filters)

    def route(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield _route(many, batch)

    return route


def _route(many: ManyFilters, batch: pa.RecordBatch) -> pa.RecordBatch:
    offsets = batch.column("offset")
    matches = many.match(batch)
    taken = pa.table({"queue": matches.filters, "offset": offsets.take(matches.rows)})
    keyed = offsets.filter(pc.is_valid(batch.column("key")))
    if len(keyed):
        rows = pa.array(range(len(many)), pa.int64())
        every = [
            pa.table(
                {"queue": pc.fill_null(pa.nulls(len(keyed), pa.int64()), row), "offset": keyed}
            )
            for row in rows
        ]
        taken = pa.concat_tables([taken, *every])
    grouped = taken.group_by("queue").aggregate([("offset", "distinct")])
    names = pa.array(many.names, pa.string()).take(grouped.column("queue").combine_chunks())
    lists = grouped.column("offset_distinct").combine_chunks()
    return pa.RecordBatch.from_arrays(
        [names, lists.cast(pa.list_(pa.int64()))], schema=ROUTED_SCHEMA
    )
