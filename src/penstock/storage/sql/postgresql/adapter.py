"""PostgreSQL, through asyncpg.

Every session is READ COMMITTED, prepares each statement once, and plans without statistics: an
index serves every statement that Penstock has, and a plan that was made while a table was empty
must still be right when it holds a million rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NoReturn

import asyncpg

from penstock.errors import BadInput
from penstock.storage.sql.database import Count, Database, NewSegment, Row, Session, Stable
from penstock.storage.sql.postgresql.failures import FAILURES, opening, translate
from penstock.storage.sql.postgresql.listening import NOTIFY, Listening, announcements
from penstock.storage.sql.runs import Place
from penstock.storage.sql.runs import Row as RunRow
from penstock.storage.sql.statements import PARAMETER, load
from penstock.storage.sql.urls import Address

__all__ = ["PostgreSQL"]

#: Settings of every session.
_SETTINGS: Final = {
    "application_name": "penstock",
    "default_transaction_isolation": "read committed",
    # One plan a statement, whatever its parameters, and always by an index.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    # Nobody waits for a lock, or holds one in silence, for ever.
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "60s",
}
#: Statements that a session remembers; there are fewer.
_STATEMENTS: Final = 500
#: What a publish inside a caller's transaction goes back to if it is refused.
_SAVEPOINT: Final = "penstock_publish"
#: Seconds that a connection may stay unused.
_IDLE_S: Final = 300.0


def _positional(text: str) -> tuple[str, tuple[str, ...]]:
    """The statement with ``$1`` for each name, and the names in that order."""
    names = tuple(dict.fromkeys(PARAMETER.findall(text)))
    return PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", text), names


class _Session(Session):
    """A connection, with a transaction from its first statement on."""

    def __init__(
        self,
        connection: Any,
        statements: dict[str, tuple[str, tuple[str, ...]]],
        *,
        begun: bool,
    ) -> None:
        self._connection = connection
        self._statements = statements
        self.begun = begun

    async def _begin(self) -> None:
        if not self.begun:
            await self._connection.execute("BEGIN")
            self.begun = True

    async def fetch(self, statement: str, **parameters: object) -> list[Row]:
        await self._begin()
        text, names = self._statements[statement]
        rows: list[Row] = await self._connection.fetch(text, *[parameters[n] for n in names])
        return rows

    async def run(self, statement: str, **parameters: object) -> int:
        await self._begin()
        text, names = self._statements[statement]
        status: str = await self._connection.execute(text, *[parameters[n] for n in names])
        return int(status.rpartition(" ")[2])

    async def write(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        if rows:
            await self._begin()
            text, _ = self._statements[statement]
            await self._connection.execute(text, *map(list, zip(*rows, strict=True)))

    async def notify(self, queues: Sequence[int]) -> None:
        await self._connection.execute(NOTIFY, announcements(queues))

    async def publishing(self) -> None:
        text, _ = self._statements["begin_publishing"]
        # Both in one round trip where the transaction begins here.
        await self._connection.execute(text if self.begun else f"BEGIN; {text}")
        self.begun = True

    async def append(self, segments: Sequence[NewSegment]) -> list[int]:
        await self._begin()
        text, _ = self._statements["append"]
        rows = await self._connection.fetch(text, *map(list, zip(*segments, strict=True)))
        return sorted(row[0] for row in rows)

    async def heads(
        self, queue: int, phases: Sequence[int], floors: Sequence[int], most: int
    ) -> list[Row]:
        return await self.fetch("heads", queue=queue, phases=phases, floors=floors, most=most)

    async def change(
        self,
        tenant: int,
        segments: Sequence[NewSegment],
        gone: Sequence[Place],
        runs: Sequence[RunRow],
        counts: Sequence[Count],
    ) -> tuple[int, list[int]]:
        await self._begin()
        changes = (*_columns(gone, 4), *_columns(runs, 11), *_columns(counts, 3))
        if not segments:
            text, _ = self._statements["change"]
            return await self._connection.fetchval(text, tenant, *changes) or 0, []
        text, _ = self._statements["append_and_change"]
        row = await self._connection.fetchrow(text, tenant, *changes, *_columns(segments, 5))
        # A caller's transaction may be older than the tenant, and sees no version of it.
        return row[0] or 0, row[1]


def _columns(rows: Sequence[Sequence[object]], width: int) -> list[list[object]]:
    """The rows, one list a column."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * width


