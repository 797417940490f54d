"""Large bodies in pieces: the same values as in one go, and the same refusals."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadInput, PenstockError, TooLarge
from penstock.model.message import NewMessage
from penstock.server.decoding import JSON_FORMAT, MSGPACK_FORMAT, Format, Lists
from penstock.testing.laws import law
from penstock.wire.bodies import PublishBody
from penstock.wire.codecs import Codec
from penstock.wire.json_cursor import JsonCursor
from penstock.wire.msgpack_cursor import MsgpackCursor
from penstock.wire.payloads import JsonMessage, JsonPublishBody
from penstock.wire.splitting import Bounds, Cursor, Split, split

BOUNDS = {"messages": Bounds(50, 4_096, piece_items=3)}
LISTS: dict[Format, Lists[Any]] = {
    JSON_FORMAT: Lists(JsonPublishBody, {"messages": JsonMessage}),
    MSGPACK_FORMAT: Lists(PublishBody, {"messages": NewMessage}),
}
WHOLE: dict[Format, Codec[Any]] = {
    JSON_FORMAT: Codec(JsonPublishBody),
    MSGPACK_FORMAT: Codec(PublishBody),
}

TEXT = st.text(max_size=12) | st.sampled_from(['"', "\\", '\\"', "[{", "]}", ",", "messages"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "headers": st.dictionaries(TEXT, TEXT | st.integers(-9, 9), max_size=3),
        "id": TEXT,
        "priority": st.integers(0, 9),
    },
)
JSON_BODIES = st.builds(
    lambda items, indent, rest: json.dumps({"messages": items, **rest}, indent=indent).encode(),
    st.lists(
        st.builds(lambda value, options: {"payload": value, **options}, VALUES, OPTIONS),
        max_size=12,
    ),
    st.none() | st.integers(0, 2),
    st.fixed_dictionaries({}, optional={"batch_id": TEXT, "durability": st.just("os")}),
)
MSGPACK_BODIES = st.builds(
    lambda items, rest: msgspec.msgpack.encode({"messages": items, **rest}),
    st.lists(
        st.builds(
            lambda value, options: {"payload": value, **options}, st.binary(max_size=400), OPTIONS
        ),
        max_size=12,
    ),
    st.fixed_dictionaries({}, optional={"batch_id": TEXT, "durability": st.just("os")}),
)


def run(work: Any) -> Any:
    """The outcome of a coroutine that waits for nothing but its turn."""
    while True:
        try:
            work.send(None)
        except StopIteration as done:
            return done.value


def pieces(coded: Format, body: bytes) -> Any:
    return run(LISTS[coded].decode(coded, body, BOUNDS))


def outcome(read: Any) -> Any:
    try:
        return read()
    except PenstockError as error:
        return type(error)


@settings(max_examples=60, deadline=None)
@given(JSON_BODIES)
def test_json_in_pieces_is_what_it_is_in_one_go(body: bytes) -> None:
    assert pieces(JSON_FORMAT, body) == WHOLE[JSON_FORMAT].from_json(body)


@settings(max_examples=60, deadline=None)
@given(MSGPACK_BODIES)
def test_msgpack_in_pieces_is_what_it_is_in_one_go(body: bytes) -> None:
    assert pieces(MSGPACK_FORMAT, body) == WHOLE[MSGPACK_FORMAT].from_msgpack(body)


@law("E1")
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_is_refused_as_in_one_go(data: st.DataObject) -> None:
    """One byte is changed, removed or added: both refuse, or both read the same."""
    coded = data.draw(st.sampled_from([JSON_FORMAT, MSGPACK_FORMAT]))
    body = data.draw(JSON_BODIES if coded.is_json else MSGPACK_BODIES)
    place = data.draw(st.integers(0, len(body) - 1))
    byte = data.draw(st.binary(max_size=1) | st.sampled_from([b'"', b"]", b"}", b",", b"\\"]))
    damaged = body[:place] + byte + body[place + data.draw(st.integers(0, 1)) :]
    direct = outcome(lambda: coded.decode(WHOLE[coded], damaged))
    split_up = outcome(lambda: pieces(coded, damaged))
    if isinstance(direct, type):
        assert isinstance(split_up, type)
    else:
        assert split_up == direct


# -- bounds --------------------------------------------------------------------------------


class Counting:
    """A scan, and how many steps it took."""

    def __init__(self, cursor: Cursor, body: bytes, bounds: Bounds) -> None:
        self.steps = 0
        self.cursor = cursor
        self._scan = split(cursor, body, len(body), {"messages": bounds})

    def run(self) -> Split:
        while True:
            try:
                next(self._scan)
            except StopIteration as done:
                found: Split = done.value
                return found
            self.steps += 1


MANY = Bounds(10_000, 6 * 2**20)
MB = 2**20


def scan_json(body: bytes) -> Counting:
    return Counting(JsonCursor(body, 0, len(body)), body, MANY)


def scan_msgpack(body: bytes) -> Counting:
    return Counting(MsgpackCursor(body, 0, len(body)), body, MANY)


@law("E1")
def test_counting_ends_at_the_limit() -> None:
    """Of 300,000 items no more than the limit are looked at, whatever comes after them."""
    body = b'{"messages":[' + b'{"payload":1},' * 300_000 + b"and this is no JSON"
    scan = scan_json(body)
    with pytest.raises(TooLarge) as caught:
        scan.run()
    assert (caught.value.field, caught.value.limit) == ("messages", 10_000)
    assert scan.cursor.position < 11_000 * 14
    item = msgspec.msgpack.encode({"payload": b""})
    packed = b"\x81\xa8messages\xdd" + (300_000).to_bytes(4, "big") + item * 300_000
    scan = scan_msgpack(packed)
    with pytest.raises(TooLarge) as caught:
        scan.run()
    assert scan.cursor.position < 11_000 * len(item)


@pytest.mark.parametrize(
    "item",
    [
        b'{"payload":[' + b"1," * MB + b"1]}",
        b'{"payload":[' + b"[]," * 500_000 + b"1]}",
        b'{"payload":"' + b"\\\\" * MB + b'"}',
        b'{"payload_base64":"' + b"A" * (4 * MB) + b'"}',
    ],
    ids=["numbers", "brackets", "escapes", "text"],
)
def test_a_large_item_is_scanned_in_steps(item: bytes) -> None:
    body = b'{"messages":[%b]}' % item
    scan = scan_json(body)
    (piece,) = scan.run().arrays["messages"]
    assert body[piece.begin : piece.end] == item
    # Text without escapes is found in one go, at the speed of memory.
    assert scan.steps >= (0 if b"base64" in item else 20)


@law("E1")
@pytest.mark.parametrize(
    "body, field",
    [
        (b'{"messages":[{"payload":"' + b"x" * (7 * MB) + b'"}]}', "body"),
        (b'{"messages":[{"payload":[' + b"[]," * (7 * MB // 3) + b"1]}]}", "body"),
        (b'{"messages":[{"payload":1,"headers":{' + b'"a":1,' * 20_000 + b'"a":1}}]}', "headers"),
        (b'{"messages":[{' + b'"a":1,' * 20_000 + b'"a":1}]}', "body"),
        (b'{"messages":[],' + b'"a":1,' * 20_000 + b'"a":1}', "body"),
        (b'{"messages":[' + b" " * MB + b"]}", "body"),
        (b'{"messages":[]}' + b" " * MB, "body"),
        (b'{"messages":[],"messages":[]}', "messages"),
        (b'{"messages":[],"batch_id":"' + b"x" * MB + b'"}', "body"),
    ],
    ids=["payload", "nested", "headers", "members", "body", "blanks", "tail", "twice", "id"],
)
def test_json_that_costs_more_than_its_messages(body: bytes, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        scan_json(body).run()
    assert caught.value.field == field


@law("E1")
@pytest.mark.parametrize(
    "item",
    [
        b"\x82\xa7payload\xc4\x00\xa7headers\xdf"
        + (5_000).to_bytes(4, "big")
        + b"\xa1a\x01" * 5_000,
        b"\x81\xa7payload\xdd" + (9_000).to_bytes(4, "big") + b"\x01" * 9_000,
        b"\x91" * 2_000 + b"\x01",
        b"\x81\xa7payload\xc6" + (7 * MB).to_bytes(4, "big") + bytes(7 * MB),
        b"\x81\xa7payload\xc6" + (2**32 - 1).to_bytes(4, "big") + b"x",
        b"\xdd" + (2**32 - 1).to_bytes(4, "big") + b"x",
        b"\xc1",
    ],
    ids=["headers", "array", "nested", "payload", "length", "count", "reserved"],
)
def test_msgpack_that_costs_more_than_its_messages(item: bytes) -> None:
    with pytest.raises(BadInput):
        scan_msgpack(b"\x81\xa8messages\x91" + item).run()


def test_an_error_names_the_item_of_the_body() -> None:
    items = [{"payload": number} for number in range(10)]
    items[7]["priority"] = "high"  # type: ignore[assignment]
    with pytest.raises(BadInput, match=r"\$\.messages\[7\]\.priority") as caught:
        pieces(JSON_FORMAT, json.dumps({"messages": items}).encode())
    assert caught.value.field == "messages[7].priority"


@pytest.mark.parametrize("name", [b"a" * 100_000, b"\\u0061" * 20_000], ids=["plain", "escaped"])
def test_a_long_name_is_refused_where_it_begins(name: bytes) -> None:
    """Its end is not looked for: that would take seconds of a large body."""
    body = b'{"' + name + b'": 1}'
    cursor = JsonCursor(body, 0, len(body))
    cursor.begin_object()
    with pytest.raises(BadInput, match=r"byte 1\)"):
        cursor.next_key()


def test_a_long_number_is_refused_where_it_begins() -> None:
    body = b"[" + b"1" * 1_000_000 + b"]"
    cursor = JsonCursor(body, 0, len(body))
    assert cursor.begin_array()
    assert cursor.next_item()
    with pytest.raises(TooLarge):
        list(cursor.skip(Bounds(10, 10_000_000)))
    assert cursor.position == 1
