"""What a handler is given for its annotation, and what becomes of what it returns."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

from penstock import Delivery, Message, State
from penstock.consume import Lease
from penstock.errors import BadInput
from penstock.testing.inline import inline
from penstock.testing.laws import law
from penstock.worker import App, Context, Handled


class Order(msgspec.Struct):
    id: int
    country: str = "DE"


@dataclasses.dataclass
class Plain:
    id: int


class Typed(TypedDict):
    id: int


class Pair(NamedTuple):
    left: int
    right: int


class Model(pydantic.BaseModel):
    id: int
    amount: Annotated[int, pydantic.Field(gt=0)] = 1


@pydantic.dataclasses.dataclass
class Checked:
    id: Annotated[int, pydantic.Field(gt=0)]


JSON = "application/json"
MSGPACK = "application/msgpack"


async def handle(
    annotation: object, payload: bytes, content_type: str | None = None
) -> tuple[list[Any], Handled]:
    """What a handler with a parameter of that annotation got, and what became of it."""
    app = App("http://nowhere")
    got: list[Any] = []

    def handler(payload):
        got.append(payload)

    handler.__annotations__ = {"payload": annotation}
    app.worker("q")(handler)
    async with inline(app) as q:
        await q.publish("q", payload, content_type=content_type)
        (handled,) = await q.run_until_idle()
    return got, handled


@pytest.mark.parametrize(
    "annotation, payload, content_type, expected",
    [
        (bytes, b"\xff\x00", None, b"\xff\x00"),
        (bytes, b'{"id":1}', JSON, b'{"id":1}'),
        (str, "grün".encode(), "text/plain", "grün"),
        (str, b'"quoted"', JSON, '"quoted"'),
        (Order, b'{"id":7,"country":"AT"}', None, Order(7, "AT")),
        (Order, b'{"id":7}', JSON, Order(7)),
        (Order, msgspec.msgpack.encode({"id": 7}), MSGPACK, Order(7)),
        (Order, msgspec.msgpack.encode({"id": 7}), "Application/X-MsgPack; v=1", Order(7)),
        (Order | None, b"null", JSON, None),
        (list[Order], b'[{"id":1},{"id":2}]', JSON, [Order(1), Order(2)]),
        (Plain, b'{"id":7}', JSON, Plain(7)),
        (Typed, b'{"id":7}', JSON, {"id": 7}),
        (Pair, b"[1,2]", JSON, Pair(1, 2)),
        (int, b"42", JSON, 42),
        (dict[str, int], b'{"a":1}', None, {"a": 1}),
        (Annotated[int, msgspec.Meta(gt=1)], b"2", JSON, 2),
        (Model, b'{"id":7}', JSON, Model(id=7)),
        (Model, msgspec.msgpack.encode({"id": 7}), MSGPACK, Model(id=7)),
        (list[Model], b'[{"id":1}]', JSON, [Model(id=1)]),
        (Model | None, b"null", JSON, None),
        (Checked, b'{"id":7}', JSON, Checked(7)),
        (Any, b'{"a":[1]}', JSON, {"a": [1]}),
        (object, b'{"a":[1]}', "application/problem+json", {"a": [1]}),
        (Any, msgspec.msgpack.encode([1]), MSGPACK, [1]),
        (Any, b"text", "text/plain; charset=utf-8", "text"),
        (Any, b"\xff", None, b"\xff"),
        (Any, b"\xff", "image/png", b"\xff"),
    ],
)
async def test_a_payload_is_read_as_the_annotation_says(
    annotation: object, payload: bytes, content_type: str | None, expected: object
) -> None:
    got, handled = await handle(annotation, payload, content_type)
    assert got == [expected]
    assert type(got[0]) is type(expected)
    assert handled.state is State.DONE


@pytest.mark.parametrize(
    "annotation, payload, content_type, where",
    [
        (Order, b'{"id":"seven"}', JSON, "$.id"),
        (Order, b'{"id":', JSON, "truncated"),
        (Order, b"\xff\xff", None, "malformed"),
        (Order, b'{"id":7}', MSGPACK, "payload cannot be read"),
        (list[Order], b'[{"id":1},{}]', JSON, "$[1]"),
        (Annotated[int, msgspec.Meta(gt=1)], b"1", JSON, ">= 2"),
        (str, b"\xff", None, "can't decode byte 0xff"),
        (Model, b'{"id":1,"amount":0}', JSON, "amount"),
        (Model, b"\xff", None, "Invalid JSON"),
        (Model, b"\xc1", MSGPACK, "payload cannot be read"),
        (Checked, b'{"id":-1}', JSON, "greater than 0"),
        (Any, b"{", JSON, "truncated"),
        (Any, b"[" * 10_000, JSON, "recursion"),
    ],
)
async def test_a_payload_that_cannot_be_read_fails_at_once_and_says_where(
    annotation: object, payload: bytes, content_type: str | None, where: str
) -> None:
    got, handled = await handle(annotation, payload, content_type)
    assert got == []
    assert handled.state is State.FAILED
    assert handled.error is not None
    assert where in handled.error


async def test_no_annotation_means_the_bytes() -> None:
    app = App("http://nowhere")
    got = []

    @app.worker("q")
    async def handler(payload):
        got.append(payload)

    async with inline(app) as q:
        await q.publish("q", {"id": 7})
        await q.run_until_idle()
    assert got == [b'{"id":7}']


async def test_the_rest_is_given_by_annotation_in_any_place() -> None:
    app = App("http://nowhere")
    got: list[Any] = []

    @app.worker("q")
    async def handler(
        context: Context,
        /,
        order: Order,
        message: Message,
        *rest: int,
        lease: Lease,
        delivery: Delivery,
        verbose: bool = False,
        **more: object,
    ) -> None:
        got.extend((context, order, message, rest, lease, delivery, verbose, more))

    async with inline(app) as q:
        number = (await q.publish("q", Order(7), headers={"country": "DE"})).id
        await q.run_until_idle()
    context, order, message, rest, lease, delivery, verbose, more = got
    assert order == Order(7)
    assert (rest, verbose, more) == ((), False, {})
    assert message.id == delivery.message.id == lease.message.id == context.message.id == number
    assert context.headers == {"country": "DE"}
    assert (context.queue, context.attempts) == ("q", 1)
    assert context.delivery is delivery
    assert not context.lost
    assert not context.stopping


async def test_a_handler_may_want_nothing_at_all() -> None:
    app = App("http://nowhere")

    @app.worker("q")
    def tick() -> str:
        return "tock"

    async with inline(app) as q:
        await q.publish("q", b"")
        (handled,) = await q.run_until_idle()
    assert handled.result == b"tock"


async def test_types_may_be_local_to_the_function_around() -> None:
    class Local(msgspec.Struct):
        id: int

    app = App("http://nowhere")

    @app.worker("q")
    async def handler(order: Local) -> int:
        return order.id

    async with inline(app) as q:
        await q.publish("q", {"id": 7})
        (handled,) = await q.run_until_idle()
    assert handled.result == b"7"


class Callable:
    async def __call__(self, order: Order) -> int:
        return order.id

    def method(self, order: Order) -> int:
        return order.id


@pytest.mark.parametrize("handler", [Callable(), Callable().method], ids=["object", "method"])
async def test_a_handler_may_be_anything_that_can_be_called(handler: Any) -> None:
    app = App("http://nowhere")
    app.worker("q")(handler)
    async with inline(app) as q:
        await q.publish("q", {"id": 7})
        (handled,) = await q.run_until_idle()
    assert handled.result == b"7"


class Arbitrary:
    pass


def two(left: Order, right: Order) -> None: ...
def unreadable(order: Arbitrary) -> None: ...
def unknown(order: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def generator(order: Order):
    yield 1


@law("E1")
@pytest.mark.parametrize("handler", [two, unreadable, unknown, generator])
def test_a_handler_that_cannot_be_filled_is_refused_when_it_is_registered(handler: Any) -> None:
    app = App("http://nowhere")
    with pytest.raises(BadInput) as caught:
        app.worker("q")(handler)
    assert caught.value.field in ("handler", "payload")
    assert app.registrations == ()


@pytest.mark.parametrize(
    "value, expected",
    [
        (None, None),
        (b"\xff", b"\xff"),
        (bytearray(b"ab"), b"ab"),
        ("grün", "grün".encode()),
        (7, b"7"),
        ({"a": [1, 2]}, b'{"a":[1,2]}'),
        (Order(7), b'{"id":7,"country":"DE"}'),
        (Plain(7), b'{"id":7}'),
        (Model(id=7), b'{"id":7,"amount":1}'),
        ([Model(id=7)], b'[{"id":7,"amount":1}]'),
        (False, b"false"),
    ],
)
async def test_what_is_returned_is_the_result(value: object, expected: bytes | None) -> None:
    app = App("http://nowhere")

    @app.worker("q")
    async def handler() -> object:
        return value

    async with inline(app) as q:
        number = (await q.publish("q", b"")).id
        (handled,) = await q.run_until_idle()
        result = await q.result("q", number)
    assert handled.state is State.DONE
    assert handled.result == expected
    assert result is not None
    assert result.result == expected


async def test_a_result_that_cannot_be_stored_is_an_error_of_the_handler() -> None:
    app = App("http://nowhere")

    @app.worker("q")
    async def handler() -> object:
        return Arbitrary()

    async with inline(app) as q:
        await q.publish("q", b"")
        (handled,) = await q.run_until_idle()
    assert handled.state is State.DELAYED
    assert handled.error is not None
    assert "Arbitrary" in handled.error


def test_what_is_not_used_is_not_imported() -> None:
    program = (
        "import sys, penstock.worker\n"
        "heavy = {'pydantic', 'aiohttp', 'pyarrow', 'uvloop', 'starlette'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
