"""A TCP proxy in front of a database that can go silent, as a network does that drops packets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

__all__ = ["BlackHole", "black_hole"]


class BlackHole:
    """Forwards bytes until it is silent. Connections stay open, and nothing comes through."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._silent = asyncio.Event()
        self._trigger: bytes | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0
        #: How many connections were made through it.
        self.connections = 0

    def silence(self) -> None:
        """Let nothing through from now on, on any connection."""
        self._silent.set()

    def silence_at(self, sent: bytes) -> None:
        """Let nothing through from the moment at which a client sends this."""
        self._trigger = sent

    def heal(self) -> None:
        """Connections that are made from now on work. The others stay silent."""
        self._silent = asyncio.Event()
        self._trigger = None

    async def serve(self) -> asyncio.Server:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        silent = self._silent
        there, to_there = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, to_there]
        for source, target, sent in ((reader, to_there, True), (there, writer, False)):
            task = asyncio.get_running_loop().create_task(
                self._forward(source, target, silent, sent=sent)
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        silent: asyncio.Event,
        *,
        sent: bool,
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                if sent and self._trigger is not None and self._trigger in data:
                    silent.set()
                if not silent.is_set():
                    target.write(data)
                    await target.drain()
            if not silent.is_set():
                target.close()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def black_hole(port: int) -> AsyncIterator[BlackHole]:
    """A proxy in front of this port, on a port of its own."""
    hole = BlackHole(port)
    server = await hole.serve()
    try:
        yield hole
    finally:
        server.close()
        await hole.close()
