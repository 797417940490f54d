"""A record batch as ``many`` reads it: the values of one source, and the rows they are in.

The names of all headers are numbered once per batch, so that reading one header costs a
comparison of small integers and a copy of its values, regardless of other headers. A batch
that was made for certain filters may have the headers that they read as separate columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.filters.access import Source
from penstock.filters.to_arrow.batch import PARTS, Columns, Typed, flat_name, typed
from penstock.filters.tree import Field

__all__ = ["Entries", "Numbers", "Rows"]

Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class Entries(NamedTuple):
    """The ``length`` values of a source; rows that are not listed have none."""

    rows: Numbers | None
    """The row of each value, or ``None``: one value per row, in order."""
    value: Typed
    length: int


class _Headers(NamedTuple):
    numbers: dict[str, int]
    """Header name to its number in this batch."""
    name: Numbers
    """The number of each header's name, -1 in a null row."""
    row: Numbers
    """The row of each header."""
    parts: list[pa.Array]


class Rows:
    """One batch, with a cache of what was read from it.

    ``headers`` are those in separate columns, by name, with the parts of each that matter;
    unless the batch has a column ``headers``.
    """

    def __init__(self, batch: pa.RecordBatch, headers: Mapping[str, str]) -> None:
        self._batch = batch
        self._columns = Columns(batch)
        self._entries: dict[Source, Entries] = {}
        self._flat = {} if "headers" in batch.schema.names else _flat(batch, headers)

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def entries(self, source: Source) -> Entries:
        """The values of ``source``."""
        found = self._entries.get(source)
        if found is None:
            found = self._entries[source] = self._read(source)
        return found

    def at(self, source: Source, rows: Numbers) -> Typed:
        """The values of ``source`` in ``rows``, one per row."""
        indices = pa.array(rows)
        if isinstance(source, Field) or source.name in self._flat:
            return self.entries(source).value.map(lambda part: part.take(indices))
        headers = self._headers
        places = np.full(len(self), -1)
        mine = self._places(source.name)
        places[headers.row[mine]] = mine
        wanted = places[rows]
        where = pa.array(wanted, mask=wanted < 0)
        return typed(Typed(*(part.take(where) for part in headers.parts)))

    def _read(self, source: Source) -> Entries:
        if isinstance(source, Field):
            return Entries(None, self._columns.field(source.name), len(self))
        if (value := self._flat.get(source.name)) is not None:
            return Entries(None, typed(value), len(self))
        headers = self._headers
        mine = self._places(source.name)
        indices = pa.array(mine)
        rows = headers.row[mine]
        value = typed(Typed(*(part.take(indices) for part in headers.parts)))
        return Entries(None if len(mine) == len(self) else rows, value, len(mine))

    def _places(self, name: str) -> Numbers:
        """The positions of the header's values, ordered by row, one per row."""
        headers = self._headers
        number = headers.numbers.get(name)
        if number is None:
            return np.empty(0, np.int64)
        places = np.flatnonzero(headers.name == number)
        rows = headers.row[places]
        # If a map has a header twice, the first one counts, as everywhere else.
        first = np.ones(len(rows), bool)
        np.not_equal(rows[1:], rows[:-1], out=first[1:])
        return places[first]

    @cached_property
    def _headers(self) -> _Headers:
        column = self._batch.column("headers")
        offsets = column.offsets.to_numpy()
        start, length = int(offsets[0]), int(offsets[-1] - offsets[0])
        row = np.repeat(np.arange(len(self)), np.diff(offsets))
        names = column.keys.slice(start, length).dictionary_encode()
        name = names.indices.to_numpy()
        if column.null_count:
            name = np.where(column.is_valid().to_numpy(zero_copy_only=False)[row], name, -1)
        items = column.items.slice(start, length)
        return _Headers(
            {text: number for number, text in enumerate(names.dictionary.to_pylist())},
            name,
            row,
            [pc.struct_field(items, part) for part in PARTS],
        )


def _flat(batch: pa.RecordBatch, headers: Mapping[str, str]) -> dict[str, Typed]:
    """Headers in separate columns; parts that cannot matter are missing."""
    return {
        name: Typed(*(batch.column(flat_name(number, p)) if p in parts else None for p in PARTS))
        for number, (name, parts) in enumerate(headers.items())
    }
