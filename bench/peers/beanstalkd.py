"""beanstalkd with an fsync per command, over its text protocol; batches are pipelined."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from typing import Any, Final, Self

from bench.peers.peer import LEASE_S, Consumer, ProcessPeer, Producer, find_program
from bench.peers.workloads import Workload

__all__ = ["Beanstalkd"]

#: The protocol counts whole seconds.
_WAIT_S: Final = 1
_BUFFER_BYTES: Final = 2**18


class _Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: str) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", int(address), limit=_BUFFER_BYTES))

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def _expect(self, word: bytes, times: int) -> None:
        await self._writer.drain()
        for _ in range(times):
            line = await self._reader.readline()
            if not line.startswith(word):
                raise ConnectionError(f"beanstalkd answered {line!r}")


class _Producer(_Client, Producer):
    async def publish(self, body: bytes) -> None:
        await self.publish_batch([body])

    async def publish_batch(self, bodies: Sequence[bytes]) -> None:
        puts = [b"put 0 0 %d %d\r\n%b\r\n" % (LEASE_S, len(body), body) for body in bodies]
        self._writer.write(b"".join(puts))
        await self._expect(b"INSERTED", len(bodies))


class _Consumer(_Client, Consumer):
    async def receive(self, limit: int) -> list[tuple[bytes, Any]]:
        """Wait for one job, then take what else there is."""
        self._writer.write(b"reserve-with-timeout %d\r\n" % _WAIT_S)
        first = await self._reserved()
        if first is None:
            return []
        self._writer.write(b"reserve-with-timeout 0\r\n" * (limit - 1))
        more = [await self._reserved() for _ in range(limit - 1)]
        return [first, *(job for job in more if job is not None)]

    async def _reserved(self) -> tuple[bytes, Any] | None:
        words = (await self._reader.readline()).split()
        match words:
            case [b"RESERVED", job, size]:
                return (await self._reader.readexactly(int(size) + 2))[:-2], job
            case [b"TIMED_OUT" | b"DEADLINE_SOON"]:
                return None
            case _:
                raise ConnectionError(f"beanstalkd answered {words!r}")

    async def ack(self, tokens: Sequence[Any]) -> None:
        self._writer.write(b"".join(b"delete %b\r\n" % job for job in tokens))
        await self._expect(b"DELETED", len(tokens))


class _OneByOne(_Consumer):
    """Does not ask 99 times for more than the one job that there is."""

    async def receive(self, limit: int) -> list[tuple[bytes, Any]]:
        del limit
        return await super().receive(1)


class Beanstalkd(ProcessPeer):
    name = "beanstalkd"
    durability = "binlog with `-f0`: fsync before the reply of each put and delete"
    client = "the text protocol on asyncio streams"

    @classmethod
    def versions(cls) -> dict[str, str]:
        program = find_program("beanstalkd", "beanstalkd")
        said = subprocess.run([program, "-v"], check=True, capture_output=True, text=True)
        return {"beanstalkd": said.stdout.split()[-1]}

    def command(self) -> list[str]:
        return [
            find_program("beanstalkd", "beanstalkd"),
            *("-l", "127.0.0.1", "-p", str(self.port), "-b", str(self.folder), "-f", "0"),
        ]

    @classmethod
    async def producers(cls, address: str, workload: Workload) -> Sequence[Producer]:
        return [await _Producer.open(address) for _ in range(workload.producers)]

    @classmethod
    async def consumers(cls, address: str, workload: Workload) -> Sequence[Consumer]:
        kind = _OneByOne if workload.is_paced else _Consumer
        return [await kind.open(address) for _ in range(workload.consumers)]
