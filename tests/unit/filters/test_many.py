"""Many filters over a batch: the batches there are, and what is remembered between them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pyarrow as pa
import pytest

from penstock.filters import FilterIndex, parse
from penstock.filters.to_arrow import Columns, batch_of, gates, to_arrow
from penstock.filters.to_arrow.batch import HEADERS_TYPE
from penstock.filters.to_arrow.branches import MAX_BRANCHES, branches
from penstock.filters.to_arrow.many import ManyFilters
from penstock.model.message import Message

TEXTS = [
    "topic = 't1' AND country IN ('DE', 'AT') AND amount >= 50",
    "topic LIKE 't%' AND amount < 10",
    "country LIKE 'F_' OR amount = 7",
    "amount + size > 150",
    "country = 'DE' AND amount % 7 = 3",
    "lower(country) = 'de' AND amount * 2 > size",
    "NOT (topic = 't2' OR country = 'DE')",
    "amount BETWEEN 2.5 AND 9",
    "country = 'DE' OR amount >= 0",
    "country < 'E'",
    "country BETWEEN 'A' AND 'E'",
    "TRUE",
    "FALSE",
]
NAMED = {f"q{n}": parse(text) for n, text in enumerate(TEXTS)}


def of_rows(many: ManyFilters, batch: pa.RecordBatch) -> list[list[str]]:
    found: list[list[str]] = [[] for _ in range(batch.num_rows)]
    matches = many.match(batch)
    for row, number in zip(matches.rows.tolist(), matches.filters.tolist(), strict=True):
        found[row].append(many.names[number])
    return found


def by_index(rows: Sequence[Message]) -> list[list[str]]:
    index: FilterIndex[str] = FilterIndex()
    for name, filter_ in NAMED.items():
        index.add(name, filter_, name)
    return [list(index.match(row)) for row in rows]


@pytest.fixture
def rows(message) -> list[Message]:
    countries = ("DE", "AT", "FR", "de", "", "BE", "ZA")
    some = [
        message(f"t{n % 4}", amount=n / 2 if n % 3 else n, country=countries[n % 7])
        for n in range(120)
    ]
    return [*some, message("t1"), message(amount="7"), message(amount=True, country=1)]


def test_batch_after_batch(rows) -> None:
    many = ManyFilters(NAMED)
    assert len(many) == len(TEXTS)
    for start in (0, 40, 80):
        part = rows[start : start + 60]
        assert of_rows(many, batch_of(part)) == by_index(part)


def test_a_slice_of_a_batch(rows) -> None:
    batch = batch_of(rows).slice(33, 50)
    assert of_rows(ManyFilters(NAMED), batch) == by_index(rows[33:83])


def test_no_rows_and_no_filters(rows) -> None:
    assert of_rows(ManyFilters(NAMED), batch_of([])) == []
    assert of_rows(ManyFilters({}), batch_of(rows[:2])) == [[], []]


def test_filters_that_no_single_value_decides(rows) -> None:
    filter_ = parse("amount > size")
    wanted = [["q"] if filter_.matches(row) else [] for row in rows]
    assert of_rows(ManyFilters({"q": filter_}), batch_of(rows)) == wanted


def test_a_row_without_headers_and_one_with_a_header_twice() -> None:
    def value(number: int) -> dict[str, object]:
        return {"s": None, "i": number, "d": None, "b": None}

    twice = [("a", value(1)), ("b", value(5)), ("a", value(2))]
    headers = pa.array([None, twice, [], [("a", value(2))]], HEADERS_TYPE)
    batch = pa.RecordBatch.from_arrays([headers], names=["headers"])
    many = ManyFilters({text: parse(text) for text in ("a = 1", "a = 2", "a IS NULL", "a < b")})
    assert of_rows(many, batch) == [["a IS NULL"], ["a < b", "a = 1"], ["a IS NULL"], ["a = 2"]]


def test_null_headers_with_something_below_them() -> None:
    items = pa.array([{"s": None, "i": 1, "d": None, "b": None}] * 2, HEADERS_TYPE.item_type)
    headers = pa.MapArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()),
        pa.array(["a", "a"]),
        items,
        mask=pa.array([True, False]),
    )
    assert headers.to_pylist()[0] is None
    batch = pa.RecordBatch.from_arrays([headers], names=["headers"])
    assert of_rows(ManyFilters({"q": parse("a = 1")}), batch) == [[], ["q"]]


def test_the_columns_of_the_log_table() -> None:
    micros = [1_700_000_000_000_999, -1, -1_000, None]
    times = pa.array(micros, pa.timestamp("us", "UTC"))
    batch = pa.RecordBatch.from_arrays(
        [times, pa.array([100_000] * 4, pa.int32())], names=["timestamp", "priority"]
    )
    texts = (
        "published_at = 1700000000000",
        "published_at = -1",
        "priority * priority = 10000000000",
    )
    many = ManyFilters({text: parse(text) for text in texts})
    late, early, square = texts
    wanted = [[square, late], [square, early], [square, early], [square]]
    assert of_rows(many, batch) == [sorted(names) for names in wanted]
    verdicts = to_arrow(parse("published_at < 0").tree, Columns(batch)).to_pylist()
    assert verdicts == [False, True, True, None]


def test_pickled_and_compiled_again_once(rows) -> None:
    pickled = pickle.dumps(ManyFilters(NAMED))
    again = pickle.loads(pickled)
    assert of_rows(again, batch_of(rows)) == by_index(rows)
    assert pickle.loads(pickled) is again


def test_what_is_remembered_is_bounded(message, monkeypatch) -> None:
    monkeypatch.setattr(gates, "MAX_KNOWN", 4)
    texts = [f"a LIKE '%{n}%'" for n in range(10)]
    many = ManyFilters({text: parse(text) for text in texts})
    (gate,) = many._gates
    for start in range(0, 200, 10):
        rows = [message(a=str(number)) for number in range(start, start + 10)]
        wanted = [[text for text in texts if parse(text).matches(row)] for row in rows]
        assert of_rows(many, batch_of(rows)) == wanted
        assert len(gate.lines) <= 4 + len(rows) + 1
        assert len(gate._known) <= 4 + len(rows)


def test_numbers_are_judged_in_pieces(message, monkeypatch) -> None:
    monkeypatch.setattr(gates, "_MAX_VERDICTS", 64)
    texts = [f"a % 5 = {n} AND a > {n * 30.5}" for n in range(5)]
    many = ManyFilters({text: parse(text) for text in texts})
    rows = [message(a=number) for number in range(200)]
    wanted = [[text for text in texts if parse(text).matches(row)] for row in rows]
    assert of_rows(many, batch_of(rows)) == wanted


def test_filters_are_split_into_branches_a_source() -> None:
    (both,) = branches(parse("topic = 'a' AND (b = 1 OR b = 2) AND b LIKE 'x'").tree)
    assert len(both.gates) == 3
    assert both.rest is None
    assert len(branches(parse("topic = 'a' AND (b = 1 OR c = 2)").tree)) == 2
    assert len(branches(parse("NOT (b = 1 AND c = 2)").tree)) == 2
    (left,) = branches(parse("topic = 'a' AND b < c").tree)
    assert len(left.gates) == 1
    assert left.rest == parse("b < c").tree


def test_a_filter_of_too_many_branches_keeps_some_together() -> None:
    ors = [f"(a{n} = 1 OR b{n} = 1)" for n in range(6)]
    found = branches(parse(" AND ".join(ors)).tree)
    assert len(found) == MAX_BRANCHES
    assert all(branch.rest is not None for branch in found)
    (whole,) = branches(parse(" OR ".join(f"a{n} = 1" for n in range(MAX_BRANCHES + 1))).tree)
    assert whole.rest is not None
    assert not whole.gates
