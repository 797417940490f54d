"""Servers that share a database: the rate of three together, relative to one.

``python -m bench.sql_servers URL`` is one of them: it opens the engine, and for every line
``CLIENTS SECONDS`` on its standard input it runs that many clients, which publish, claim and ack
for that long, and prints the rate of acked messages. The total number of clients is the same
whether one server has all of them or three have a third each.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import IO, Final

from bench.measuring import Figure
from bench.sql_stores import DIALECTS, Client, figure, store
from penstock.storage.contract import Engine
from penstock.storage.engines import open_engine
from tests.databases import Server

__all__ = ["sharing"]

SERVERS: Final = 3
CLIENTS: Final = 12


async def sharing(server: Server, dialect: str, seconds: float, rounds: int) -> Figure:
    """Publish, claim and ack in batches of 100, in all processes together."""
    async with store(server, "sharing") as url:
        pairs = await asyncio.to_thread(_measure, url, seconds, rounds)
    name = f"publish, claim, ack, {CLIENTS} clients, {SERVERS} servers, of one"
    return figure(f"{DIALECTS[dialect]}: {name}", 1.0, pairs)


def _measure(url: str, seconds: float, rounds: int) -> list[tuple[float, float]]:
    servers = [_Process(url) for _ in range(SERVERS)]
    try:
        # Warm up: open connections and prepare statements.
        _together(servers, seconds / 4)
        return [
            (_together(servers, seconds), _together(servers[:1], seconds)) for _ in range(rounds)
        ]
    finally:
        for server in servers:
            server.close()


def _together(servers: list[_Process], seconds: float) -> float:
    for server in servers:
        server.start(CLIENTS // len(servers), seconds)
    return sum(server.rate() for server in servers)


class _Process:
    """A server in a separate process."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.sql_servers", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, clients: int, seconds: float) -> None:
        self._in.write(f"{clients} {seconds}\n")
        self._in.flush()

    def rate(self) -> float:
        return float(self._out.readline())

    def close(self) -> None:
        self._in.close()
        self._process.wait()
        self._out.close()

    @property
    def _in(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _out(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout


async def _serve(url: str) -> None:
    engine = await open_engine(url)
    while line := await asyncio.to_thread(sys.stdin.readline):
        clients, seconds = line.split()
        sys.stdout.write(f"{await _run(engine, int(clients), float(seconds))}\n")
        sys.stdout.flush()
    await engine.close()


async def _run(engine: Engine, clients: int, seconds: float) -> float:
    """Run the clients; returns messages per second."""
    begin = time.perf_counter()
    done = 0

    async def work(client: Client) -> None:
        nonlocal done
        while time.perf_counter() - begin < seconds:
            acked = await client.cycle()
            done += acked

    await asyncio.gather(*(work(Client(engine, number)) for number in range(clients)))
    return done / (time.perf_counter() - begin)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
