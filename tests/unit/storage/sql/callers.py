"""Connections of a caller's own to the database that a store is in."""

from __future__ import annotations

from typing import Any, Protocol

from tests.databases import server

__all__ = ["DIALECTS", "Caller", "caller"]

DIALECTS = ("postgresql", "mysql")


class Caller(Protocol):
    """A connection, and how its transactions are made."""

    connection: Any

    async def begin(self, isolation: str | None = None) -> None: ...

    async def run(self, statement: str) -> Any: ...

    async def commit(self) -> None: ...

    async def roll_back(self) -> None: ...

    async def close(self) -> None: ...


class _PostgreSQL:
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def begin(self, isolation: str | None = None) -> None:
        await self.connection.execute(f"BEGIN ISOLATION LEVEL {isolation or 'READ COMMITTED'}")

    async def run(self, statement: str) -> Any:
        return [tuple(row) for row in await self.connection.fetch(statement)]

    async def commit(self) -> None:
        await self.connection.execute("COMMIT")

    async def roll_back(self) -> None:
        await self.connection.execute("ROLLBACK")

    async def close(self) -> None:
        await self.connection.close()


class _MySQL:
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def begin(self, isolation: str | None = None) -> None:
        if isolation is not None:
            await self.run(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
        await self.connection.begin()

    async def run(self, statement: str) -> Any:
        async with self.connection.cursor() as cursor:
            await cursor.execute(statement)
            return list(await cursor.fetchall())

    async def commit(self) -> None:
        await self.connection.commit()

    async def roll_back(self) -> None:
        await self.connection.rollback()

    async def close(self) -> None:
        await self.connection.ensure_closed()


async def caller(dialect: str, database: str) -> Caller:
    """A connection as an application has it, with settings of its own."""
    from penstock.storage.sql.urls import parse

    address = parse(server(dialect).url(database))
    if dialect == "postgresql":
        import asyncpg

        return _PostgreSQL(
            await asyncpg.connect(
                host=address.host,
                port=address.port,
                user=address.user,
                password=address.password,
                database=address.database,
            )
        )
    import asyncmy

    found = _MySQL(
        await asyncmy.connect(
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password or "",
            database=address.database,
            autocommit=True,
        )
    )
    await found.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    return found
