"""The table ``log`` in batch mode: ranges of offsets, each read by its own task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from penstock.pipeline.format.error_lines import one_line
from penstock.pipeline.format.positions import lower_bounds, upper_bounds
from penstock.pipeline.format.pushdown import NOTHING, Pushed, Pushing, push
from penstock.pipeline.format.ranges import (
    PLANNING,
    Range,
    check_kept,
    check_range,
    cut,
    limits_of,
)
from penstock.pipeline.format.read_options import SourceOptions, check_batch
from penstock.pipeline.format.schemas import to_table
from penstock.pipeline.format.selection import Selection
from penstock.pipeline.format.streams import ahead, from_offset
from penstock.pipeline.remote import Remote

__all__ = ["LogReader", "plan_ranges", "read_range"]


class LogReader(DataSourceReader):
    """Plans in the driver; reads in workers, which get a copy."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        check_batch(options)
        self._options = options
        self._schema = schema
        self._pushed = Pushed(where=_bracketed(options.where))

    @property
    def pushFilters(self) -> Any:  # noqa: N802
        """The callable that gets Spark's filters; see ``Pushing``."""
        return Pushing(self._push)

    def _push(self, filters: Iterable[Filter]) -> list[Filter]:
        self._pushed, left = push(filters, self._pushed)
        return left

    @one_line
    def partitions(self) -> Sequence[InputPartition]:
        """The ranges of tasks. The read ends at the current end of the log (L2)."""
        with self._options.server.open(PLANNING) as remote:
            return plan_ranges(remote, self._options, self._pushed)

    @one_line
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The entries of one range, in order."""
        # Spark invents a partition if there is none.
        if not isinstance(partition, Range):
            return iter(())
        return read_range(partition, self._options, self._schema, self._where)

    @property
    def _where(self) -> str | None:
        # Brackets count towards the limits of a filter, and the option alone needs none.
        where = self._pushed.where
        return self._options.where if where == _bracketed(self._options.where) else where


def _bracketed(where: str | None) -> str | None:
    """A filter to which conditions may be joined with AND."""
    return None if where is None else f"({where})"


def plan_ranges(remote: Remote, options: SourceOptions, pushed: Pushed = NOTHING) -> list[Range]:
    """The ranges that the options and the filters select."""
    store = remote.ask(lambda q: q.identity())
    bounds = lower_bounds(remote, options.start), upper_bounds(remote, options.end)
    start, end = max(bounds[0].offset, pushed.low), min(bounds[1].offset, pushed.high)
    if start >= end:
        return []
    start = check_kept(remote, start, fail=options.fail_on_data_loss)
    return cut(remote, start, end, options, store, limits_of(*bounds))


def read_range(
    part: Range, options: SourceOptions, schema: pa.Schema, where: str | None
) -> Iterator[pa.RecordBatch]:
    """The entries of a range for which ``where`` is TRUE, as table batches, read ahead."""
    query = (
        ("payloads", options.payload),
        ("where", where),
        ("compression", options.compression),
    )

    selection = Selection(options.pattern, part.limits)

    def batches() -> Iterator[pa.RecordBatch]:
        with options.server.open() as remote:

            def still_there(start: int) -> None:
                # Retention may have removed part of the range while the stream was produced.
                if options.fail_on_data_loss:
                    check_kept(remote, start, fail=True, known=part.trimmed)
                check_range(remote, part)

            for batch in from_offset(
                remote, "/v1/log", query, part.start, part.end, after=still_there
            ):
                chosen = selection.of(batch)
                if chosen.num_rows:
                    yield to_table(chosen, schema)

    return ahead(batches)
