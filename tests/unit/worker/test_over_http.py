"""The same app over a server: results, publishes with the ack, a server that goes away, the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from penstock import Broker, NewMessage
from penstock.client import connect
from penstock.testing.clock import FakeClock
from penstock.worker import App, Context
from tests.unit.client.conftest import QUICK, application, open_broker
from tests.unit.client.hosting import Host


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with await open_broker(FakeClock()) as opened:
        await opened.create_queue("q", "topic = 't'")
        yield opened


@pytest.fixture
async def host(broker: Broker) -> AsyncIterator[Host]:
    hosted = Host(application(broker))
    await hosted.start()
    yield hosted
    await hosted.stop()


async def fill(broker: Broker, count: int) -> None:
    await broker.publish_batch("t", [NewMessage(b"%d" % number) for number in range(count)])


async def test_an_app_works_over_http_as_it_does_embedded(broker: Broker, host: Host) -> None:
    app = App(host.url)
    seen: Counter[int] = Counter()
    all_seen = asyncio.Event()

    @app.worker("q", concurrency=5, max_in_flight=20)
    async def handler(number: int, context: Context) -> int:
        context.publish("out", number)
        seen[number] += 1
        if len(seen) == 60:
            all_seen.set()
        return number

    await fill(broker, 60)
    run = asyncio.create_task(app.run())
    await asyncio.wait_for(all_seen.wait(), 60)
    app.stop()
    await asyncio.wait_for(run, 60)
    stats = await broker.stats("q")
    assert (stats.done, stats.in_flight) == (60, 0)
    assert (await broker.stats("out")).available == 60
    assert set(seen.values()) == {1}
    result = await broker.result("q", 7)
    assert result is not None
    assert result.result == b"7"


async def test_a_server_that_goes_away_is_waited_for(
    broker: Broker, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    seen: set[int] = set()
    some, rest = asyncio.Event(), asyncio.Event()
    async with connect(host.url, options=QUICK) as client:
        app = App(client)

        @app.worker("q", concurrency=2)
        async def handler(number: int) -> None:
            seen.add(number)
            some.set()
            if len(seen) == 20:
                rest.set()

        await fill(broker, 10)
        run = asyncio.create_task(app.run())
        await asyncio.wait_for(some.wait(), 60)
        await host.stop()
        async with asyncio.timeout(60):
            while "next try" not in caplog.text:  # noqa: ASYNC110  (it is only logged)
                await asyncio.sleep(0.01)
        await broker.publish_batch("t", [NewMessage(b"%d" % number) for number in range(10, 20)])
        await host.start()
        # A claim whose answer was lost leaves deliveries that only time brings back.
        clock = broker.options.engine.clock
        assert isinstance(clock, FakeClock)
        async with asyncio.timeout(60):
            while not rest.is_set():
                clock.advance(1_000)
                await asyncio.sleep(0.01)
        app.stop()
        await asyncio.wait_for(run, 60)
    assert seen == set(range(20))


async def test_stopping_leaves_nothing_in_flight(broker: Broker, host: Host) -> None:
    app = App(host.url)
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.worker("q", concurrency=1, max_in_flight=8)
    async def handler() -> None:
        begun.set()
        await go_on.wait()

    await fill(broker, 20)
    run = asyncio.create_task(app.run())
    await asyncio.wait_for(begun.wait(), 60)
    app.stop()
    go_on.set()
    await asyncio.wait_for(run, 60)
    stats = await broker.stats("q")
    assert (stats.done, stats.in_flight, stats.available) == (1, 0, 19)