class PostgreSQL(Database):
    """A pool of connections to one database."""

    name = "postgresql"

    def __init__(self, address: Address) -> None:
        self._address = address
        self._pool: Any = None
        self._statements = {name: _positional(text) for name, text in load("postgresql").items()}
        self._listening = Listening(self._connect)

    @classmethod
    async def open(cls, address: Address) -> PostgreSQL:
        """Connect; raises what is wrong with the address or the server."""
        database = cls(address)
        try:
            database._pool = pool = await asyncpg.create_pool(
                **_arguments(address),
                min_size=0,
                max_size=address.pool,
                max_inactive_connection_lifetime=_IDLE_S,
                reset=_leave_as_it_is,
                init=database._opened,
            )
            # None is kept on reserve, so this is the first.
            await pool.release(await pool.acquire())
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as error:
            raise opening(error, address.shown) from error
        return database

    async def _opened(self, _connection: object) -> None:
        """The pool has opened a connection."""
        self.renewed()

    async def _connect(self) -> Any:
        """A connection of its own, for whoever listens."""
        return await asyncpg.connect(**_arguments(self._address))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        async with self._connection() as connection:
            session = _Session(connection, self._statements, begun=False)
            committing = False
            try:
                yield session
                if session.begun:
                    committing = True
                    await connection.execute("COMMIT")
            except BaseException as error:  # noqa: BLE001  (raised again)
                await _roll_back(connection)
                _raise(error, committing=committing)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Session]:
        async with self._connection() as connection:
            try:
                yield _Session(connection, self._statements, begun=True)
            except Exception as error:  # noqa: BLE001  (raised again)
                _raise(error)

    @asynccontextmanager
    async def borrowed(self, connection: object) -> AsyncIterator[Session]:
        if not isinstance(connection, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
            raise BadInput(
                f"connection is a {type(connection).__name__}; it is an asyncpg connection.",
                field="connection",
            )
        if connection.is_closed() or not connection.is_in_transaction():
            raise BadInput("connection has no transaction open.", field="connection")
        try:
            await connection.execute(f"SAVEPOINT {_SAVEPOINT}")
            try:
                yield _Session(connection, self._statements, begun=True)
            except BaseException:
                if not connection.is_closed():
                    await connection.execute(
                        f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}; RELEASE SAVEPOINT {_SAVEPOINT}"
                    )
                raise
            await connection.execute(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        except Exception as error:  # noqa: BLE001  (raised again)
            _raise(error)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        try:
            connection = await self._pool.acquire()
        except Exception as error:  # noqa: BLE001  (raised again)
            _raise(error)
        try:
            yield connection
        finally:
            # What was done is done. The pool ends a connection that it cannot take back, and of
            # one that is lost at this moment it has taken leave already.
            with suppress(*FAILURES):
                await self._pool.release(connection)

    async def stable(self) -> Stable:
        # In this order: a publish that is not seen as open has ended, so whoever reads the log
        # after this sees what it appended.
        async with self.reading() as session:
            ((given,),) = await session.fetch("given")
            ((oldest,),) = await session.fetch("oldest_publishing")
        return Stable(given if oldest is None else min(given, oldest), given, oldest)

    async def now(self) -> int:
        async with self.reading() as session:
            ((now,),) = await session.fetch("now")
        return int(now)

    async def watch(self, heard: Callable[[Sequence[int]], None]) -> None:
        await self._listening.start(heard)

    @property
    def hears(self) -> bool:
        return self._listening.hears

    async def tell(self, queues: Sequence[int]) -> None:
        await self._listening.tell(queues)

    async def close(self) -> None:
        await self._listening.close()
        try:
            await asyncio.wait_for(self._pool.close(), 10)
        except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            self._pool.terminate()


def _raise(error: BaseException, *, committing: bool = False) -> NoReturn:
    """Raise what the error means to the engine."""
    meant = translate(error, committing=committing)
    if meant is error:
        raise error
    raise meant from error


async def _leave_as_it_is(connection: object) -> None:
    """Sessions are alike and have nothing to reset: no round trip for it."""


async def _roll_back(connection: Any) -> None:
    """End the transaction; a connection that cannot is closed."""
    try:
        if connection.is_closed():
            return
        if connection.is_in_transaction():
            await asyncio.wait_for(connection.execute("ROLLBACK"), 10)
    except FAILURES:
        # The pool has taken one that was lost back already.
        with suppress(asyncpg.InterfaceError):
            connection.terminate()


def _arguments(address: Address) -> dict[str, Any]:
    return {
        "host": address.host,
        "port": address.port,
        "user": address.user,
        "password": address.password,
        "database": address.database,
        "ssl": address.tls(),
        "timeout": address.connect_timeout,
        "statement_cache_size": _STATEMENTS,
        "server_settings": _SETTINGS,
    }
