"""The test mode: deterministic, over a store in memory, on a clock moved by hand."""

from __future__ import annotations

import threading

import pytest

from penstock import State
from penstock.errors import Conflict
from penstock.testing.inline import inline
from penstock.testing.laws import law
from penstock.worker import App, Context


async def test_it_runs_everything_in_a_fixed_order() -> None:
    app = App("http://nowhere")
    seen: list[str] = []

    @app.worker("first", filter="topic = 'a'")
    async def first(text: str, context: Context) -> None:
        seen.append(f"first {text}")
        context.publish("b", text)

    @app.worker("second", filter="topic = 'b'")
    def second(text: str) -> None:
        seen.append(f"second {text}")

    async def run() -> list[str]:
        seen.clear()
        async with inline(app) as q:
            for text in "xyz":
                await q.publish("a", text)
            assert len(await q.run_until_idle()) == 6
            assert await q.run_until_idle() == []
        return seen[:]

    once = await run()
    assert once == ["first x", "second x", "first y", "second y", "first z", "second z"]
    assert await run() == once


@law("C3")
async def test_time_passes_when_it_is_told_to() -> None:
    app = App("http://nowhere")

    @app.worker("q")
    async def handler() -> None: ...

    async with inline(app) as q:
        await q.publish("q", b"", delay_ms=60_000)
        assert await q.run_until_idle() == []
        q.clock.advance(60_000)
        assert len(await q.run_until_idle()) == 1


async def test_queues_are_created_as_the_workers_want_them() -> None:
    app = App("http://nowhere")

    @app.worker("filtered", filter="amount > 10", max_attempts=2)
    async def filtered() -> None: ...

    @app.worker("plain")
    async def plain() -> None: ...

    @app.worker("broken.dlq")
    async def dead() -> None: ...

    async with inline(app) as q:
        infos = {item.name: item.policy for item in await q.queues()}
        assert infos["filtered"].max_attempts == 2
        assert infos["plain"].filter == "topic = 'plain'"
        await q.publish("broken", b"")
        (delivery,) = await q.claim("broken")
        await q.reject(delivery, "x")
        (handled,) = await q.run_until_idle()
        assert (handled.queue, handled.state) == ("broken.dlq", State.DONE)


async def test_handlers_that_publish_to_each_other_are_stopped() -> None:
    app = App("http://nowhere")

    @app.worker("q")
    async def forever(context: Context) -> None:
        context.publish("q", b"")

    async with inline(app) as q:
        await q.publish("q", b"")
        with pytest.raises(Conflict, match="publish to each other"):
            await q.run_until_idle(limit=20)


@law("C4")
async def test_ordered_queues_run_inline_too() -> None:
    app = App("http://nowhere")
    seen: list[tuple[str | None, str]] = []

    @app.worker("q", filter="TRUE", ordering="partition")
    async def handler(text: str, context: Context) -> None:
        seen.append((context.message.partition_key, text))

    async with inline(app) as q:
        for number in range(3):
            for key in "ab":
                await q.publish("t", str(number), partition_key=key)
        await q.run_until_idle()
    for key in "ab":
        assert [text for found, text in seen if found == key] == ["0", "1", "2"]


async def test_nothing_is_left_behind() -> None:
    app = App("http://nowhere")

    @app.worker("q")
    def handler() -> None: ...

    before = threading.active_count()
    async with inline(app) as q:
        await q.publish("q", b"")
        await q.run_until_idle()
    for thread in threading.enumerate():
        if thread.name.startswith("inline"):
            thread.join(timeout=60)
    assert threading.active_count() == before
