"""A blocking client for Spark's processes.

The driver and the Python workers of Spark are ordinary blocking programs. A :class:`Server` is
picklable and is sent with a partition; a :class:`Remote` is one connection to it, with its own
event loop, and must be used by the thread that opened it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Self, TypeVar

import pyarrow as pa
from msgspec import Struct

from penstock.client import Client, ClientOptions, connect
from penstock.errors import Forbidden

__all__ = ["Remote", "Server", "check_reachable"]

T = TypeVar("T")


def _arrow_memory(size: int) -> memoryview:
    """Allocate from Arrow's memory pool, which reuses memory.

    A stream is received and released by two threads. Python would return its memory to the system
    every time and fault in the pages of the next one: 0.7 µs per KiB.
    """
    return memoryview(pa.allocate_buffer(size)).cast("B")


#: A job waits for a server to restart; commands check beforehand that there is one.
_PATIENT: Final = ClientOptions(retry_ms=30_000, memory=_arrow_memory)


#: A server that does not answer is reported after this time, before a job begins.
_SOON: Final = ClientOptions(retry_ms=2_000)


class Server(Struct, frozen=True):
    """The address of a server, and the credential and certificates for it."""

    url: str
    credential: str | None = None
    ca: str | None = None
    """A file with the CA certificates for the server."""
    cert: str | None = None
    """A file with the client's certificate."""
    cert_key: str | None = None
    """A file with its key, if it is not in the same file."""

    def open(self, options: ClientOptions = _PATIENT) -> Remote:
        """Connect to it from this thread."""
        return Remote(self, options)

    async def connect(self, options: ClientOptions) -> Client:
        """Connect to it on the running event loop."""
        return await connect(
            self.url,
            credential=self.credential,
            ca=self.ca,
            cert=self.cert,
            key=self.cert_key,
            options=options,
        )

    def __repr__(self) -> str:
        # Without the credential: Spark writes partitions into its logs.
        return f"Server({self.url!r})"


class Remote:
    """One connection, for one thread. ``ask`` waits for the result of a verb."""

    def __init__(self, server: Server, options: ClientOptions) -> None:
        self.server = server
        self._runner = asyncio.Runner()
        try:
            self._client = self._runner.run(server.connect(options))
        except BaseException:
            self._runner.close()
            raise

    def ask(self, call: Callable[[Client], Awaitable[T]]) -> T:
        """Call a verb and return its result: ``remote.ask(lambda q: q.log_end())``."""

        async def wait() -> T:
            return await call(self._client)

        # Not Runner.run: in a main thread it installs an interrupt handler, and removing that
        # takes a repr() of the task including its result, which may be megabytes.
        return self._runner.get_loop().run_until_complete(wait())

    def close(self) -> None:
        """Close the connection."""
        try:
            self._runner.run(self._client.close())
        finally:
            self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def check_reachable(server: Server) -> None:
    """Raise within seconds if the server does not answer, or refuses the credential.

    A job that has begun waits longer, because the server may be restarting.
    """
    with server.open(_SOON) as remote, suppress(Forbidden):
        # A credential that may only publish cannot read the log; the server answers all the same.
        remote.ask(lambda q: q.log_end())
