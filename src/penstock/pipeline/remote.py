"""A server as Spark's processes see it: the client's verbs, each waited for.

The driver and the Python workers of Spark are ordinary blocking programs. A :class:`Server` is
picklable and travels with a partition; a :class:`Remote` is one connection to it, with an event
loop of its own, and belongs to the thread that opened it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Self, TypeVar

import pyarrow as pa
from msgspec import Struct

from penstock.client import Client, ClientOptions, connect

__all__ = ["Remote", "Server"]

T = TypeVar("T")


def _arrow_memory(size: int) -> memoryview:
    """Memory of Arrow's, which is used again.

    A stream is received and done with by two threads. Python would give its memory back to the
    system every time, and the pages of the next would be made anew: 0.7 µs for each KiB.
    """
    return memoryview(pa.allocate_buffer(size)).cast("B")


#: A job sits out a restart of the server, and is told soon that there is none where it runs.
_PATIENT: Final = ClientOptions(retry_ms=30_000, memory=_arrow_memory)


class Server(Struct, frozen=True):
    """Where a server is, and who asks it."""

    url: str
    credential: str | None = None
    ca: str | None = None
    """The file of the authorities that its certificate may come from."""

    def open(self, options: ClientOptions = _PATIENT) -> Remote:
        """Connect to it from this thread."""
        return Remote(self, options)

    def __repr__(self) -> str:
        # Spark writes partitions into its logs.
        return f"Server({self.url!r})"


class Remote:
    """One connection, for one thread. ``ask`` waits for the answer of a verb."""

    def __init__(self, server: Server, options: ClientOptions) -> None:
        self.server = server
        self._runner = asyncio.Runner()
        try:
            self._client = self._runner.run(_connect(server, options))
        except BaseException:
            self._runner.close()
            raise

    def ask(self, call: Callable[[Client], Awaitable[T]]) -> T:
        """What the call answers: ``remote.ask(lambda q: q.log_end())``."""

        async def wait() -> T:
            return await call(self._client)

        # Not by the runner: in a main thread it has a handler of its own for interrupts, and to
        # take that away it writes down the task with its result, which may be megabytes.
        return self._runner.get_loop().run_until_complete(wait())

    def close(self) -> None:
        """Let go of the connection."""
        try:
            self._runner.run(self._client.close())
        finally:
            self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


async def _connect(server: Server, options: ClientOptions) -> Client:
    return await connect(server.url, credential=server.credential, ca=server.ca, options=options)
