"""References for the SQL engine on PostgreSQL, with plain asyncpg.

``Table`` is the minimum that stores a payload: an INSERT into two columns. ``TableQueue`` is a
table as a queue, like PGMQ: a reader hides rows for a while, finds them with SKIP LOCKED, and
deletes them when they are done. Its statements are those of PGMQ's functions (send_batch, read,
delete), cheaper in three ways: they are prepared once, while PGMQ builds them on every call;
messages are bytea, which costs less than its jsonb; and it deletes, while the engine keeps a record
of done deliveries. Every caller has its own connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg

__all__ = ["Table", "TableQueue", "connections"]

#: Seconds that a message stays hidden from other readers.
_HIDDEN_S: Final = 30


@asynccontextmanager
async def connections(url: str, count: int) -> AsyncIterator[list[Any]]:
    """Open ``count`` connections."""
    opened = await asyncio.gather(*(asyncpg.connect(url) for _ in range(count)))
    try:
        yield opened
    finally:
        await asyncio.gather(*(connection.close() for connection in opened))


class Table:
    """Payloads and their numbers."""

    async def create(self, connection: Any) -> None:
        await connection.execute(
            """CREATE TABLE bare (
                number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                body bytea NOT NULL
            )"""
        )

    async def insert(self, connection: Any, bodies: Sequence[bytes]) -> None:
        await connection.execute("INSERT INTO bare (body) SELECT unnest($1::bytea[])", bodies)


class TableQueue:
    """A queue in a table."""

    async def create(self, connection: Any) -> None:
        await connection.execute(
            """CREATE TABLE q (
                msg_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                read_ct integer NOT NULL DEFAULT 0,
                enqueued_at timestamptz NOT NULL DEFAULT now(),
                vt timestamptz NOT NULL,
                message bytea
            );
            CREATE INDEX q_vt ON q (vt)"""
        )

    async def send(self, connection: Any, bodies: Sequence[bytes]) -> None:
        await connection.fetch(
            """INSERT INTO q (vt, message) SELECT clock_timestamp(), unnest($1::bytea[])
            RETURNING msg_id""",
            bodies,
        )

    async def read(self, connection: Any, most: int) -> list[Any]:
        """Number and payload of the first visible messages."""
        rows: list[Any] = await connection.fetch(
            """WITH found AS (
                SELECT msg_id FROM q
                WHERE vt <= clock_timestamp()
                ORDER BY msg_id
                LIMIT $1
                FOR UPDATE SKIP LOCKED
            )
            UPDATE q SET
                vt = clock_timestamp() + make_interval(secs => $2),
                read_ct = read_ct + 1
            FROM found
            WHERE q.msg_id = found.msg_id
            RETURNING q.msg_id, q.read_ct, q.enqueued_at, q.vt, q.message""",
            most,
            _HIDDEN_S,
        )
        return [(row["msg_id"], row["message"]) for row in rows]

    async def delete(self, connection: Any, numbers: Sequence[int]) -> None:
        gone = await connection.fetch(
            "DELETE FROM q WHERE msg_id = ANY($1::bigint[]) RETURNING msg_id", numbers
        )
        if len(gone) != len(numbers):
            raise AssertionError("a message was gone before it was deleted")
