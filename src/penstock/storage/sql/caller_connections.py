"""The driver's connection behind what a caller passes to ``publish(…, connection=…)``.

Recognised, without importing any of them: connections and sessions of SQLAlchemy (sync and
async), and Django's database connections. Anything else is taken for a connection of a driver.
A dialect uses its own driver directly, and runs the same SQL through ``Cursors`` on the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from penstock.errors import BadInput
from penstock.storage.threads import in_thread

__all__ = ["Cursors", "Ran", "driver_connection", "driver_name"]

T = TypeVar("T")


class Ran(NamedTuple):
    """The result of a statement."""

    rows: list[tuple[Any, ...]] | None
    """None if the statement returns no rows."""
    changed: int
    number: int


def driver_name(connection: object) -> str:
    """The package that the class of a connection, or one of its bases, is from."""
    names = [kind.__module__.partition(".")[0] for kind in type(connection).__mro__]
    known = ("asyncpg", "psycopg", "psycopg2", "asyncmy", "aiomysql", "pymysql", "MySQLdb")
    return next((name for name in names if name in known), names[0])


async def driver_connection(connection: object) -> object:
    """The driver's connection that a connection or session of a library uses."""
    module = type(connection).__module__
    if module.startswith("sqlalchemy."):
        return await _of_sqlalchemy(connection)
    if module.startswith("django."):
        return _of_django(connection)
    return connection


async def _of_sqlalchemy(given: Any) -> object:
    if hasattr(given, "get_bind") or hasattr(given, "registry"):
        # A session. Its connection begins the transaction, if the session has not.
        given = await _answer(given.connection)
    if not hasattr(given, "exec_driver_sql"):
        raise BadInput(
            f"connection is a {type(given).__name__} of SQLAlchemy; it must be a connection or a "
            "session.",
            field="connection",
        )
    # SQLAlchemy begins the transaction of the driver with the first statement.
    await _answer(lambda: given.exec_driver_sql("SELECT 1"))
    if hasattr(given, "get_raw_connection"):
        raw = await given.get_raw_connection()
    else:
        raw = given.connection
    driver: object = raw.driver_connection
    return driver


async def _answer(call: Callable[[], Any]) -> Any:
    """The result of a call of SQLAlchemy, which is awaitable or blocks.

    A synchronous call is made in a thread, as on every blocking driver.
    """
    value = await in_thread(call)
    return await value if inspect.isawaitable(value) else value


def _of_django(given: Any) -> object:
    if type(given).__name__ == "ConnectionProxy":
        # It means another connection in every thread, and this is not the caller's.
        raise BadInput(
            "connection is django.db.connection, which differs by thread; pass "
            "django.db.transaction.get_connection().",
            field="connection",
        )
    if not getattr(given, "in_atomic_block", False):
        raise BadInput("connection has no transaction open: use atomic().", field="connection")
    driver: object = given.connection
    return driver


class Cursors:
    """Runs statements on the cursors of a driver, whether it is asynchronous or blocks."""

    def __init__(
        self, open_cursor: Callable[[], Any], translate: Callable[[Exception], Exception]
    ) -> None:
        """``translate`` gives the dialect's own exception for one of this driver."""
        self._open = open_cursor
        self._translate = translate

    async def run(self, sql: str) -> Ran:
        """Run a statement that contains its values."""
        try:
            cursor = self._open()
            if inspect.isawaitable(cursor):
                cursor = await cursor
            if inspect.iscoroutinefunction(cursor.execute):
                return await _run_async(cursor, sql)
            # The caller waits for the publish, so no other thread uses the connection.
            return await in_thread(lambda: _run(cursor, sql))
        except Exception as error:
            raise self._translate(error) from error


async def _run_async(cursor: Any, sql: str) -> Ran:
    try:
        await cursor.execute(sql)
        rows = await cursor.fetchall() if cursor.description else None
        return _ran(cursor, rows)
    finally:
        await cursor.close()


def _run(cursor: Any, sql: str) -> Ran:
    try:
        cursor.execute(sql)
        return _ran(cursor, cursor.fetchall() if cursor.description else None)
    finally:
        cursor.close()


def _ran(cursor: Any, rows: Sequence[Sequence[Any]] | None) -> Ran:
    plain = None if rows is None else [tuple(map(_plain, row)) for row in rows]
    return Ran(plain, max(cursor.rowcount, 0), getattr(cursor, "lastrowid", None) or 0)


def _plain(value: Any) -> Any:
    """A value as the engine's own driver returns it."""
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    return [_plain(item) for item in value] if isinstance(value, list) else value
