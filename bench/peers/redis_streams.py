"""Redis Streams with an fsync before every reply.

XACK is followed by XDEL in one pipeline: acknowledged entries otherwise stay in memory.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any, Final

import redis.asyncio
from redis.exceptions import BusyLoadingError, ResponseError

from bench.peers.peer import QUEUE, WAIT_S, Consumer, ProcessPeer, Producer, find_program
from bench.peers.workloads import Workload

__all__ = ["Redis"]

_GROUP: Final = "workers"
_FIELD: Final = b"b"
#: A recovering worker takes over messages that another has not acked for this long.
_IDLE_MS: Final = 2_000


def _connect(address: str) -> Any:
    return redis.asyncio.Redis(port=int(address), single_connection_client=True)


class _Producer(Producer):
    def __init__(self, address: str) -> None:
        self._redis = _connect(address)

    async def publish(self, body: bytes) -> None:
        await self._redis.xadd(QUEUE, {_FIELD: body})

    async def publish_batch(self, bodies: Sequence[bytes]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for body in bodies:
            pipeline.xadd(QUEUE, {_FIELD: body})
        await pipeline.execute()

    async def close(self) -> None:
        await self._redis.aclose()


class _Consumer(Consumer):
    def __init__(self, address: str, name: str, *, recovers: bool) -> None:
        self._redis = _connect(address)
        self._name = name
        self._recovers = recovers

    async def receive(self, limit: int) -> list[tuple[bytes, Any]]:
        if self._recovers and (held := await self._take_over(limit)):
            return held
        reply = await self._redis.xreadgroup(
            _GROUP, self._name, {QUEUE: ">"}, count=limit, block=round(WAIT_S * 1000)
        )
        return [(fields[_FIELD], entry) for entry, fields in _entries(reply)]

    async def _take_over(self, limit: int) -> list[tuple[bytes, Any]]:
        reply = await self._redis.xautoclaim(
            QUEUE, _GROUP, self._name, min_idle_time=_IDLE_MS, count=limit
        )
        return [(fields[_FIELD], entry) for entry, fields in reply[1] if fields]

    async def ack(self, tokens: Sequence[Any]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.xack(QUEUE, _GROUP, *tokens)
        pipeline.xdel(QUEUE, *tokens)
        await pipeline.execute()

    async def close(self) -> None:
        await self._redis.aclose()


def _entries(reply: Any) -> list[Any]:
    """The entries of one stream: in a dictionary (RESP3) or in a list (RESP2)."""
    if not reply:
        return []
    streams = reply.values() if isinstance(reply, dict) else [entries for _, entries in reply]
    (entries,) = streams
    # RESP3 has one more level, a list of replies per stream.
    if entries and isinstance(entries[0], list) and isinstance(entries[0][0], (list, tuple)):
        (entries,) = entries
    return list(entries)


class Redis(ProcessPeer):
    name = "redis"
    durability = "`appendfsync always`: fsync before the replies of each turn of its event loop"
    client = "redis[hiredis]"

    @classmethod
    def versions(cls) -> dict[str, str]:
        program = find_program("redis-server", "redis-server")
        said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
        (version,) = (word[2:] for word in said.stdout.split() if word.startswith("v="))
        return {"redis-server": version, "redis": redis.__version__}

    def command(self) -> list[str]:
        return [
            find_program("redis-server", "redis-server"),
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)),
            *("--save", "", "--appendonly", "yes", "--appendfsync", "always"),
            *("--daemonize", "no"),
        ]

    async def declare(self) -> None:
        client = _connect(self.address)
        try:
            await client.xgroup_create(QUEUE, _GROUP, id="0", mkstream=True)
        except BusyLoadingError as error:
            raise OSError(str(error)) from error
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        finally:
            await client.aclose()

    @classmethod
    async def producers(cls, address: str, workload: Workload) -> Sequence[Producer]:
        return [_Producer(address) for _ in range(workload.producers)]

    @classmethod
    async def consumers(cls, address: str, workload: Workload) -> Sequence[Consumer]:
        recovers = workload.name == "W8"
        return [
            _Consumer(address, f"consumer-{number}", recovers=recovers)
            for number in range(workload.consumers)
        ]
