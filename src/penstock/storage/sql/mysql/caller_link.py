"""A caller's connection of PyMySQL, mysqlclient or aiomysql, as a link.

Statements are sent one by one, as text, with their values as hexadecimal literals.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import asyncmy

from penstock.storage.sql.caller_connections import Cursors, driver_name
from penstock.storage.sql.mysql.connection import Link, Reply, to_text
from penstock.storage.timeouts import Timeouts

__all__ = ["DRIVERS", "CallerLink", "has_transaction"]

DRIVERS: Final = frozenset({"aiomysql", "pymysql", "MySQLdb"})
_SERVER_STATUS_IN_TRANS: Final = 1


class CallerLink(Link):
    """Runs statements on another driver's connection."""

    def __init__(self, connection: Any, timeouts: Timeouts) -> None:
        super().__init__(connection, timeouts)
        # Not the default class, which may return dictionaries.
        kind = sys.modules[f"{driver_name(connection)}.cursors"].Cursor
        self._cursors = Cursors(lambda: connection.cursor(kind), _translated)

    async def _execute(self, sql: str, values: Sequence[object], *, prepared: bool) -> Reply:
        del prepared
        return Reply(*await self._cursors.run(to_text(sql, values)))

    async def together(self, parts: Sequence[tuple[str, Sequence[object]]]) -> list[Reply]:
        """Run statements in order; the connection may refuse several in one request."""
        return [await self.execute(sql, values) for sql, values in parts]

    async def execute_text(self, sql: str) -> None:
        """Run a statement that has no values and returns no rows."""
        await self.execute(sql)

    async def forget_statements(self) -> None:
        """Do nothing: none are prepared."""


def has_transaction(connection: Any) -> bool:
    """Whether a transaction is open, or the next statement opens one."""
    if not getattr(connection, "open", True) or getattr(connection, "closed", False) is True:
        return False
    if not connection.get_autocommit():
        return True
    status = getattr(connection, "server_status", 0)
    return bool(status & _SERVER_STATUS_IN_TRANS)


def _translated(error: Exception) -> Exception:
    """The exception of asyncmy that corresponds to one of these drivers."""
    if driver_name(error) not in DRIVERS:
        return error
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    kind = asyncmy.OperationalError if number else asyncmy.InterfaceError
    made: Exception = kind(number, str(error.args[-1]) if error.args else type(error).__name__)
    return made
