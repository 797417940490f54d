"""PGMQ: its own SQL functions on PostgreSQL, called with asyncpg, one connection per client.

A waiting consumer polls ten times a second, the default of ``read_with_poll``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import asyncpg
from pgmq.install import get_embedded_install_sql, get_embedded_sql_version

from bench.peers.database import Database
from bench.peers.peer import LEASE_S, QUEUE, Consumer, Peer, Producer
from bench.peers.workloads import Workload

__all__ = ["Pgmq"]

_POLL_S: Final = 1
_POLL_MS: Final = 100


def _wrap(body: bytes) -> str:
    return f'{{"b":"{body.decode()}"}}'


class _Producer(Producer):
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def publish(self, body: bytes) -> None:
        await self._connection.fetchval("SELECT pgmq.send($1::text, $2::jsonb)", QUEUE, _wrap(body))

    async def publish_batch(self, bodies: Sequence[bytes]) -> None:
        await self._connection.fetch(
            "SELECT pgmq.send_batch($1::text, $2::jsonb[])", QUEUE, [_wrap(one) for one in bodies]
        )

    async def close(self) -> None:
        await self._connection.close()


class _Consumer(Consumer):
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def receive(self, limit: int) -> list[tuple[bytes, Any]]:
        rows = await self._connection.fetch(
            """SELECT msg_id, message->>'b' AS body
            FROM pgmq.read_with_poll($1::text, $2::integer, $3::integer, $4::integer, $5::integer)
            """,
            *(QUEUE, LEASE_S, limit, _POLL_S, _POLL_MS),
        )
        return [(row["body"].encode(), row["msg_id"]) for row in rows]

    async def ack(self, tokens: Sequence[Any]) -> None:
        await self._connection.fetch(
            "SELECT pgmq.delete($1::text, $2::bigint[])", QUEUE, list(tokens)
        )

    async def close(self) -> None:
        await self._connection.close()


class Pgmq(Peer):
    name = "pgmq"
    durability = "`synchronous_commit`: fdatasync of PostgreSQL's log before a commit returns"
    client = "asyncpg"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._database = Database()
        self.folder = self._database.folder

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {
            "postgresql": Database.version(),
            "pgmq": get_embedded_sql_version(),
            "asyncpg": version("asyncpg"),
        }

    @property
    def address(self) -> str:
        return self._database.url

    def start(self) -> None:
        if self._database.start():
            asyncio.run(self._install())

    async def _install(self) -> None:
        connection = await asyncpg.connect(self.address)
        await connection.execute(get_embedded_install_sql())
        await connection.execute("SELECT pgmq.create($1::text)", QUEUE)
        await connection.close()

    def stop(self) -> None:
        self._database.stop()

    def kill(self) -> None:
        self._database.kill()

    def server_roots(self) -> list[int]:
        return self._database.roots()

    @classmethod
    async def producers(cls, address: str, workload: Workload) -> Sequence[Producer]:
        return [_Producer(await asyncpg.connect(address)) for _ in range(workload.producers)]

    @classmethod
    async def consumers(cls, address: str, workload: Workload) -> Sequence[Consumer]:
        return [_Consumer(await asyncpg.connect(address)) for _ in range(workload.consumers)]
