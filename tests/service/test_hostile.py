"""Callers that are hostile, broken or slow: they get nothing, and cost the others nothing."""

from __future__ import annotations

import asyncio
import re
import resource
from collections import Counter
from random import Random

import pytest

import penstock
from penstock.client import Client
from tests.service.attackers import ATTACKS, attack
from tests.service.serving import Serve, Served

CONNECTIONS = 1_000
#: What a normal call may take meanwhile, on a machine that other tests keep busy.
ANSWER_S = 8
MB = 2**20


@pytest.fixture(autouse=True)
def descriptors() -> None:
    """A thousand connections are more files than a process may have open by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < 4096:
        most = 4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def _use(client: Client, times: int = 1) -> float:
    """Publish, claim and ack; the slowest of the rounds in seconds."""
    slowest = 0.0
    for _ in range(times):
        begun = asyncio.get_running_loop().time()
        await client.publish("orders", b"normal")
        (delivery,) = await client.claim("orders", wait_ms=5_000)
        await client.ack(delivery)
        slowest = max(slowest, asyncio.get_running_loop().time() - begun)
    return slowest


async def _settles(server: Served, descriptors: int) -> None:
    """Wait until the server has let go of its connections."""
    async with asyncio.timeout(30):
        while server.descriptors() > descriptors:  # noqa: ASYNC110  (it cannot tell us)
            await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_a_thousand_hostile_connections(serve: Serve) -> None:
    """Everybody else is answered in time, and nothing is left of them."""
    server = serve("--header-timeout-s", "2", "--body-timeout-s", "2")
    kinds = list(ATTACKS)
    async with penstock.connect(server.url) as client:
        await _use(client, 20)
        descriptors, rss = server.descriptors(), server.rss_bytes()
        attacks = [
            asyncio.create_task(
                attack(server, kinds[number % len(kinds)], Random(number)),
                name=kinds[number % len(kinds)],
            )
            for number in range(CONNECTIONS)
        ]
        slowest, rounds = 0.0, 0
        while not all(task.done() for task in attacks):
            slowest = max(slowest, await _use(client))
            rounds += 1
            await asyncio.sleep(0.05)
        answers = _answers(attacks)
        print(f"{rounds} rounds, the slowest {slowest:.2f} s; {answers}")
        assert slowest < ANSWER_S
        assert rounds > 5
        # What was half said was not done (P2), and a wrong request has at most a refusal.
        assert answers["pipelined requests", 200] == answers["pipelined requests", 0] * 100
        assert {status for _, status in answers if status} <= {200, 400, 408, 413, 431}
        async with asyncio.timeout(30):
            with pytest.raises(penstock.UnknownQueue):
                await client.queue("hostile")
        await _settles(server, descriptors + 10)
        grown = (server.rss_bytes() - rss) // MB
        assert grown < 250, f"{grown} MB are left of them"
        await _use(client, 20)
    assert server.stop() == 0
    assert "ERROR" not in server.said()
    assert "Traceback" not in server.said()


def _answers(attacks: list[asyncio.Task[bytes]]) -> Counter[tuple[str, int]]:
    """How often each kind of connection got which status; 0 counts the connections."""
    seen: Counter[tuple[str, int]] = Counter()
    for task in attacks:
        seen[task.get_name(), 0] += 1
        for status in re.findall(rb"HTTP/1\.\d (\d+) ", task.result()):
            seen[task.get_name(), int(status)] += 1
    return seen
