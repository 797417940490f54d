"""Payload kinds: bytes as they are, text as UTF-8, anything else as JSON (P3)."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock import Broker, NewMessage
from penstock.broker.publish import to_payload
from penstock.errors import BadInput
from penstock.testing.laws import law

if TYPE_CHECKING:
    from tests.unit.broker.conftest import Refuses

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


@dataclass
class Order:
    number: int
    item: str


class Invoice(msgspec.Struct):
    number: int
    paid: bool


class Raw(bytes):
    __slots__ = ()


@law("P3")
@pytest.mark.parametrize(
    "payload, stored, content_type",
    [
        (b"", b"", None),
        (b"\x00\xff", b"\x00\xff", None),
        (bytearray(b"\x00\xff"), b"\x00\xff", None),
        (memoryview(b"abc"), b"abc", None),
        (memoryview(b"abcdef")[::2], b"ace", None),
        ("", b"", TEXT),
        ("é\U0001f600", "é\U0001f600".encode(), TEXT),
        ({"order": 7}, b'{"order":7}', JSON),
        ([1, "two", None, True], b'[1,"two",null,true]', JSON),
        ((), b"[]", JSON),
        (None, b"null", JSON),
        (7, b"7", JSON),
        (True, b"true", JSON),
        (Order(7, "pump"), b'{"number":7,"item":"pump"}', JSON),
        (Invoice(7, False), b'{"number":7,"paid":false}', JSON),
        (dt.date(2024, 2, 29), b'"2024-02-29"', JSON),
    ],
    # Not repr: that of a memoryview is its address, and the test's name would change.
    ids=lambda value: type(value).__name__,
)
async def test_what_is_stored_for_a_payload(
    q: Broker, payload: Any, stored: bytes, content_type: str | None
) -> None:
    published = await q.publish("orders", payload)
    (delivery,) = await q.claim("orders")
    assert delivery.payload == stored
    assert type(delivery.payload) is bytes
    assert delivery.message.content_type == content_type
    assert delivery.message.size == len(stored)
    assert (await q.message(published.id)).payload == stored


@pytest.mark.parametrize("payload", [b"{}", "{}", {}], ids=repr)
@pytest.mark.parametrize("content_type", ["", "application/x-own"])
async def test_the_producer_names_the_content_type(
    q: Broker, payload: Any, content_type: str
) -> None:
    await q.publish("orders", payload, content_type=content_type)
    (delivery,) = await q.claim("orders")
    assert (delivery.payload, delivery.message.content_type) == (b"{}", content_type)


@law("P3")
async def test_a_buffer_may_be_reused_after_publish(q: Broker) -> None:
    buffer = bytearray(b"first")
    await q.publish("orders", buffer)
    buffer[:] = b"other"
    (delivery,) = await q.claim("orders")
    assert delivery.payload == b"first"


@law("P3")
async def test_json_reads_back(q: Broker) -> None:
    value = {"text": 'é"\\\n', "deep": [{"a": [1.5, -1, 2**60]}], "none": None}
    await q.publish("orders", value)
    (delivery,) = await q.claim("orders")
    assert json.loads(delivery.payload) == value


@law("E1")
@pytest.mark.parametrize(
    "payload",
    [
        object(),
        {"a": object()},
        {("a", "b"): 1},
        1j,
        "text".__len__,
        {"a": "\ud800"},
        Raw(b"x"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_payload_that_is_nothing_of_it(q: Broker, refuses: Refuses, payload: Any) -> None:
    await refuses(q.publish("orders", payload), BadInput, "payload")


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def released() -> memoryview:
    view = memoryview(b"gone")
    view.release()
    return view


@law("E1")
@pytest.mark.parametrize(
    "payload",
    [
        pytest.param("\ud800", id="lone surrogate"),
        pytest.param("text \udfff", id="lone surrogate after text"),
        pytest.param(endless(), id="holds itself"),
        pytest.param({"a": [endless()]}, id="holds one that holds itself"),
        pytest.param(released(), id="released memoryview"),
        pytest.param(10**5000, id="more digits than an integer may have"),
    ],
)
async def test_a_payload_that_cannot_be_encoded(q: Broker, refuses: Refuses, payload: Any) -> None:
    await refuses(q.publish("orders", payload), BadInput, "payload")


def test_the_error_says_why_the_payload_is_refused() -> None:
    with pytest.raises(BadInput, match="type object is unsupported") as caught:
        to_payload({"a": object()})
    assert isinstance(caught.value.__cause__, TypeError)


@law("E1")
@pytest.mark.parametrize("payload", ["text", None, bytearray(b"x"), {"a": 1}], ids=repr)
async def test_a_batch_takes_bytes_only(q: Broker, refuses: Refuses, payload: Any) -> None:
    await refuses(q.publish_batch("orders", [NewMessage(payload)]), BadInput, "payload")
