"""Celery with Redis as its broker: tasks without a result, run by ``celery worker``.

Its producers are not asynchronous: each has a thread of its own. A batch is a loop of calls.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

from bench.peers.celery_app import BROKER, PROBE, app, handle
from bench.peers.peer import Consumer, Producer
from bench.peers.redis_streams import Redis
from bench.peers.workloads import Workload

__all__ = ["CeleryTasks"]


class _Producer(Producer):
    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads

    async def publish(self, body: bytes) -> None:
        await self.publish_batch([body])

    async def publish_batch(self, bodies: Sequence[bytes]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, _call, bodies)

    async def close(self) -> None:
        self._threads.shutdown()


def _call(bodies: Sequence[bytes]) -> None:
    for body in bodies:
        handle.delay(body.decode())


class CeleryTasks(Redis):
    name = "celery"
    durability = "as Redis; a task is acked after its handler"
    client = "celery, threads; celery worker with one process per core"
    workloads: ClassVar = ("W1", "W2", "W4", "W6")

    @classmethod
    def versions(cls) -> dict[str, str]:
        return super().versions() | {"celery": version("celery")}

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def declare(self) -> None:
        """Celery creates its list with the first task."""

    @classmethod
    async def producers(cls, address: str, workload: Workload) -> Sequence[Producer]:
        app.conf.broker_url = address
        threads = ThreadPoolExecutor(workload.producers)
        return [_Producer(threads) for _ in range(workload.producers)]

    @classmethod
    async def consumers(cls, address: str, workload: Workload) -> Sequence[Consumer]:
        raise NotImplementedError("Celery consumes with its own worker")

    def worker(self, probe: Path) -> tuple[list[str], dict[str, str]]:
        command = [
            *(sys.executable, "-m", "celery", "-A", "bench.peers.celery_app", "worker"),
            *("--loglevel", "ERROR", "--concurrency", str(os.cpu_count() or 1)),
        ]
        return command, {BROKER: self.address, PROBE: str(probe)}
