"""A store on an object store whose every request takes 30 ms: rates, processor time, requests.

The S3 server is a private SeaweedFS. The latency is that of a proxy in a process of its own, which
counts the requests too.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

import penstock
from bench.measuring import Figure, payloads, per_second, seconds_figure
from penstock import Ack, Broker, NewMessage
from penstock.storage.keyvalue.adapters.slatedb import conditional_put
from tests.object_stores import s3_endpoint, s3_url

__all__ = ["object_store"]

LATENCY_S: Final = 0.03
CALLERS: Final = 64
BATCH: Final = 100
#: Messages of the measured work, per second that it may take.
_PER_SECOND: Final = 20_000
_LEAST_PUBLISHED: Final = 10_000
_MOST_CYCLE_US: Final = 100
_MOST_OPENING_S: Final = 5.0
#: Per million published messages.
_MOST_REQUESTS: Final = 5_000


class _Proxy:
    """The proxy's process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.endpoint = self._line()

    def requests(self) -> int:
        """How many there were so far."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        return int(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def _proxy() -> Iterator[_Proxy]:
    command = [sys.executable, "-m", "tests.fault_proxy", s3_endpoint("seaweedfs"), str(LATENCY_S)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield _Proxy(process)
        process.terminate()


async def object_store(seconds: float, waiting: int) -> AsyncIterator[Figure]:
    """Publish, a whole cycle, and opening a store with so many ``waiting`` messages."""
    count = max(CALLERS * BATCH, int(seconds * _PER_SECOND))
    with _proxy() as proxy:
        # A table that is uploaded at full load delays commits here for longer than 2 s.
        url = s3_url(proxy.endpoint, commit_interval_ms=100, lease_ms=20_000)
        async with penstock.open(url) as q:
            await q.create_queue("q", "topic = 't'")
            before, cpu_s, begin = proxy.requests(), time.process_time(), time.perf_counter()
            count = await _publish(q, count, payloads(1000))
            rate = count / (time.perf_counter() - begin)
            requests = (proxy.requests() - before) * 1e6 / count
            yield Figure(
                "object store, publish by the hundred, 64 callers",
                rate / _LEAST_PUBLISHED,
                1.0,
                per_second(rate),
                per_second(_LEAST_PUBLISHED),
            )
            yield Figure(
                "object store, requests per million published",
                requests / _MOST_REQUESTS,
                1.0,
                f"{requests:.0f}",
                str(_MOST_REQUESTS),
                at_most=True,
            )
            await _consume(q, count)
            cycle_us = (time.process_time() - cpu_s) * 1e6 / count
            yield Figure(
                "object store, processor time of publish, claim and ack",
                cycle_us / _MOST_CYCLE_US,
                1.0,
                f"{cycle_us:.0f} µs",
                f"{_MOST_CYCLE_US} µs",
                at_most=True,
            )
            await _publish(q, waiting, [b"%0100d" % number for number in range(1000)])
        conditional_put._checked.clear()  # A new process would check the bucket again.
        begin = time.perf_counter()
        async with penstock.open(url) as q:
            found = await q.claim("q")
            took_s = time.perf_counter() - begin
            assert len(found) == 1
    yield seconds_figure(f"object store, opening with {waiting:,} waiting", took_s, _MOST_OPENING_S)


async def _publish(q: Broker, count: int, supply: list[bytes]) -> int:
    """Publish at least ``count`` messages; returns how many it were."""
    batches = -(-count // BATCH)
    left = iter(range(batches))

    async def caller() -> None:
        for number in left:
            first = number * BATCH % len(supply)
            await q.publish_batch("t", list(map(NewMessage, supply[first : first + BATCH])))

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return batches * BATCH


async def _consume(q: Broker, count: int) -> None:
    done = 0

    async def caller() -> None:
        nonlocal done
        while done < count:
            items = await q.claim("q", limit=BATCH)
            if not items:
                return
            await q.settle("q", [Ack(item.receipt) for item in items])
            done += len(items)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
