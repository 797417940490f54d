"""consume over HTTP: one request per round, retries, and settlements beside a long poll."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock import NewMessage
from penstock.errors import StaleReceipt
from penstock.testing.laws import law
from tests.unit.client.hosting import Fault

if TYPE_CHECKING:
    from penstock.broker import Broker
    from penstock.client import Client
    from tests.unit.client.hosting import Host

CLAIMS = "/v1/queues/q/claims"
SETTLEMENTS = "/v1/queues/q/settlements"


@pytest.fixture(autouse=True)
async def filled(broker: Broker) -> None:
    await broker.create_queue("q", "topic = 't'")
    await broker.publish_batch("t", [NewMessage(b"%d" % number) for number in range(100)])


def count(host: Host, path: str) -> int:
    return sum(seen.path == path for seen in host.requests)


async def test_a_batch_costs_one_request(broker: Broker, host: Host, q: Client) -> None:
    seen: list[bytes] = []
    async with q.consume_batches("q", size=10) as batches:
        async for batch in batches:
            async with batch:
                seen += [lease.payload for lease in batch]
            if len(seen) == 100:
                break
    assert seen == [b"%d" % number for number in range(100)]
    assert (await broker.stats("q")).done == 100
    assert count(host, CLAIMS) == 1
    assert count(host, SETTLEMENTS) <= 11


async def test_many_tasks_share_requests(broker: Broker, host: Host, q: Client) -> None:
    seen: set[bytes] = set()
    async with q.consume("q", max_in_flight=40) as leases:

        async def work() -> None:
            async for lease in leases:
                async with lease:
                    seen.add(lease.payload)
                if len(seen) == 100:
                    leases.stop()

        await asyncio.wait_for(asyncio.gather(*(work() for _ in range(20))), 60)
    assert (await broker.stats("q")).done == 100
    assert count(host, CLAIMS) + count(host, SETTLEMENTS) < 30


async def test_a_long_poll_does_not_delay_a_settlement(
    broker: Broker, host: Host, q: Client
) -> None:
    async with q.consume("q", max_in_flight=200) as leases:
        held = [await anext(leases) for _ in range(100)]
        waiting = asyncio.ensure_future(anext(leases))
        await host.arrivals(2, CLAIMS)
        # Time stands still, so a settlement behind the long poll would not be answered.
        assert (await asyncio.wait_for(held[0].ack(), 60)).ok
        assert not waiting.done()
        await broker.release(held[1].delivery)
        again = await asyncio.wait_for(waiting, 60)
        assert again.message.id == held[1].message.id
        with pytest.raises(StaleReceipt):
            await held[1].ack()


@law("S1")
@pytest.mark.parametrize("fault", [Fault.DROP, Fault.LOSE])
async def test_a_lost_answer_is_retried(
    broker: Broker, host: Host, q: Client, fault: Fault
) -> None:
    seen: list[bytes] = []
    host.fault(fault, SETTLEMENTS)
    async with q.consume_batches("q", size=20, max_in_flight=100) as batches:
        async for batch in batches:
            async with batch:
                seen += [lease.payload for lease in batch]
            if len(seen) == 100:
                break
    assert sorted(seen, key=int) == [b"%d" % number for number in range(100)]
    assert (await broker.stats("q")).done == 100


async def test_closing_the_client_sends_the_settlements(broker: Broker, q: Client) -> None:
    async for batch in q.consume_batches("q", size=10):
        async with batch:
            pass
        break
    await q.close()
    stats = await broker.stats("q")
    assert (stats.done, stats.in_flight) == (10, 0)
