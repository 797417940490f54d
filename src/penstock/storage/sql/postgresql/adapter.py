"""PostgreSQL, through asyncpg.

Every session is READ COMMITTED, prepares each statement once, and plans without statistics: an
index serves every statement of Penstock, and a plan made while a table was empty must still be
right when it holds a million rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final, NoReturn, TypeVar

import asyncpg

from penstock.errors import BadInput
from penstock.storage.sql.caller_connections import driver_connection, driver_name
from penstock.storage.sql.database import (
    LOOKS,
    Database,
    RetryTransaction,
    Session,
    Stable,
)
from penstock.storage.sql.error_mapping import raise_as
from penstock.storage.sql.postgresql.caller_session import DRIVERS, CallerConnection
from penstock.storage.sql.postgresql.error_mapping import FAILURES, opening, translate
from penstock.storage.sql.postgresql.notifications import Listening
from penstock.storage.sql.postgresql.session import PostgreSQLSession
from penstock.storage.sql.statements import PARAMETER, load
from penstock.storage.sql.urls import Address
from penstock.storage.timeouts import Timeouts

__all__ = ["PostgreSQL", "connection_arguments", "deadline_s"]

T = TypeVar("T")

#: Seconds that the pool waits for a statement whose caller was cancelled.
_RELEASE_S: Final = 5.0
#: The savepoint that a refused publish in a caller's transaction is rolled back to.
_SAVEPOINT: Final = "penstock_publish"
#: Connections that are kept outside the pool, and the seconds after which they are returned. They
#: save consecutive calls the wait for the pool.
_AT_HAND: Final = 2
_AT_HAND_S: Final = 1.0
#: Seconds that a connection may stay idle.
_IDLE_S: Final = 300.0


def _positional(text: str) -> tuple[str, tuple[str, ...]]:
    """The statement with ``$1`` for each name, and the names in that order."""
    names = tuple(dict.fromkeys(PARAMETER.findall(text)))
    return PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", text), names


class _Opened(AbstractAsyncContextManager[Session]):
    """A session on a connection of the pool, committed at the end, or rolled back.

    A class, because every verb uses it and a generator-based one costs four times as much.
    """

    def __init__(self, database: PostgreSQL, *, loose: bool) -> None:
        self._database = database
        self._loose = loose

    async def __aenter__(self) -> Session:
        self._connection = await self._database.take()
        self._session = PostgreSQLSession(
            self._connection,
            self._database.statements,
            begun=False,
            loose=self._loose,
            timeouts=self._database.timeouts,
        )
        return self._session

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        unharmed = False
        try:
            try:
                if error is not None:
                    raise error
                if self._session.begun:
                    self._session.committing = True
                    await self._database.timeouts.run(self._connection.execute("COMMIT"))
                unharmed = True
            except BaseException as failed:  # noqa: BLE001  (raised again)
                await self._database.abandon(self._connection, failed)
                _raise(failed, committing=self._session.committing)
        finally:
            await self._database.give_back(self._connection, unharmed=unharmed)


class PostgreSQL(Database):
    """A pool of connections to one database."""

    name = "postgresql"
    has_floors = True
    publishes_in_one_statement = True

    def __init__(self, address: Address) -> None:
        self._address = address
        #: Seconds that a caller waits for a connection.
        self._patience_s = address.statement_timeout + address.connect_timeout
        #: The timeout of statements.
        self.timeouts = Timeouts(deadline_s(address))
        self._pool: Any = None
        self._at_hand: list[Any] = []
        #: Open connections, and by identity the backend pids of those taken from the pool.
        self._open: set[Any] = set()
        self._out: dict[int, int] = {}
        #: The number of callers that wait for the pool.
        self._waiting = 0
        self._tidying: asyncio.TimerHandle | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self.statements = {name: _positional(text) for name, text in load("postgresql").items()}
        self._listening = Listening(self._connect)

    @classmethod
    async def open(cls, address: Address) -> PostgreSQL:
        """Connect; raises if the address or the server cannot be used."""
        database = cls(address)
        try:
            arguments = connection_arguments(address)
            # ``timeouts`` enforces the timeouts of the pool's connections.
            arguments["command_timeout"] = None
            database._pool = pool = await asyncpg.create_pool(
                **arguments,
                min_size=0,
                max_size=address.pool,
                max_inactive_connection_lifetime=_IDLE_S,
                reset=_leave_as_it_is,
                init=database._opened,
            )
            # The pool starts empty, so this opens the first connection.
            await pool.release(await pool.acquire())
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as error:
            raise opening(error, address.shown) from error
        return database

    async def _opened(self, connection: Any) -> None:
        """Called after the pool has opened a connection."""
        self._open.add(connection)
        connection.add_termination_listener(self._open.discard)
        self.renewed()

    async def _connect(self) -> Any:
        """A dedicated connection for the listener."""
        return await asyncpg.connect(**connection_arguments(self._address))

    def add_statements(self, statements: Mapping[str, str]) -> None:
        self.statements |= {name: _positional(text) for name, text in statements.items()}

    async def set_given(self, session: Session, given: int) -> None:
        await session.fetch("set_given", given=given)

    async def number_rows(self, session: Session, table: str) -> None:
        await session.fetch(f"number_{table}")

    def transaction(self) -> AbstractAsyncContextManager[Session]:
        return _Opened(self, loose=False)

    def single_statement(self) -> AbstractAsyncContextManager[Session]:
        return _Opened(self, loose=True)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Session]:
        async with self._connection() as connection:
            try:
                yield PostgreSQLSession(
                    connection, self.statements, begun=True, timeouts=self.timeouts
                )
            except Exception as error:  # noqa: BLE001  (raised again)
                _raise(error)

    @asynccontextmanager
    async def borrowed(self, connection: object) -> AsyncIterator[Session]:
        driver = await driver_connection(connection)
        if driver_name(driver) in DRIVERS:
            own: Any = CallerConnection(driver)
        elif isinstance(driver, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
            own = driver
        else:
            raise BadInput(
                f"connection is a {type(driver).__name__}; it must be a connection of asyncpg, "
                "psycopg or psycopg2, or of SQLAlchemy or Django over one of them.",
                field="connection",
            )
        if own.is_closed() or not own.is_in_transaction():
            raise BadInput("connection has no transaction open.", field="connection")
        try:
            await own.execute(f"SAVEPOINT {_SAVEPOINT}")
            try:
                yield PostgreSQLSession(own, self.statements, begun=True)
            except BaseException:
                if not own.is_closed():
                    await own.execute(
                        f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}; RELEASE SAVEPOINT {_SAVEPOINT}"
                    )
                raise
            await own.execute(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        except Exception as error:  # noqa: BLE001  (raised again)
            _raise(error)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        connection = await self.take()
        unharmed = False
        try:
            yield connection
            unharmed = True
        except TimeoutError:
            self._drop_all(connection)
            raise
        finally:
            await self.give_back(connection, unharmed=unharmed)

    async def take(self) -> Any:
        """A connection; raises errors that the engine handles."""
        try:
            while self._at_hand:
                connection = self._at_hand.pop()
                if _is_open(connection):
                    return connection
                await self._release(connection)
            self._waiting += 1
            try:
                connection = await self._pool.acquire(timeout=self._patience_s)
            finally:
                self._waiting -= 1
            self._out[id(connection)] = connection.get_server_pid()
            return connection
        except Exception as error:  # noqa: BLE001  (raised again)
            _raise(error)

    async def abandon(self, connection: Any, failed: BaseException) -> None:
        """Roll back, or drop the connection if it does not answer."""
        if isinstance(failed, TimeoutError):
            self._drop_all(connection)
        else:
            await _roll_back(connection)

    def _drop_all(self, connection: Any) -> None:
        """Drop a connection that does not answer, and the idle ones: they probably hang as well,
        and every caller would wait for one of them."""
        for one in (connection, *self._at_hand):
            _terminate(one)
        out = set(self._out.values())
        for one in tuple(self._open):
            if not one.is_closed() and one.get_server_pid() not in out:
                one.terminate()

    async def give_back(self, connection: Any, *, unharmed: bool) -> None:
        """Keep the connection, or return it to the pool, which waits for an interrupted
        statement."""
        if (
            unharmed
            and not self._waiting
            and len(self._at_hand) < _AT_HAND
            and _is_open(connection)
        ):
            self._keep(connection)
        else:
            await self._release(connection)

    def _keep(self, connection: Any) -> None:
        self._at_hand.append(connection)
        if self._tidying is None:
            loop = asyncio.get_running_loop()
            self._tidying = loop.call_later(_AT_HAND_S, self._tidy)

    async def _release(self, connection: Any) -> None:
        # Errors do not matter: the call is complete, the pool closes a connection that it cannot
        # take back, and it has already removed one that was just lost.
        self._out.pop(id(connection), None)
        with suppress(*FAILURES):
            await self._pool.release(connection, timeout=_RELEASE_S)

    def _tidy(self) -> None:
        """Return the kept connections to the pool, which closes those that are idle for long."""
        self._tidying = None
        while self._at_hand:
            task = asyncio.ensure_future(self._release(self._at_hand.pop()))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def stable(self) -> Stable:
        # In this order: a publish that is not seen as open has ended, so a later read of the log
        # sees what it appended. A publish that begins after the locks were read names a segment
        # that is not below ``given``, so the result is never below an earlier one.
        for _ in range(LOOKS):
            async with self.reading() as session:
                ((given,),) = await session.fetch("given")
                ((oldest, beginning),) = await session.fetch("oldest_publishing")
            if not beginning:
                break
        else:
            raise RetryTransaction("a publish has begun and has not announced its segment")
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

    @property
    def has_company(self) -> bool:
        return self._listening.has_company

    async def broadcast(self, queues: Sequence[int]) -> None:
        await self._listening.broadcast(queues)

    async def close(self) -> None:
        await self._listening.close()
        if self._tidying is not None:
            self._tidying.cancel()
            self._tidy()
        try:
            await asyncio.wait_for(self._pool.close(), 10)
        except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            self._pool.terminate()


def _raise(error: BaseException, *, committing: bool = False) -> NoReturn:
    """Raise the error as the engine handles it."""
    raise_as(translate(error, committing=committing), error)


def _is_open(connection: Any) -> bool:
    """Whether it can be used again; the pool invalidates a connection that was lost."""
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:
        return False


async def _leave_as_it_is(connection: object) -> None:
    """Skip the reset, and its round trip: sessions have no state."""


async def _roll_back(connection: Any) -> None:
    """Roll back the transaction; drop the connection if that fails."""
    try:
        if connection.is_closed():
            return
        if connection.is_in_transaction():
            await asyncio.wait_for(connection.execute("ROLLBACK"), 10)
    except FAILURES:
        _terminate(connection)


def _terminate(connection: Any) -> None:
    # The pool may have already taken back a lost connection.
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


# -- how connections are opened ------------------------------------------------------

#: Settings of every session.
_SETTINGS: Final = {
    "application_name": "penstock",
    "default_transaction_isolation": "read committed",
    # One plan per statement, for all parameters, and always with an index.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
}
#: Seconds that a statement waits for a lock, unless the statement timeout is shorter.
_LOCK_S: Final = 10
#: Seconds that the server has to report that it cancelled a statement; the connection is dropped
#: only if it does not.
_GRACE_S: Final = 2
#: Prepared statements per session; there are fewer.
_STATEMENTS: Final = 500


def deadline_s(address: Address) -> float:
    """Seconds after which an unanswered statement is abandoned."""
    return address.statement_timeout + _GRACE_S


def connection_arguments(address: Address) -> dict[str, Any]:
    """The arguments of ``asyncpg.connect``."""
    return {
        "host": address.host,
        "port": address.port,
        "user": address.user,
        "password": address.password,
        "database": address.database,
        "ssl": address.tls(),
        "timeout": address.connect_timeout,
        "command_timeout": deadline_s(address),
        "statement_cache_size": _STATEMENTS,
        "server_settings": {
            **_SETTINGS,
            "statement_timeout": f"{address.statement_timeout}s",
            "lock_timeout": f"{min(_LOCK_S, address.statement_timeout)}s",
            # Locks of a machine that vanished are released after this time.
            "idle_in_transaction_session_timeout": f"{address.statement_timeout}s",
        },
    }
