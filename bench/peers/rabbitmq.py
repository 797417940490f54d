"""RabbitMQ: a quorum queue on one node, persistent messages, publisher confirms.

Producers share a channel, which is how aio-pika overlaps confirms; so do consumers.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
from aio_pika.exceptions import AMQPError

from bench.peers.peer import QUEUE, WAIT_S, Consumer, ProcessPeer, Producer, find_program
from bench.peers.workloads import Workload
from bench.processes import free_port

__all__ = ["RabbitMQ"]

#: Unacked messages that the server sends ahead, as a multiple of what the consumers hold.
_PREFETCH: Final = 4
#: Where Debian has the program itself; the one on the PATH is a wrapper for root.
_PROGRAM: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


async def _connect(address: str) -> AbstractConnection:
    return await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{address}/")


class _Producer(Producer):
    def __init__(self, connection: AbstractConnection, channel: AbstractChannel) -> None:
        self._connection = connection
        self._exchange = channel.default_exchange

    async def publish(self, body: bytes) -> None:
        message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await self._exchange.publish(message, QUEUE)

    async def publish_batch(self, bodies: Sequence[bytes]) -> None:
        await asyncio.gather(*map(self.publish, bodies))

    async def close(self) -> None:
        await self._connection.close()


class _Consumer(Consumer):
    def __init__(
        self, connection: AbstractConnection, inbox: asyncio.Queue[AbstractIncomingMessage]
    ) -> None:
        self._connection = connection
        self._inbox = inbox

    async def receive(self, limit: int) -> list[tuple[bytes, Any]]:
        try:
            messages = [await asyncio.wait_for(self._inbox.get(), WAIT_S)]
        except TimeoutError:
            return []
        while len(messages) < limit and not self._inbox.empty():
            messages.append(self._inbox.get_nowait())
        return [(message.body, message) for message in messages]

    async def ack(self, tokens: Sequence[Any]) -> None:
        # RabbitMQ does not confirm acks. ``multiple`` includes all earlier messages of the
        # channel, so it is only right if there is one consumer.
        await tokens[-1].ack(multiple=len(tokens) > 1)

    async def close(self) -> None:
        await self._connection.close()


class RabbitMQ(ProcessPeer):
    name = "rabbitmq"
    durability = (
        "quorum queue of one node: fdatasync of the Raft log before a confirm; acks have none"
    )
    client = "aio-pika"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._internal_port = free_port()
        self._epmd_port = free_port()

    @classmethod
    def versions(cls) -> dict[str, str]:
        find_program("rabbitmq-server", "rabbitmq-server")
        return {"rabbitmq-server": _server_version(), "aio-pika": version("aio-pika")}

    def command(self) -> list[str]:
        if _PROGRAM.exists():
            return [str(_PROGRAM)]
        return [find_program("rabbitmq-server", "rabbitmq-server")]

    def environment(self) -> dict[str, str]:
        (self.folder / "plugins").write_text("[].\n")
        for name in ("rabbitmq.conf", "environment"):
            (self.folder / name).touch()
        return {
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": f"bench-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._internal_port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "environment"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ("-kernel inet_dist_use_interface {127,0,0,1}"),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
        }

    async def declare(self) -> None:
        try:
            async with await _connect(self.address) as connection:
                channel = await connection.channel()
                kind = {"x-queue-type": "quorum"}
                await channel.declare_queue(QUEUE, durable=True, arguments=kind)
        except AMQPError as error:
            raise OSError(str(error)) from error

    @classmethod
    async def producers(cls, address: str, workload: Workload) -> Sequence[Producer]:
        connection = await _connect(address)
        channel = await connection.channel(publisher_confirms=True)
        return [_Producer(connection, channel) for _ in range(workload.producers)]

    @classmethod
    async def consumers(cls, address: str, workload: Workload) -> Sequence[Consumer]:
        connection = await _connect(address)
        channel = await connection.channel()
        prefetch = _PREFETCH * workload.consumers * workload.limit
        await channel.set_qos(prefetch_count=prefetch)
        inbox: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        queue = await channel.get_queue(QUEUE, ensure=False)
        await queue.consume(inbox.put)
        return [_Consumer(connection, inbox) for _ in range(workload.consumers)]


def _server_version() -> str:
    """From the folder that the program is in: asking a server takes it seconds to start."""
    program = _PROGRAM if _PROGRAM.exists() else Path(shutil.which("rabbitmq-server") or "")
    for part in program.resolve().parts:
        if part.startswith("rabbitmq_server-"):
            return part.partition("-")[2]
    return "unknown"
