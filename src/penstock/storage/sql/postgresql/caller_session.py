"""A caller's connection of psycopg 3 or psycopg2, with the methods of asyncpg that a session uses.

Values are sent as untyped literals, so that the server infers the same types as for asyncpg's
parameters, and every driver passes them on unchanged.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from penstock.storage.sql.caller_connections import Cursors, driver_name

__all__ = ["DRIVERS", "CallerConnection", "literal"]

DRIVERS: Final = frozenset({"psycopg", "psycopg2"})

_PARAMETER: Final = re.compile(r"\$(\d+)")
#: The transaction states of libpq.
_IDLE: Final = 0
_IN_TRANSACTION: Final = 2


class CallerConnection:
    """Runs the statements of a session on another driver's connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        name = driver_name(connection)
        if name == "psycopg":
            rows = sys.modules["psycopg.rows"].tuple_row
            self._cursors = Cursors(lambda: connection.cursor(row_factory=rows), _translated)
        else:
            kind = sys.modules["psycopg2.extensions"].cursor
            self._cursors = Cursors(lambda: connection.cursor(cursor_factory=kind), _translated)

    def is_closed(self) -> bool:
        """Whether it is closed."""
        return bool(self._connection.closed)

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open, or the next statement opens one."""
        connection = self._connection
        info = getattr(connection, "info", None)
        status = int(connection.info.transaction_status if info else _IDLE)
        return status == _IN_TRANSACTION or (status == _IDLE and not connection.autocommit)

    async def fetch(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        return (await self._cursors.run(_filled(sql, values))).rows or []

    async def fetchrow(self, sql: str, *values: object) -> tuple[Any, ...] | None:
        """The first row of a statement."""
        rows = await self.fetch(sql, *values)
        return rows[0] if rows else None

    async def execute(self, sql: str, *values: object) -> str:
        """Run a statement; its status ends with the number of rows."""
        return f"ROWS {(await self._cursors.run(_filled(sql, values))).changed}"


def literal(value: object) -> str:
    """A value as an untyped literal in ASCII, whatever the settings of the session are."""
    if value is None:
        return "NULL"
    text = _array(value) if isinstance(value, list | tuple) else _text(value)
    return f"E'{''.join(map(_escaped, text))}'"


def _text(value: object) -> str:
    match value:
        case bool():
            return "t" if value else "f"
        case int() | float():
            return repr(value)
        case bytes():
            return f"\\x{value.hex()}"
        case str():
            return value
        case _:
            raise TypeError(f"{type(value).__name__} in a statement")


def _array(values: Sequence[object]) -> str:
    items = []
    for value in values:
        if value is None:
            items.append("NULL")
        elif isinstance(value, list | tuple):
            items.append(_array(value))
        else:
            text = _text(value).replace("\\", "\\\\").replace('"', '\\"')
            items.append(f'"{text}"')
    return f"{{{','.join(items)}}}"


def _escaped(character: str) -> str:
    if character in "'\\":
        return character * 2
    if " " <= character <= "~":
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _filled(sql: str, values: Sequence[object]) -> str:
    return _PARAMETER.sub(lambda found: literal(values[int(found[1]) - 1]), sql) if values else sql


def _translated(error: Exception) -> Exception:
    """The exception of asyncpg that corresponds to one of psycopg."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    said = str(error).partition("\n")[0] or type(error).__name__
    if state is not None:
        made: Exception = asyncpg.PostgresError.new({"C": state, "M": said})
        return made
    if driver_name(error) in DRIVERS:
        return asyncpg.InterfaceError(f"the connection is closed: {said}")  # type: ignore[no-any-return]
    return error
