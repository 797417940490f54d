"""Publish: what is refused, at which boundary, and that a refusal leaves nothing behind (E1)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum, StrEnum
from math import inf, isnan, nan
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pytest

import penstock
from penstock import Broker, BrokerOptions, EngineOptions, Limits, NewMessage, errors
from penstock.broker import publish as publish_module
from penstock.errors import BadInput, BadName, TooLarge, UnknownTopic
from penstock.model.message import HeaderValue
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

if TYPE_CHECKING:
    from tests.unit.broker.conftest import Refuses

MIB: Final = 1024 * 1024
MONTH_MS: Final = 30 * 24 * 3600 * 1000
#: The last millisecond of the year 9999.
LAST_MS: Final = 253_402_300_799_999
LONE_SURROGATE: Final = "\ud800"


class Level(IntEnum):
    HIGH = 3


class Colour(StrEnum):
    RED = "red"


class Text(str):
    __slots__ = ()


def keys_over_512_bytes(field: str) -> list[Any]:
    return [
        (field, "x" * 513, TooLarge, 512),
        (field, "é" * 257, TooLarge, 512),
        (field, 5, BadInput, None),
        (field, b"x", BadInput, None),
        (field, Colour.RED, BadInput, None),
        (field, Text("x"), BadInput, None),
        (field, LONE_SURROGATE, BadInput, None),
    ]


def times_from(field: str, least: int) -> list[Any]:
    return [(field, value, BadInput, least) for value in (least - 1, -(2**70), True, 1.0, "5")]


BAD_OPTIONS: Final[list[Any]] = [
    *[("priority", bad, BadInput, 9) for bad in [-1, 10, True, 4.0, "4", None, Level.HIGH]],
    *keys_over_512_bytes("id"),
    *keys_over_512_bytes("key"),
    *keys_over_512_bytes("partition_key"),
    *keys_over_512_bytes("content_type"),
    ("id", "", BadInput, None),
    ("key", "", BadInput, None),
    *times_from("delay_ms", 0),
    *times_from("deliver_at", 0),
    *times_from("expires_at", 0),
    *times_from("ttl_ms", 1),
    *[("max_attempts", bad, BadInput, 65_535) for bad in (0, -1, 65_536, 2**70, 1.0, "1", True)],
    ("durability", None, BadInput, None),
    ("durability", "memory", BadInput, None),
    ("durability", "FSYNC", BadInput, None),
    ("durability", [], BadInput, None),
    *[("auto_create", bad, BadInput, None) for bad in (None, 0, 1, "no")],
]


@law("E1")
@pytest.mark.parametrize("field, value, kind, limit", BAD_OPTIONS)
async def test_an_option_out_of_bounds(
    q: Broker,
    refuses: Refuses,
    field: str,
    value: Any,
    kind: type[errors.PenstockError],
    limit: int | None,
) -> None:
    options: dict[str, Any] = {field: value}
    await refuses(q.publish("orders", b"", **options), kind, field, limit)


@law("E1")
@pytest.mark.parametrize("bad", [None, 0, "no"])
async def test_auto_create_of_a_batch_is_true_or_false(
    q: Broker, refuses: Refuses, bad: Any
) -> None:
    batch = [NewMessage(b"x")]
    await refuses(q.publish_batch("orders", batch, auto_create=bad), BadInput, "auto_create", None)


async def test_a_batch_need_not_create_a_queue(q: Broker) -> None:
    batch = [NewMessage(b"x"), NewMessage(b"y")]
    reply = await q.publish_batch("orders", batch, auto_create=False)
    assert [message.queues for message in reply.messages] == [0, 0]
    assert await q.queues() == ()
    reply = await q.publish_batch("orders", batch)
    assert [message.queues for message in reply.messages] == [1, 1]


@law("E1")
@pytest.mark.parametrize("field", ["delay_ms", "deliver_at", "ttl_ms", "expires_at"])
async def test_a_time_after_the_year_9999(q: Broker, refuses: Refuses, field: str) -> None:
    options: dict[str, Any] = {field: LAST_MS + 1}
    await refuses(q.publish("orders", b"", **options), BadInput, field, LAST_MS)


@pytest.mark.parametrize(
    "field, value",
    [
        ("priority", 0),
        ("priority", 9),
        ("partition_key", ""),
        ("partition_key", "é" * 256),
        ("key", "k" * 512),
        ("content_type", ""),
        ("content_type", "x" * 512),
        ("deliver_at", LAST_MS),
        ("expires_at", LAST_MS),
    ],
)
async def test_exactly_at_the_limit(q: Broker, field: str, value: Any) -> None:
    options: dict[str, Any] = {field: value}
    published = await q.publish("orders", b"", **options)
    assert getattr((await q.message(published.id)).message, field) == value


async def test_an_id_of_512_bytes_is_one_id(q: Broker) -> None:
    first = await q.publish("orders", b"", id="é" * 256)
    again = await q.publish("orders", b"", id="é" * 256)
    assert again.duplicate
    assert again.id == first.id


@law("E1")
@pytest.mark.parametrize(
    "field, times",
    [
        ("delay_ms", {"delay_ms": 1, "deliver_at": 1}),
        ("ttl_ms", {"ttl_ms": 1, "expires_at": 1}),
    ],
)
async def test_relative_and_absolute_time_exclude_each_other(
    q: Broker, refuses: Refuses, field: str, times: dict[str, Any]
) -> None:
    await refuses(q.publish("orders", b"", **times), BadInput, field)


async def test_relative_times_count_from_the_publish(q: Broker, clock: FakeClock) -> None:
    published = await q.publish("orders", b"", delay_ms=5, ttl_ms=7)
    message = (await q.message(published.id)).message
    assert message.deliver_at == clock.now() + 5
    assert message.expires_at == clock.now() + 7


async def test_one_relative_and_one_absolute_time(q: Broker, clock: FakeClock) -> None:
    now = clock.now()
    first = await q.publish("orders", b"", delay_ms=5, expires_at=now + 9)
    second = await q.publish("orders", b"", deliver_at=now + 4, ttl_ms=8)
    times = [(await q.message(item.id)).message for item in (first, second)]
    assert [(item.deliver_at, item.expires_at) for item in times] == [
        (now + 5, now + 9),
        (now + 4, now + 8),
    ]


async def test_a_time_past_the_last_one_is_the_last_one(q: Broker) -> None:
    published = await q.publish("orders", b"", delay_ms=LAST_MS, ttl_ms=LAST_MS)
    message = (await q.message(published.id)).message
    assert (message.deliver_at, message.expires_at) == (LAST_MS, LAST_MS)


async def test_no_delay_is_available_at_once(q: Broker, clock: FakeClock) -> None:
    published = await q.publish("orders", b"", delay_ms=0)
    assert (await q.message(published.id)).message.deliver_at == clock.now()
    assert len(await q.claim("orders")) == 1


async def test_relative_times_touch_only_their_own_message(q: Broker, clock: FakeClock) -> None:
    batch = [
        NewMessage(b"plain"),
        NewMessage(b"later", delay_ms=10),
        NewMessage(b"plain", partition_key="k"),
    ]
    reply = await q.publish_batch("orders", batch)
    due = [(await q.message(item.id)).message.deliver_at - clock.now() for item in reply.messages]
    assert due == [0, 10, 0]


# -- names -----------------------------------------------------------------------------


@law("E1")
@pytest.mark.parametrize("name", [None, 5, [], "", "-a", ".a", "a b", "a\n", "a/b", "é", "a" * 129])
async def test_a_topic_that_is_not_a_name(q: Broker, refuses: Refuses, name: Any) -> None:
    await refuses(q.publish(name, b""), BadName, "topic", 128)
    await refuses(q.publish_batch(name, [NewMessage(b"")]), BadName, "topic", 128)


@law("E1")
async def test_a_dead_letter_queue_is_no_topic(q: Broker, refuses: Refuses) -> None:
    await refuses(q.publish("orders.dlq", b""), BadName, "topic")


async def test_a_name_of_128_characters(q: Broker) -> None:
    name = "A9._-" + "z" * 123
    published = await q.publish(name, b"")
    assert (await q.message(published.id)).message.topic == name


# -- headers ---------------------------------------------------------------------------


@law("E1")
@pytest.mark.parametrize(
    "headers, kind, limit",
    [
        ("text", BadInput, None),
        ([("a", 1)], BadInput, None),
        ({"": 1}, BadInput, None),
        ({1: 1}, BadInput, None),
        ({b"a": 1}, BadInput, None),
        ({Colour.RED: 1}, BadInput, None),
        ({Text("a"): 1}, BadInput, None),
        ({LONE_SURROGATE: 1}, BadInput, None),
        ({"n" * 256: 1}, TooLarge, 255),
        ({"é" * 128: 1}, TooLarge, 255),
        ({"a": None}, BadInput, None),
        ({"a": b"x"}, BadInput, None),
        ({"a": [1]}, BadInput, None),
        ({"a": Level.HIGH}, BadInput, None),
        ({"a": Colour.RED}, BadInput, None),
        ({"a": Text("x")}, BadInput, None),
        ({"a": LONE_SURROGATE}, BadInput, None),
        ({"a": 2**63}, BadInput, None),
        ({"a": -(2**63) - 1}, BadInput, None),
        ({f"h{n}": n for n in range(65)}, TooLarge, 64),
        ({"a": "x" * 16 * 1024}, TooLarge, 16 * 1024),
        ({"a": "é" * 8 * 1024}, TooLarge, 16 * 1024),
        ({"a": "x" * (16 * 1024 - 9), "b": True}, TooLarge, 16 * 1024),
    ],
    ids=lambda value: repr(value)[:30],
)
async def test_headers_out_of_bounds(
    q: Broker,
    refuses: Refuses,
    headers: Any,
    kind: type[errors.PenstockError],
    limit: int | None,
) -> None:
    await refuses(q.publish("orders", b"", headers=headers), kind, "headers", limit)


@law("P3")
@pytest.mark.parametrize(
    "headers",
    [
        {f"h{n}": n for n in range(64)},
        {"n" * 255: 1},
        {"a": "x" * (16 * 1024 - 1)},
        {"a": "x" * (16 * 1024 - 10), "b": True},
        {"a": 2**63 - 1, "b": -(2**63)},
        {"a": inf, "b": -inf, "c": -0.0, "d": 0.1},
        {"a": "", "b": "é\U0001f600\x00"},
    ],
    ids=lambda value: repr(value)[:30],
)
async def test_headers_at_the_limit_come_back(q: Broker, headers: Any) -> None:
    await q.publish("orders", b"", headers=headers)
    (delivery,) = await q.claim("orders")
    assert delivery.message.headers == headers


@law("P3")
async def test_a_header_keeps_its_type(q: Broker) -> None:
    await q.publish("orders", b"", headers={"a": True, "b": 1, "c": 1.0, "d": "1"})
    (delivery,) = await q.claim("orders")
    assert [type(value) for value in delivery.message.headers.values()] == [bool, int, float, str]


async def test_nan_is_a_header_like_any_other(q: Broker) -> None:
    await q.publish("orders", b"", headers={"a": nan})
    (delivery,) = await q.claim("orders")
    value = delivery.message.headers["a"]
    assert isinstance(value, float)
    assert isnan(value)


@law("P3")
async def test_what_the_producer_does_to_its_headers_afterwards(q: Broker) -> None:
    headers: dict[str, Any] = {"amount": 1}

    async def spoil() -> None:
        headers.update(amount=2, late=True)

    await asyncio.gather(
        q.publish("orders", b""), q.publish("orders", b"", headers=headers), spoil()
    )
    _, delivery = await q.claim("orders", limit=2)
    assert delivery.message.headers == {"amount": 1}


@law("P3")
async def test_headers_of_another_kind_of_mapping(q: Broker) -> None:
    await q.publish("orders", b"", headers=MappingProxyType({"amount": 1}))
    (delivery,) = await q.claim("orders")
    assert delivery.message.headers == {"amount": 1}


# -- batches ---------------------------------------------------------------------------


@law("E1")
@pytest.mark.parametrize(
    "messages",
    [
        ["text"],
        [b"bytes"],
        [None],
        "text",
        {"a": 1},
        [NewMessage(b""), NewMessage],
        [NewMessage(b""), {"payload": b""}],
    ],
    ids=repr,
)
async def test_a_batch_of_something_else(q: Broker, refuses: Refuses, messages: Any) -> None:
    await refuses(q.publish_batch("orders", messages), BadInput, "messages")


@law("E1")
@pytest.mark.parametrize(
    "messages",
    [None, 5, iter(()), {1: NewMessage(b"")}.values(), NewMessage(b""), deque([NewMessage(b"")])],
    ids=["None", "5", "iterator", "values", "NewMessage", "deque"],
)
async def test_a_batch_that_is_no_list_or_tuple(q: Broker, refuses: Refuses, messages: Any) -> None:
    await refuses(q.publish_batch("orders", messages), BadInput, "messages")


@law("E1")
async def test_a_batch_of_none_or_too_many(q: Broker, refuses: Refuses) -> None:
    nothing: list[Any] = [[], ()]
    for empty in nothing:
        await refuses(q.publish_batch("orders", empty), BadInput, "messages", 1)
    batch = [NewMessage(b"")] * 10_001
    await refuses(q.publish_batch("orders", batch), TooLarge, "messages", 10_000)


@law("E1")
@pytest.mark.parametrize("batch_ms", [0, -1, MONTH_MS + 1, 2**70, True, 1.0, "1000"])
async def test_a_batch_id_that_cannot_be_remembered_for_so_long(
    q: Broker, refuses: Refuses, batch_ms: Any
) -> None:
    call = q.publish_batch("orders", [NewMessage(b"")], batch_id="b", batch_ms=batch_ms)
    await refuses(call, BadInput, "batch_ms", MONTH_MS)


@law("E1")
async def test_how_long_without_what(q: Broker, refuses: Refuses) -> None:
    call = q.publish_batch("orders", [NewMessage(b"")], batch_ms=1)
    await refuses(call, BadInput, "batch_ms")


@law("P4")
async def test_a_batch_id_is_remembered_for_as_long_as_it_says(q: Broker, clock: FakeClock) -> None:
    for batch_ms in (1, MONTH_MS):
        for wait_ms, repeated in ((0, False), (batch_ms - 1, True), (1, False)):
            clock.advance(wait_ms)
            reply = await q.publish_batch(
                "orders", [NewMessage(b"")], batch_id=f"b{batch_ms}", batch_ms=batch_ms
            )
            assert reply.repeated is repeated


async def test_a_batch_of_ten_thousand(q: Broker) -> None:
    reply = await q.publish_batch("orders", [NewMessage(b"")] * 10_000)
    assert len(reply.messages) == 10_000
    assert await q.log_end() == 10_000


@law("P2")
@pytest.mark.parametrize(
    "bad, kind, field",
    [
        (NewMessage(b"", priority=10), BadInput, "priority"),
        (NewMessage(b"x" * (MIB + 1)), TooLarge, "payload"),
        (NewMessage(b"", headers={"a": 2**63}), BadInput, "headers"),
        (NewMessage(b"", ttl_ms=0), BadInput, "ttl_ms"),
    ],
    ids=["priority", "payload", "headers", "ttl_ms"],
)
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_one_bad_message_refuses_the_batch(
    q: Broker,
    refuses: Refuses,
    bad: NewMessage,
    kind: type[errors.PenstockError],
    field: str,
    place: int,
) -> None:
    batch = [NewMessage(b"a", id="a"), NewMessage(b"b", key="b")]
    batch.insert(place, bad)
    limit = {"priority": 9, "payload": MIB, "ttl_ms": 1}.get(field)
    await refuses(q.publish_batch("orders", batch), kind, field, limit)


async def test_the_reply_says_how_safe_it_is(q: Broker) -> None:
    for durability in ("fsync", "os"):
        reply = await q.publish_batch("orders", [NewMessage(b"")], durability=durability)
        assert reply.durability == "memory"


async def test_the_durability_that_was_asked_for_is_what_was_done(tmp_path: Any) -> None:
    async with penstock.open(f"rocksdb://{tmp_path}/store") as q:
        for durability in ("fsync", "os"):
            reply = await q.publish_batch("orders", [NewMessage(b"")], durability=durability)
            assert reply.durability == durability


# -- payload limit ---------------------------------------------------------------------


@law("E1")
async def test_a_payload_over_a_mebibyte(q: Broker, refuses: Refuses) -> None:
    await refuses(q.publish("orders", b"x" * (MIB + 1)), TooLarge, "payload", MIB)
    await refuses(q.publish("orders", "é" * (MIB // 2) + "x"), TooLarge, "payload", MIB)
    await refuses(q.publish("orders", ["x" * (MIB - 3)]), TooLarge, "payload", MIB)


@law("P3")
async def test_a_payload_of_a_mebibyte(q: Broker) -> None:
    payload = bytes(range(256)) * 4096
    await q.publish("orders", payload)
    (delivery,) = await q.claim("orders")
    assert delivery.payload == payload


async def test_the_operator_sets_the_payload_limit(clock: FakeClock) -> None:
    engine = EngineOptions(clock=clock, limits=Limits(payload_bytes=3))
    async with penstock.open("memory://", options=BrokerOptions(engine=engine)) as q:
        await q.publish("orders", b"abc")
        with pytest.raises(TooLarge) as caught:
            await q.publish("orders", b"abcd")
        assert (caught.value.field, caught.value.limit) == ("payload", 3)
        (delivery,) = await q.claim("orders", limit=10)
        with pytest.raises(TooLarge) as caught:
            await q.ack(delivery, b"abcd")
        assert (caught.value.field, caught.value.limit) == ("result", 3)
        assert await q.log_end() == 1


# -- registered topics -----------------------------------------------------------------


@law("E1")
async def test_a_topic_that_has_to_be_registered(strict: Broker) -> None:
    for call in (
        strict.publish("orders", b""),
        strict.publish_batch("orders", [NewMessage(b"")]),
    ):
        with pytest.raises(UnknownTopic) as caught:
            await call
        assert (caught.value.field, caught.value.status) == ("topic", 404)
    assert await strict.log_end() == 0
    assert await strict.queues() == ()


async def test_a_registered_topic_is_published_to(strict: Broker) -> None:
    await strict.put_topic("orders")
    await strict.publish("orders", b"one")
    await strict.publish_batch("orders", [NewMessage(b"two")])
    assert [item.payload for item in await strict.claim("orders", limit=5)] == [b"one", b"two"]
    await strict.delete_topic("orders")
    with pytest.raises(UnknownTopic):
        await strict.publish("orders", b"three")


@law("E1")
async def test_the_topic_is_looked_up_before_the_batch_is_checked(strict: Broker) -> None:
    """What is checked last is what the engine gets."""
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: strict.publish("orders", b"", priority=10),
        lambda: strict.publish_batch("orders", [NewMessage(b"", priority=10)]),
    ]
    for call in calls:
        with pytest.raises(UnknownTopic):
            await call()
    await strict.put_topic("orders")
    for call in calls:
        with pytest.raises(BadInput) as caught:
            await call()
        assert caught.value.field == "priority"
    assert await strict.log_end() == 0


@law("E1")
async def test_what_is_no_name_is_never_looked_up(strict: Broker) -> None:
    for call in (strict.publish("a b", b""), strict.publish_batch("a b", [NewMessage(b"")])):
        with pytest.raises(BadName) as caught:
            await call
        assert caught.value.field == "topic"


@law("E1")
async def test_a_batch_that_grows_after_it_was_checked(strict: Broker) -> None:
    """Another task has its turn between the check and the engine."""
    await strict.put_topic("orders")
    batch = [NewMessage(b"checked")]

    async def grow() -> None:
        batch.append(NewMessage(b"x" * (MIB + 1)))

    _, reply, _ = await asyncio.gather(
        strict.publish("orders", b"first"),
        strict.publish_batch("orders", batch),
        grow(),
        return_exceptions=True,
    )
    # It was refused as it was when it was checked, or stored as it was: never unchecked.
    sizes = [entry.message.size for entry in (await strict.read_log()).entries]
    if isinstance(reply, BaseException):
        assert isinstance(reply, TooLarge)
        assert (reply.field, reply.limit) == ("payload", MIB)
        assert sizes == [5]
    else:
        assert sorted(sizes) == [5, 7]


@law("E1")
async def test_a_batch_that_grows_while_the_store_is_busy(q: Broker) -> None:
    """What was checked is what is stored, whatever becomes of the caller's list."""
    batch = [NewMessage(b"checked")]

    async def grow() -> None:
        batch.append(NewMessage(b"x" * (MIB + 1)))

    await asyncio.gather(q.publish("orders", b"first"), q.publish_batch("orders", batch), grow())
    # A single publish is handed down at the end of the turn; calls at the same time have no order.
    assert sorted(entry.message.size for entry in (await q.read_log()).entries) == [5, 7]


async def test_messages_with_many_headers_are_checked_in_slices(
    q: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = 0
    check = publish_module._check_headers

    def counting(headers: Mapping[str, HeaderValue]) -> None:
        nonlocal checked
        checked += len(headers)
        check(headers)

    monkeypatch.setattr(publish_module, "_check_headers", counting)
    headers: dict[str, HeaderValue] = {f"header-{number}": number for number in range(64)}
    messages = [NewMessage(b"", headers) for _ in range(250)]
    publishing = asyncio.ensure_future(q.publish_batch("t", messages))
    most = last = 0
    while not publishing.done():
        await asyncio.sleep(0)
        most, last = max(most, checked - last), checked
    assert len((await publishing).messages) == 250
    assert checked == 250 * 64
    assert most <= 5_000
