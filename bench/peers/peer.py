"""What the benchmark needs of a peer: a server that it can start and kill, and clients.

A peer is used in three processes. The benchmark starts its server; a producer process and a
consumer process make their clients from the server's address. All clients run on asyncio's default
event loop.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from bench.peers.probe import Phase, Probe
from bench.peers.process import GuardedProcess
from bench.peers.workloads import WORKLOADS, Workload
from bench.processes import free_port

__all__ = [
    "LEASE_S",
    "QUEUE",
    "WAIT_S",
    "Consumer",
    "MissingPeer",
    "Peer",
    "ProcessPeer",
    "Producer",
    "find_program",
]

QUEUE: Final = "bench"
#: How long a message stays with a consumer that does not settle it, where the peer has a lease.
LEASE_S: Final = 5
#: The longest wait of one receive call. Clients check the phase in between.
WAIT_S: Final = 0.2
_START_S: Final = 60.0
_POLL_S: Final = 0.05


class MissingPeer(Exception):
    """The peer cannot run here; the text says what to install."""


class Producer(ABC):
    """Publishes. A call returns when the message is as durable as the peer makes it."""

    @abstractmethod
    async def publish(self, body: bytes) -> None: ...

    @abstractmethod
    async def publish_batch(self, bodies: Sequence[bytes]) -> None: ...

    @abstractmethod
    async def close(self) -> None:
        """Producers that share a connection all close it."""


class Consumer(ABC):
    """Receives and acks. A peer that hands out messages in another way overrides ``run``."""

    async def run(self, probe: Probe, limit: int) -> None:
        """Receive, check and ack until the run ends."""
        while probe.phase is not Phase.END:
            held = await self.receive(limit)
            if held:
                numbers = [probe.receive(body) for body, _ in held]
                await self.ack([token for _, token in held])
                probe.settle(numbers)

    @abstractmethod
    async def receive(self, limit: int) -> list[tuple[bytes, Any]]:
        """Up to ``limit`` messages, each with what its ack needs; waits for the first."""

    @abstractmethod
    async def ack(self, tokens: Sequence[Any]) -> None: ...

    @abstractmethod
    async def close(self) -> None:
        """Consumers that share a connection all close it."""


class Peer(ABC):
    """A message queue, with a private server on an empty folder."""

    name: ClassVar[str]
    #: What a confirmed publish has survived.
    durability: ClassVar[str]
    #: The client library.
    client: ClassVar[str]
    workloads: ClassVar[tuple[str, ...]] = tuple(WORKLOADS)
    #: Seconds without a receipt after which a restarted server has no more messages to hand out.
    redelivery_s: ClassVar[float] = LEASE_S + 2.0

    @classmethod
    @abstractmethod
    def versions(cls) -> dict[str, str]:
        """The versions of server and client. Raises ``MissingPeer`` if one is not installed."""

    # -- the server --------------------------------------------------------------------

    def __init__(self, folder: Path) -> None:
        #: A folder on the disk that the server writes to.
        self.folder = folder

    @property
    @abstractmethod
    def address(self) -> str:
        """What a client needs to connect."""

    @abstractmethod
    def start(self) -> None:
        """Start the server on what it has in its folder; returns when the queue is there."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the server, if it runs. It is not started again."""

    @abstractmethod
    def kill(self) -> None:
        """End all processes of the server with SIGKILL."""

    @abstractmethod
    def server_roots(self) -> list[int]:
        """Processes whose descendants, with themselves, are the server."""

    # -- clients -----------------------------------------------------------------------

    @classmethod
    @abstractmethod
    async def producers(cls, address: str, workload: Workload) -> Sequence[Producer]:
        """As many as the workload has."""

    @classmethod
    @abstractmethod
    async def consumers(cls, address: str, workload: Workload) -> Sequence[Consumer]:
        """As many as the workload has, or one that does the work of all."""

    def worker(self, probe: Path) -> tuple[list[str], dict[str, str]] | None:
        """The program that consumes, if the peer has its own, and variables that it needs.

        Its handler reports to the probe, and so does the program when it is ready.
        """
        del probe
        return None


class ProcessPeer(Peer):
    """A peer whose server is one program that listens on a port."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()
        self._server: GuardedProcess | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """The server, in the foreground, with its data in the folder."""

    def environment(self) -> dict[str, str]:
        """Variables that the server needs."""
        return {}

    async def declare(self) -> None:
        """Create the queue unless there is one. Raises ``OSError`` until the server answers."""

    @property
    def address(self) -> str:
        return str(self.port)

    def start(self) -> None:
        self._server = GuardedProcess(
            self.folder / "server.log", self.command(), self.environment()
        )
        deadline = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                asyncio.run(self.declare())
            except OSError as error:
                if self._server.has_ended or time.monotonic() > deadline:
                    raise RuntimeError(
                        f"{self.name} does not answer: {error}\n{self._server.log_end()}"
                    ) from error
                time.sleep(_POLL_S)
            else:
                return

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    def kill(self) -> None:
        server, self._server = self._server, None
        assert server is not None
        server.kill()

    def server_roots(self) -> list[int]:
        return [] if self._server is None else [self._server.root]


def find_program(name: str, package: str) -> str:
    """The path of a server; Debian keeps some off an ordinary user's PATH."""
    path = os.environ.get("PATH", os.defpath)
    found = shutil.which(name, path=f"{path}:/usr/sbin:/sbin")
    if found is None:
        raise MissingPeer(f"{name} is not installed: apt-get install {package}")
    return found
