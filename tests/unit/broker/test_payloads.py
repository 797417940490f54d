"""Payload kinds: bytes as they are, text as UTF-8, anything else as JSON (P3)."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock import Ack, Broker, Extend, Nack, NewMessage, Outgoing, Release
from penstock.errors import BadInput
from penstock.model.payload import to_payload
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


class Model:
    """Has the methods of a pydantic model."""

    def __repr__(self) -> str:
        return "Model()"

    def model_dump_json(self) -> str:
        return '{"a":1}'

    def model_dump(self, mode: str) -> dict[str, int]:
        assert mode == "json"
        return {"a": 1}


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    "value, stored",
    [
        ("text", b"text"),
        (None, b"null"),
        (bytearray(b"x"), b"x"),
        ({"a": 1}, b'{"a":1}'),
        (Point(7), b'{"x":7}'),
        (Model(), b'{"a":1}'),
        ([Model()], b'[{"a":1}]'),
    ],
    ids=repr,
)
async def test_a_value_is_stored_alike_by_every_verb(q: Broker, value: Any, stored: bytes) -> None:
    _, content_type = to_payload(value)
    await q.publish("orders", value)
    await q.publish_batch("orders", [NewMessage(value)])
    (first, second) = await q.claim("orders", limit=2)
    await q.ack(first, value)
    found = await q.result("orders", first.message.id)
    await q.settle(
        "orders", [Ack(second.receipt)], publish=[Outgoing("orders", [NewMessage(value)])]
    )
    (third,) = await q.claim("orders")
    for delivery in (first, second, third):
        assert (delivery.payload, delivery.message.content_type) == (stored, content_type)
    assert found is not None
    assert found.result == (None if value is None else stored)


@law("E1")
async def test_a_batch_with_a_value_that_cannot_be_stored(q: Broker, refuses: Refuses) -> None:
    batch = [NewMessage(b"x"), NewMessage(object())]
    await refuses(q.publish_batch("orders", batch), BadInput, "payload")


async def test_durations_may_be_timedeltas(q: Broker) -> None:
    now = (await q.publish("orders", b"x", ttl_ms=timedelta(days=1))).id
    message = NewMessage(b"x", delay_ms=timedelta(seconds=2))
    await q.publish_batch("orders", [message], batch_id="b", batch_ms=timedelta(minutes=1))
    shown = [item.message for item in (await q.read_log(now)).entries]
    assert shown[0].expires_at == shown[0].published_at + 86_400_000
    assert shown[1].deliver_at == shown[1].published_at + 2_000
    (delivery,) = await q.claim("orders", lease_ms=timedelta(seconds=9), wait_ms=timedelta(0))
    assert delivery.lease_deadline == delivery.claimed_at + 9_000
    outcome = await q.nack(delivery, delay_ms=timedelta(seconds=5))
    assert outcome.until == delivery.claimed_at + 5_000


async def test_settlements_and_a_replay_take_timedeltas(q: Broker) -> None:
    message_id = (await q.publish("orders", b"x")).id
    (delivery,) = await q.claim("orders")
    (extended,) = (
        await q.settle("orders", [Extend(delivery.receipt, timedelta(minutes=1))])
    ).outcomes
    assert extended.until == delivery.claimed_at + 60_000
    assert Nack(delivery.receipt, None, timedelta(seconds=3)).delay_ms == 3_000
    (released,) = (
        await q.settle("orders", [Release(delivery.receipt, timedelta(seconds=2))])
    ).outcomes
    assert released.until == delivery.claimed_at + 2_000
    await q.purge("orders", "delayed")
    await q.replay("orders", "log", ttl_ms=timedelta(days=1))
    (replayed,) = await q.claim("orders")
    assert replayed.message.id == message_id
    assert replayed.message.expires_at == delivery.claimed_at + 86_400_000


@law("E1")
@pytest.mark.parametrize("payload", [NewMessage(b"x"), [NewMessage(b"x")], (NewMessage(b"x"),)])
async def test_a_message_is_no_payload(q: Broker, refuses: Refuses, payload: object) -> None:
    """It would be stored as JSON, with its payload in base64."""
    await refuses(q.publish("orders", payload), BadInput, "payload")
