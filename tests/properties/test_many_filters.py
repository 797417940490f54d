"""R1: many filters over a batch are TRUE for the rows for which each is by itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.filters import Filter, FilterIndex
from penstock.filters import tree as t
from penstock.filters.to_arrow import batch_of
from penstock.filters.to_arrow.batch import flat_name
from penstock.filters.to_arrow.many import ManyFilters
from penstock.filters.to_text import to_text
from penstock.model.message import Message
from penstock.testing.laws import law
from tests.properties.test_filters import (
    constants,
    disjunctions,
    finite,
    flat,
    integers,
    messages,
    refer,
    simple,
    sources,
    trees,
)

numbers = st.builds(t.Integer, integers) | st.builds(t.Float, finite)
ranges = st.one_of(
    st.builds(t.Compare, st.sampled_from(["<", "<=", ">", ">=", "<>"]), sources, constants),
    st.builds(t.Compare, st.sampled_from(["<", "<=", ">", ">="]), numbers, sources),
    st.builds(t.Between, sources, numbers, numbers),
    st.builds(t.In, sources, st.lists(constants, min_size=1, max_size=4).map(tuple)),
)
small = simple | disjunctions | ranges
filters = trees | small


def narrowed(many: ManyFilters, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Only what ``many`` says that it reads, each header in columns of its own."""
    columns: dict[str, pa.Array] = {name: batch.column(name) for name in many.fields}
    for number, (name, parts) in enumerate(many.headers.items()):
        values = pc.map_lookup(batch.column("headers"), pa.scalar(name), "first")
        for part in parts:
            columns[flat_name(number, part)] = pc.struct_field(values, part)
    # A column that nobody reads, lest there be none and no rows.
    return pa.RecordBatch.from_pydict({"": pa.nulls(batch.num_rows), **columns})


def found(conditions: Sequence[t.Condition], rows: Sequence[Message]) -> list[list[str]]:
    """The names of the filters that are TRUE, row by row."""
    many = ManyFilters({f"q{n:03}": Filter(to_text(c)) for n, c in enumerate(conditions)})
    batch = batch_of(rows)
    matches = many.match(batch)
    for one, other in zip(matches, many.match(narrowed(many, batch)), strict=True):
        assert one.tolist() == other.tolist()
    names: list[list[str]] = [[] for _ in rows]
    for row, number in zip(matches.rows.tolist(), matches.filters.tolist(), strict=True):
        names[row].append(many.names[number])
    return names


@law("R1")
@settings(deadline=None)
@given(st.lists(filters, max_size=8), st.lists(messages(), max_size=5))
def test_many_filters_find_what_each_finds(
    conditions: list[t.Condition], rows: list[Message]
) -> None:
    wanted = [
        [f"q{n:03}" for n, condition in enumerate(conditions) if refer(condition, row) is True]
        for row in rows
    ]
    assert found(conditions, rows) == wanted


@law("R1")
@settings(deadline=None, max_examples=25)
@given(st.lists(small, min_size=6, max_size=8), trees, st.lists(messages(), min_size=1, max_size=5))
def test_more_filters_than_a_word_has_bits(
    others: list[t.Condition], tree: t.Condition, rows: list[Message]
) -> None:
    pieces = [tree, *others]
    pairs = [list(pair) for pair in combinations(pieces, 2)]
    conditions = pieces + [flat(kind, pair) for kind in (t.And, t.Or) for pair in pairs]
    conditions += [t.Not(condition) for condition in conditions]
    index: FilterIndex[str] = FilterIndex()
    for n, condition in enumerate(conditions):
        index.add(f"q{n:03}", Filter(to_text(condition)), f"q{n:03}")
    assert found(conditions, rows) == [list(index.match(row)) for row in rows]
