"""Middleware: the order, what it may do, and the two that are always there."""

from __future__ import annotations

import contextvars

import pytest

from penstock import State
from penstock.errors import BadInput
from penstock.testing.inline import inline
from penstock.testing.laws import law
from penstock.worker import App, Context, Next, Reject, Retry, Timing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_the_first_that_is_registered_is_the_outermost() -> None:
    app = App("http://nowhere")
    seen: list[str] = []

    @app.middleware
    async def outer(context: Context, next: Next) -> object:
        seen.append("outer in")
        result = await next(context)
        seen.append("outer out")
        return result

    @app.middleware
    async def inner(context: Context, next: Next) -> object:
        seen.append("inner in")
        result = await next(context)
        seen.append("inner out")
        return result

    @app.worker("q")
    async def handler() -> None:
        seen.append("handler")

    async with inline(app) as q:
        await q.publish("q", b"")
        await q.run_until_idle()
    assert seen == ["outer in", "inner in", "handler", "inner out", "outer out"]


async def test_it_may_change_the_result_raise_or_answer_itself() -> None:
    app = App("http://nowhere")

    @app.middleware
    async def layer(context: Context, next: Next) -> object:
        assert context.handler.endswith("handler")
        match context.message.headers.get("how"):
            case "change":
                return f"<{await next(context)}>"
            case "answer":
                return "without the handler"
            case "refuse":
                raise Reject("not on my watch")
            case _:
                return await next(context)

    @app.worker("q")
    async def handler(text: str) -> str:
        return text

    async with inline(app) as q:
        for how in ("change", "answer", "refuse", "nothing"):
            await q.publish("q", "x", headers={"how": how})
        handled = await q.run_until_idle()
    assert [item.result for item in handled] == [b"<x>", b"without the handler", None, b"x"]
    assert handled[2].state is State.FAILED
    assert handled[2].error == "not on my watch"


async def test_it_sees_what_the_handler_raises_and_what_cannot_be_read() -> None:
    app = App("http://nowhere")
    seen: list[str] = []

    @app.middleware
    async def layer(context: Context, next: Next) -> object:
        try:
            return await next(context)
        except Exception as error:
            seen.append(type(error).__name__)
            raise

    @app.worker("q")
    async def handler(number: int) -> None:
        raise ValueError(number)

    async with inline(app) as q:
        await q.publish("q", b"1")
        await q.publish("q", b"one")
        await q.run_until_idle()
    assert seen == ["ValueError", "Reject"]


async def test_every_handling_is_observed() -> None:
    seen: list[Timing] = []
    app = App("http://nowhere", observe=seen.append)
    errors: list[Exception | None] = [None, Retry(), Reject("no"), ValueError("x")]

    @app.worker("q")
    async def handler() -> None:
        if error := errors.pop(0):
            raise error

    async with inline(app) as q:
        for _ in range(4):
            await q.publish("q", b"")
        await q.run_until_idle()
    assert [item.outcome for item in seen] == ["done", "retry", "reject", "error"]
    assert {item.queue for item in seen} == {"q"}
    assert all(item.handler.endswith("handler") and item.seconds >= 0 for item in seen)


async def test_an_observer_that_fails_fails_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    def broken(timing: Timing) -> None:
        raise ZeroDivisionError

    app = App("http://nowhere", observe=broken)

    @app.worker("q")
    async def handler() -> None: ...

    async with inline(app) as q:
        await q.publish("q", b"")
        (handled,) = await q.run_until_idle()
    assert handled.state is State.DONE
    assert "ZeroDivisionError" in caplog.text


async def test_a_handler_that_blocks_sees_the_context_variables() -> None:
    app = App("http://nowhere")
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    seen = []

    @app.middleware
    async def layer(context: Context, next: Next) -> object:
        variable.set("from the middleware")
        return await next(context)

    @app.worker("q")
    def handler() -> None:
        seen.append(variable.get())

    async with inline(app) as q:
        await q.publish("q", b"")
        await q.run_until_idle()
    assert seen == ["from the middleware"]


async def test_a_message_with_its_own_trace_or_without_room_gets_no_part_of_the_handlers() -> None:
    app = App("http://nowhere")
    full = {f"h{number}": number for number in range(64)}

    @app.worker("q")
    async def handler(context: Context) -> None:
        context.publish("out", b"", headers={"traceparent": "mine"})
        context.publish("out", b"", headers=full)

    async with inline(app) as q:
        await q.publish("q", b"", headers={"traceparent": PARENT, "tracestate": "vendor=1"})
        end = await q.log_end()
        (handled,) = await q.run_until_idle()
        page = await q.read_log(end)
    assert handled.state is State.DONE
    assert [dict(entry.message.headers) for entry in page.entries] == [
        {"traceparent": "mine"},
        full,
    ]


@law("E1")
def test_middleware_that_is_no_function_is_refused() -> None:
    with pytest.raises(BadInput) as refused:
        App("memory://").middleware(5)  # type: ignore[type-var]
    assert refused.value.field == "middleware"
