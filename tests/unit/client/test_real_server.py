"""The client against a server process that is killed under it: P1, P4 and S2 from outside."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock import Ack, NewMessage
from penstock.client import ClientOptions, connect
from penstock.model.queue import Backoff
from penstock.testing.laws import law

pytestmark = pytest.mark.timeout(100)

SERVER = """
import asyncio, sys
from penstock.server.serve import serve
from penstock.settings import Settings

settings = Settings(store=sys.argv[1], port=int(sys.argv[2]), grace_s=5.0)
asyncio.run(serve(settings, lambda serving: print(serving.url, flush=True)))
"""
#: A server that starts on a busy machine takes a while, and no call may give up meanwhile.
OPTIONS = ClientOptions(retries=10_000, retry_ms=90_000, backoff=Backoff(base_ms=5, max_ms=100))
KILLS = 2
ROUNDS = 30


class Server:
    """A server process on one store and one port, however often it is started."""

    def __init__(self, folder: Path) -> None:
        self._store = f"rocksdb://{folder}/store"
        self._port = 0
        self._process: asyncio.subprocess.Process | None = None
        self.url = ""

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            SERVER,
            self._store,
            str(self._port),
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(30):
            self.url = (await self._process.stdout.readline()).decode().strip()
        self._port = int(self.url.rpartition(":")[2])

    async def end(self, how: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(how)
        async with asyncio.timeout(30):
            await self._process.communicate()
        code, self._process = self._process.returncode, None
        assert code is not None
        return code

    async def clean_up(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    started = Server(tmp_path)
    try:
        await started.start()
        yield started
    finally:
        await started.clean_up()


@law("P1", "P4")
async def test_kill_9_is_not_seen_by_producers_and_consumers(server: Server) -> None:
    seen: Counter[bytes] = Counter()
    published: list[bytes] = []
    progress = asyncio.Semaphore(0)
    done = asyncio.Event()

    async def produce(task: int) -> None:
        async with connect(server.url, options=OPTIONS) as q:
            for n in range(ROUNDS):
                payloads = [b"%d.%d.%d" % (task, n, k) for k in range(5)]
                single = await q.publish("t", payloads[0])
                batch = await q.publish_batch("t", [NewMessage(item) for item in payloads[1:]])
                assert not any(item.duplicate for item in (single, *batch.messages))
                published.extend(payloads)
                progress.release()

    async def consume() -> None:
        async with connect(server.url, options=OPTIONS) as q:
            while not done.is_set():
                deliveries = await q.claim("jobs", limit=50, lease_ms=500, wait_ms=300)
                if deliveries:
                    reply = await q.settle("jobs", [Ack(item.receipt) for item in deliveries])
                    for item, outcome in zip(deliveries, reply.outcomes, strict=True):
                        seen[item.payload] += outcome.ok

    async def kill() -> None:
        for _ in range(KILLS):
            for _ in range(10):
                await progress.acquire()
            assert await server.end(signal.SIGKILL) == -signal.SIGKILL
            await server.start()

    async with connect(server.url, options=OPTIONS) as q:
        await q.create_queue("jobs")
        consumers = [asyncio.create_task(consume()) for _ in range(2)]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(kill())
            for task in range(3):
                tasks.create_task(produce(task))
        async with asyncio.timeout(30):
            while (await q.stats("jobs")).lag:  # noqa: ASYNC110  (the store has nobody to tell)
                await asyncio.sleep(0.02)
        done.set()
        await asyncio.gather(*consumers)
        log = await q.read_log(limit=10_000, payloads=True)
    stored = Counter(entry.payload for entry in log.entries)
    assert stored == Counter(published), "an acknowledged message is stored once"
    assert seen == Counter(published), "a settled message is never handed out again"
    assert await server.end(signal.SIGTERM) == 0
