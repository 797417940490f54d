"""Keys and headers of Kafka's shapes: what the sink takes is what the source gives back."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadInput
from penstock.filters.to_arrow import HEADERS_TYPE
from penstock.pipeline.format.kafka_shapes import (
    KAFKA_HEADERS,
    header_rows,
    to_bytes,
    to_header_lists,
    to_texts,
)
from penstock.pipeline.format.selection import Selection


@given(st.lists(st.none() | st.binary(max_size=12) | st.just(b"data:;base64,AA==")))
def test_bytes_are_what_they_were(keys: list[bytes | None]) -> None:
    texts = to_texts(pa.array(keys, pa.binary()))
    assert to_bytes(texts).to_pylist() == keys


@pytest.mark.parametrize(
    "data, text",
    [
        (b"k\xc3\xa9", "ké"),
        (b"", ""),
        (b"\x00\x01", "\x00\x01"),
        (b"\xff", "data:;base64,/w=="),
        (b"data:;base64,/w==", "data:;base64,ZGF0YTo7YmFzZTY0LC93PT0="),
    ],
)
def test_bytes_are_text_where_they_can_be(data: bytes, text: str) -> None:
    assert to_texts(pa.array([data, None], pa.binary())).to_pylist() == [text, None]
    assert to_texts(pa.array([data, None], pa.large_binary())).to_pylist() == [text, None]


def test_a_text_that_only_looks_like_bytes_is_a_text() -> None:
    assert to_bytes(pa.array(["data:;base64,?"])).to_pylist() == [b"data:;base64,?"]
    assert to_texts(pa.array(["data:;base64,/w=="])).to_pylist() == ["data:;base64,/w=="]


def test_typed_headers_become_lists_and_rows_again() -> None:
    def value(**part: object) -> dict[str, object]:
        return {"s": None, "i": None, "d": None, "b": None} | part

    rows = [
        [("s", value(s="é")), ("i", value(i=-5)), ("d", value(d=0.5)), ("b", value(b=True))],
        [],
        [("raw", value(s="data:;base64,/w=="))],
    ]
    lists = to_header_lists(pa.array(rows, HEADERS_TYPE))
    assert lists.type.equals(KAFKA_HEADERS)
    assert [[(one["key"], one["value"]) for one in row] for row in lists.to_pylist()] == [
        [("s", "é".encode()), ("i", b"-5"), ("d", b"0.5"), ("b", b"true")],
        [],
        [("raw", b"\xff")],
    ]
    assert header_rows(lists.slice(1)) == [{}, {"raw": "data:;base64,/w=="}]


def test_headers_without_a_value_are_left_out() -> None:
    rows = [[{"key": "a", "value": None}, {"key": "b", "value": b"1"}], None]
    assert header_rows(pa.array(rows, KAFKA_HEADERS)) == [{"b": "1"}, {}]


def test_a_header_that_occurs_twice_is_refused() -> None:
    rows = [[{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}]]
    with pytest.raises(BadInput, match="'a' occurs twice"):
        header_rows(pa.array(rows, KAFKA_HEADERS))


def test_entries_are_selected_by_pattern_and_bounds() -> None:
    topics = ["a", "b", "ab", "a"]
    batch = pa.RecordBatch.from_pydict({"topic": topics, "offset": [0, 1, 2, 3]})
    assert Selection(None, None).of(batch) is batch
    assert Selection("a.*", None).of(batch)["offset"].to_pylist() == [0, 2, 3]
    assert Selection(None, {"a": (1, 9), "b": (0, 1)}).of(batch)["offset"].to_pylist() == [3]
    assert Selection("b", {"b": (0, 2)}).of(batch)["offset"].to_pylist() == [1]
