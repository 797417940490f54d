"""The floor of W1: what a lone publish costs any Python server that speaks HTTP and syncs a file.

The server appends each body to a file, calls fdatasync on the event loop, and replies. It checks
nothing and stores nothing else: no ids, no queue, no batching. The client sends prepared bytes and
waits for the reply. Both are one ``asyncio.Protocol`` each, so no queue in Python over HTTP that
syncs every message is faster, and the ratio to Redis is the most that one can reach.

``python -m bench.peers.floor PORT FILE LOOP`` is the server, on asyncio's own loop or on uvloop.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import ClassVar, Final, cast

import uvloop

from bench.peers.peer import Consumer, ProcessPeer, Producer
from bench.peers.workloads import Workload

__all__ = ["Floor", "FloorUvloop"]

_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"Content-Length: "
_REPLY: Final = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"


class _Server(asyncio.Protocol):
    """A connection: one request at a time."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._transport: asyncio.Transport
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(_END)
        if not end or len(body) < int(head.partition(_LENGTH)[2].partition(b"\r\n")[0]):
            return
        self._received = b""
        os.write(self._file, body)
        os.fdatasync(self._file)
        self._transport.write(_REPLY)


class _Client(asyncio.Protocol, Producer):
    """A connection to the server."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._reply: asyncio.Future[None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        # The reply is smaller than a segment.
        if data != _REPLY:
            raise ConnectionError(f"the floor answered {data!r}")
        self._reply.set_result(None)

    async def publish(self, body: bytes) -> None:
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(
            b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n%b%d%b%b" % (_LENGTH, len(body), _END, body)
        )
        await self._reply

    async def publish_batch(self, bodies: Sequence[bytes]) -> None:
        raise NotImplementedError("the floor has no batches")

    async def close(self) -> None:
        self._transport.close()


class Floor(ProcessPeer):
    name = "floor"
    durability = "write and fdatasync of a file before every reply; nothing else is stored"
    client = "an asyncio.Protocol that sends prepared bytes"
    workloads: ClassVar = ("W1",)
    loop: ClassVar = "asyncio"

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {}

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "bench.peers.floor"),
            *(str(self.port), str(self.folder / "log"), self.loop),
        ]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}

    @classmethod
    async def producers(cls, address: str, workload: Workload) -> Sequence[Producer]:
        loop = asyncio.get_running_loop()
        made = [
            await loop.create_connection(_Client, "127.0.0.1", int(address))
            for _ in range(workload.producers)
        ]
        return [client for _, client in made]

    @classmethod
    async def consumers(cls, address: str, workload: Workload) -> Sequence[Consumer]:
        raise NotImplementedError("the floor stores nothing that could be consumed")


class FloorUvloop(Floor):
    name = "floor-uvloop"
    loop: ClassVar = "uvloop"

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {"uvloop": version("uvloop")}


async def _serve(port: int, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    server = await asyncio.get_running_loop().create_server(
        lambda: _Server(file), "127.0.0.1", port
    )
    await server.serve_forever()


def main() -> None:
    """Serve until SIGTERM."""
    port, path, loop = sys.argv[1:]
    factory = uvloop.new_event_loop if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve(int(port), path))


if __name__ == "__main__":
    main()
