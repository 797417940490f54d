"""The twin over HTTP: threads of this process, the server's application on its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock import sync
from penstock.broker import Broker
from penstock.errors import BadUrl, Unreachable
from penstock.sync import SyncVerbs
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.unit.client.conftest import QUICK, application, open_broker
from tests.unit.client.hosting import Fault, Host

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with await open_broker(FakeClock()) as broker:
        hosted = Host(application(broker))
        await hosted.start()
        yield hosted
        await hosted.stop()


def broker_of(host: Host) -> Broker:
    broker: Broker = host.app.service.broker
    return broker


async def test_a_message_goes_all_the_way(host: Host) -> None:
    def program() -> list[bytes]:
        seen = []
        with sync.connect(host.url, options=QUICK) as q:
            q.create_queue("jobs")
            for n in range(3):
                q.publish("t", b"%d" % n)
            with q.consume("jobs") as deliveries:
                for delivery in deliveries:
                    with delivery:
                        seen.append(delivery.payload)
                    if len(seen) == 3:
                        break
        return seen

    assert await asyncio.to_thread(program) == [b"0", b"1", b"2"]
    assert (await broker_of(host).stats("jobs")).done == 3


async def test_publishes_of_threads_share_requests(host: Host) -> None:
    def program() -> None:
        def produce(q: SyncVerbs) -> None:
            for _ in range(20):
                q.publish("t", b"x")

        with sync.connect(host.url, options=QUICK) as q, ThreadPoolExecutor(16) as pool:
            for done in [pool.submit(produce, q) for _ in range(16)]:
                done.result(timeout=30)

    await asyncio.to_thread(program)
    assert await broker_of(host).log_end() == 320
    assert len(host.requests) < 320


@law("P4")
async def test_a_lost_answer_is_not_seen(host: Host) -> None:
    def program() -> bool:
        with sync.connect(host.url, options=QUICK) as q:
            host.fault(Fault.LOSE)
            return q.publish("t", b"x").duplicate

    assert not await asyncio.to_thread(program)
    assert await broker_of(host).log_end() == 1


def test_errors_of_connecting() -> None:
    with pytest.raises(BadUrl):
        sync.connect("rocksdb:///data")
    from penstock.client import ClientOptions

    with (
        sync.connect("http://127.0.0.1:1", options=ClientOptions(retries=0)) as q,
        pytest.raises(Unreachable),
    ):
        q.queues()
