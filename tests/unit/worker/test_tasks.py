"""Tasks: how they are sent, dispatched and decoded, and what their handles say."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pydantic
import pytest

import penstock
from penstock import State
from penstock.errors import (
    BadInput,
    BadName,
    PenstockError,
    ResultTimeout,
    TaskExpired,
    TaskFailed,
)
from penstock.testing.inline import inline
from penstock.testing.laws import law
from penstock.worker import App, Context, Reject
from penstock.worker.task import Task


class Order(msgspec.Struct):
    id: int
    amount: int


@dataclass
class Address:
    city: str


class Card(pydantic.BaseModel):
    number: str


def shop() -> App:
    return App("http://nowhere")


# -- sending and handling ---------------------------------------------------------------


async def test_tasks_of_one_queue_are_dispatched_by_name() -> None:
    app = shop()
    seen: list[object] = []

    @app.task(queue="billing")
    async def charge(order: Order, amount: int = 5) -> int:
        seen.append((order, amount))
        return order.amount + amount

    @app.task("mail.receipt", queue="billing")
    def receipt(address: Address, card: Card, note: str = "none") -> str:
        seen.append((address, card.number, note))
        return note

    async with inline(app) as q:
        first = await charge.send(Order(7, 250))
        second = await receipt.send(Address("Lyon"), card=Card(number="42"))
        handled = await q.run_until_idle()
        log = await q.read_log(payloads=True)
        assert await first.result(timeout_ms=0) == 255
        assert await second.result(timedelta()) == "none"
    assert [item.state for item in handled] == [State.DONE] * 2
    assert seen == [(Order(7, 250), 5), (Address("Lyon"), "42", "none")]
    assert [entry.message.headers for entry in log.entries] == [
        {"task": "charge"},
        {"task": "mail.receipt"},
    ]
    assert log.entries[0].payload == b'{"order":{"id":7,"amount":250}}'
    assert log.entries[0].message.content_type == "application/json"
    assert [item.label for item in app.registrations] == ["billing"]


async def test_a_call_from_another_program_is_a_json_object() -> None:
    app = shop()

    @app.task()
    async def add(left: int, right: int, /, scale: int = 1) -> int:
        return (left - right) * scale

    async with inline(app) as q:
        await q.publish("tasks", {"right": 2, "left": 9}, headers={"task": "add"})
        await q.publish(
            "tasks",
            msgspec.msgpack.encode({"left": 9, "right": 2, "scale": 3}),
            headers={"task": "add"},
            content_type="application/msgpack",
        )
        handled = await q.run_until_idle()
    assert [item.result for item in handled] == [b"7", b"21"]


@pytest.mark.parametrize(
    "payload, headers, error",
    [
        ({"left": 1}, {"task": "sub"}, "There is no task 'sub' in queue 'tasks', only add"),
        ({"left": 1}, {"task": 7}, "There is no task 7 in queue 'tasks', only add"),
        ({"left": 1}, {}, "The message has no header 'task'; the tasks of queue 'tasks' are add"),
        ({}, {"task": "add"}, "Task 'add' needs the argument 'left'."),
        ({"left": 1, "top": 2}, {"task": "add"}, "Task 'add' has no argument 'top'."),
        ({"left": "one"}, {"task": "add"}, "The argument 'left' of task 'add' cannot be read"),
        ([1], {"task": "add"}, "The arguments of task 'add' cannot be read"),
    ],
)
async def test_a_call_that_does_not_fit_is_rejected(
    payload: object, headers: dict[str, Any], error: str
) -> None:
    app = shop()

    @app.task()
    async def add(left: int, right: int = 1) -> int:
        return left + right

    async with inline(app) as q:
        await q.publish("tasks", payload, headers=headers)
        (handled,) = await q.run_until_idle()
    assert handled.state is State.FAILED
    assert handled.error is not None
    assert handled.error.startswith(error)


async def test_given_parameters_are_not_sent_and_results_keep_their_types() -> None:
    app = shop()

    @app.task()
    async def attempt(context: Context, raw: bytes) -> bytes:
        assert context.handler == "attempt"
        return raw + str(context.attempts).encode()

    @app.task()
    async def words(text: str) -> list[str]:
        return text.split()

    @app.task()
    async def untyped(value):
        return value

    async with inline(app) as q:
        one = await attempt.send(b"\xff")
        two = await words.send("a b")
        three = await untyped.send({"a": [1, None]})
        await q.run_until_idle()
        assert await one.result(0) == b"\xff1"
        assert await two.result(0) == ["a", "b"]
        assert await three.result(0) == {"a": [1, None]}
        again = words.handle(two.message_id)
        assert await again.result(0) == ["a", "b"]


async def test_a_task_may_be_called_as_a_function() -> None:
    app = shop()

    @app.task()
    async def double(number: int) -> int:
        return 2 * number

    assert await double(4) == 8
    assert "double" in repr(double)


async def test_message_options() -> None:
    app = shop()

    @app.task()
    async def note(text: str) -> None: ...

    async with inline(app) as q:
        urgent = note.with_options(priority=9, headers={"tenant": "a"}, partition_key="p")
        later = urgent.with_options(delay_ms=5_000, ttl_ms=timedelta(minutes=1), key="k")
        await later.with_options(max_attempts=1).send("x")
        first = await note.with_options(id="one").send("y")
        second = await note.with_options(id="one").send("y")
        when = datetime.fromtimestamp(q.clock.now() / 1000 + 60, UTC)
        await note.send_at(when, text="z")
        await note.send_at(q.clock.now() + 1, "z")
        messages = [entry.message for entry in (await q.read_log()).entries]
        now = q.clock.now()
    assert (first.duplicate, second.duplicate) == (False, True)
    assert first.message_id == second.message_id
    assert (messages[0].priority, messages[0].max_attempts) == (9, 1)
    assert messages[0].headers == {"tenant": "a", "task": "note"}
    assert (messages[0].partition_key, messages[0].key) == ("p", "k")
    assert (messages[0].deliver_at, messages[0].expires_at) == (now + 5_000, now + 60_000)
    assert [item.deliver_at for item in messages[1:]] == [now, now + 60_000, now + 1]


async def test_a_task_sends_another_in_the_commit_of_its_ack() -> None:
    app = shop()
    ran: list[str] = []

    @app.task()
    def second(text: str) -> None:
        ran.append(text)

    @app.task(retry_ms=1_000)
    def first(context: Context, text: str) -> None:
        context.send(second, text)
        if context.attempts == 1:
            raise ValueError

    async with inline(app) as q:
        await first.send("x")
        await q.run_until_idle()
        assert ran == []
        q.clock.advance(1_000)
        await q.run_until_idle()
    assert ran == ["x"]


async def test_rules_are_those_of_the_task() -> None:
    app = shop()

    @app.task(retry_ms=1_000)
    async def retried() -> None:
        raise KeyError("x")

    @app.task(reject_on=KeyError)
    async def rejected() -> None:
        raise KeyError("x")

    @app.task(timeout_ms=1)
    async def slow() -> None:
        await asyncio.Event().wait()

    async with inline(app) as q:
        for task in (retried, rejected, slow):
            await task.send()
        handled = await q.run_until_idle()
    assert [item.state for item in handled] == [State.DELAYED, State.FAILED, State.DELAYED]
    assert "longer than 1 ms" in str(handled[2].exception)


async def test_middleware_surrounds_tasks() -> None:
    app = shop()

    @app.middleware
    async def layer(context: Context, next: Any) -> object:
        if context.headers["task"] == "secret":
            raise Reject("not here")
        return f"<{await next(context)}>"

    @app.task()
    async def open_task() -> str:
        return "x"

    @app.task()
    async def secret() -> str:
        return "x"

    async with inline(app) as q:
        handle = await open_task.send()
        await secret.send()
        handled = await q.run_until_idle()
        assert await handle.result(0) == "<x>"
    assert handled[1].error == "not here"


# -- results ---------------------------------------------------------------------------


async def test_a_failure_is_raised_with_its_error_and_attempts() -> None:
    app = shop()
    app.task_queue("tasks", max_attempts=2)

    @app.task(retry_ms=0)
    async def broken() -> None:
        raise ValueError("no such order")

    async with inline(app) as q:
        handle = await broken.send()
        with pytest.raises(ResultTimeout) as late:
            await handle.result(0)
        await q.run_until_idle()
        with pytest.raises(TaskFailed, match="no such order") as caught:
            await handle.result()
    assert (late.value.field, late.value.limit) == ("timeout_ms", 0)
    assert caught.value.attempts == 2
    assert caught.value.error is not None
    assert "ValueError" in caught.value.error


async def test_an_expired_task() -> None:
    app = shop()

    @app.task()
    async def fine() -> None: ...

    async with inline(app) as q:
        handle = await fine.with_options(ttl_ms=10).send()
        q.clock.advance(20)
        await q.sweep()
        with pytest.raises(TaskExpired):
            await handle.result()


async def test_a_running_app_answers() -> None:
    async with penstock.open("memory://") as q:
        app = App(q)

        @app.task()
        async def double(number: int) -> int:
            return 2 * number

        running = asyncio.create_task(app.run())
        handle = await double.send(21)
        assert await asyncio.wait_for(handle.result(), 60) == 42
        app.stop()
        await asyncio.wait_for(running, 60)


async def test_a_connected_app_sends() -> None:
    app = App("memory://")

    @app.task()
    async def double(number: int) -> int:
        return 2 * number

    with pytest.raises(BadInput, match=r"app\.connected"):
        await double.send(1)
    async with app.connected() as q:
        handle = await double.send(1)
        (delivery,) = await q.claim("tasks")
        assert delivery.message.id == handle.message_id
        async with app.connected() as same:
            assert same is q
    with pytest.raises(BadInput):
        await double.send(1)


# -- refusals --------------------------------------------------------------------------


@law("E1")
@pytest.mark.parametrize(
    "args, kwargs",
    [((), {}), ((1, 2), {}), ((), {"nummer": 1}), ((1,), {"number": 1})],
)
async def test_a_wrong_call_is_refused_when_it_is_sent(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    app = shop()

    @app.task()
    async def double(number: int) -> int:
        return 2 * number

    async with inline(app) as q:
        with pytest.raises(BadInput, match="'double'") as caught:
            await double.send(*args, **kwargs)
        assert caught.value.field == "arguments"
        assert await q.log_end() == 0 or not (await q.read_log()).entries


@law("E1")
async def test_bad_values_of_a_call() -> None:
    app = shop()

    @app.task()
    async def note(value: Any) -> None: ...

    async with inline(app) as q:
        with pytest.raises(BadInput) as caught:
            await note.send(object())
        assert caught.value.field == "payload"
        with pytest.raises(BadInput) as caught:
            await note.send_at(datetime(2026, 1, 1), 1)  # noqa: DTZ001
        assert caught.value.field == "when"
        with pytest.raises(BadInput) as caught:
            note.with_options(colour="red")  # type: ignore[call-arg]
        assert caught.value.field == "colour"
        handle = await note.send(1)
        for timeout_ms in (-1, 1.5, 2**60):
            with pytest.raises(BadInput) as caught:
                await handle.result(timeout_ms)  # type: ignore[arg-type]
            assert caught.value.field == "timeout_ms"
        assert len((await q.read_log()).entries) == 1


def several(*numbers: int) -> None: ...
def named(**numbers: int) -> None: ...
def unreadable(lock: asyncio.Lock) -> None: ...
def fine() -> None: ...


@law("E1")
@pytest.mark.parametrize(
    "options, function, kind, field",
    [
        ({}, several, BadInput, "handler"),
        ({}, named, BadInput, "handler"),
        ({}, unreadable, BadInput, "payload"),
        ({"name": "a b"}, fine, BadName, "name"),
        ({"name": 7}, fine, BadInput, "name"),
        ({"queue": "a b"}, fine, BadName, "queue"),
        ({"queue": "tasks.dlq"}, fine, BadInput, "filter"),
        ({"queue": "taken"}, fine, BadInput, "queue"),
        ({"timeout_ms": 0}, fine, BadInput, "timeout_ms"),
        ({"retry_ms": -1}, fine, BadInput, "retry_ms"),
    ],
)
def test_a_bad_task_is_refused_when_it_is_registered(
    options: dict[str, Any], function: Any, kind: type[PenstockError], field: str
) -> None:
    app = shop()
    app.worker("taken")(fine)
    with pytest.raises(kind) as caught:
        app.task(**options)(function)
    assert caught.value.field == field
    assert [item.label for item in app.registrations] == ["taken"]


@law("E1")
def test_names_and_queues_are_registered_once() -> None:
    app = shop()
    assert isinstance(app.task()(fine), Task)
    with pytest.raises(BadInput) as caught:
        app.task()(fine)
    assert caught.value.field == "name"
    with pytest.raises(BadInput) as caught:
        app.worker("tasks")(fine)
    assert caught.value.field == "queue"
    with pytest.raises(BadInput) as caught:
        app.task_queue("tasks")
    assert caught.value.field == "queue"
    with pytest.raises(BadInput) as caught:
        app.task_queue("others", max_attempts=0)
    assert caught.value.field == "max_attempts"
