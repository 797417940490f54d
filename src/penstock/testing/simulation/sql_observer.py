"""Observes a real database, on its own connection from its own thread.

The simulation calls this inside its event loop's wait for I/O, so the reply must come from another
thread. Every method blocks the caller until the database has replied.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from penstock.errors import BadInput
from penstock.storage.sql.database import Database, Session

__all__ = ["Observer", "execute"]

T = TypeVar("T")

#: Timeout in seconds for a reply or the end of a session.
_PATIENCE_S: Final = 30.0
#: Sessions that wait for a lock, by the lock table. It excludes a session that was granted its lock
#: and has not noticed yet, which ``pg_stat_activity`` still shows as waiting.
_WAITING: Final = (
    "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)"
    " WHERE NOT granted AND datname = current_database()"
)
#: The same for InnoDB, in two steps. The counter is quick, but includes a session that was granted
#: its lock until it notices; the transactions that the monitor lists as waiting are exact.
_ABOUT_WAITING: Final = (
    "SELECT variable_value FROM information_schema.global_status"
    " WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'"
)
_MONITOR: Final = "SHOW ENGINE INNODB STATUS"
_LISTED: Final = "LIST OF TRANSACTIONS FOR EACH SESSION:"
_END_OTHERS: Final = {
    "postgresql": "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()",
    "mysql": "SELECT id FROM information_schema.processlist"
    " WHERE db = DATABASE() AND id <> CONNECTION_ID()",
}
_SESSION: Final = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE pid = {}",
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE id = {}",
}


async def execute(session: Session, dialect: str, statement: str) -> list[Any]:
    """Run any statement on the connection of a session. Returns its rows."""
    raw: Any = session
    if dialect == "postgresql":
        return list(await raw._connection.fetch(statement))
    link = await raw._linked()
    return list((await link.execute(statement, prepared=False)).rows or ())


class Observer:
    """Observes the sessions of one database."""

    def __init__(self, opened: Callable[[], Awaitable[Database]], dialect: str) -> None:
        self.dialect = dialect
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._database = self._run(_awaited(opened))

    def check_privilege(self) -> None:
        """Refuse a user without permission to see the server's locks."""
        if self.dialect == "mysql":
            try:
                self.rows(_MONITOR)
            except Exception as error:
                raise BadInput(
                    "The simulation reads the locks of the database server: grant its user "
                    "the privilege PROCESS.",
                    field="store",
                ) from error

    def waiting(self) -> int:
        """How many sessions currently wait for a lock."""
        if self.dialect == "postgresql":
            return self.ask(_WAITING)
        if not self.ask(_ABOUT_WAITING):
            return 0
        _, _, transactions = str(self.rows(_MONITOR)[0][2]).partition(_LISTED)
        return transactions.count("\nLOCK WAIT ")

    def wait_for_end(self, session: int) -> None:
        """Wait until the database has noticed that a session's connection is gone."""
        deadline = time.monotonic() + _PATIENCE_S
        while self.ask(_SESSION[self.dialect].format(session)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"session {session} of the database does not end")

    def run_script(self, statements: list[str]) -> None:
        """Run statements that return no rows."""

        async def run() -> None:
            async with self._database.reading() as session:
                for statement in statements:
                    await execute(session, self.dialect, statement)

        self._run(run())

    def end_others(self) -> None:
        """End every other session of this user in this database."""
        found = self.rows(_END_OTHERS[self.dialect])
        if self.dialect == "mysql":
            self.run_script([f"KILL {number}" for (number,) in found])

    def close(self) -> None:
        """Close the connection and end the thread."""
        self._run(self._database.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    def ask(self, statement: str) -> int:
        """The single number that a statement returns."""
        return int(self.rows(statement)[0][0])

    def rows(self, statement: str) -> list[Any]:
        """The rows of a statement."""

        async def ask() -> list[Any]:
            async with self._database.reading() as session:
                return await execute(session, self.dialect, statement)

        return self._run(ask())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)


async def _awaited(opened: Callable[[], Awaitable[T]]) -> T:
    return await opened()
