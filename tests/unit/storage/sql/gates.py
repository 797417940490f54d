"""Transactions of two servers that meet: what one does between two statements of the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.storage.sql.database import load_module
from tests.databases import server
from tests.unit.storage.sql.pairs import NAME

__all__ = ["Between", "Gate", "someone_waits"]

#: How many transactions wait for a row or a table that another one has locked.
_WAITING = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}


#: Seconds between two looks. MariaDB renews what it shows of transactions only if nobody has looked
#: for 0.1 s.
_PAUSE_S = 0.15


async def someone_waits(dialect: str) -> bool:
    """Whether a transaction waits for a lock, as of a moment ago."""
    await asyncio.sleep(_PAUSE_S)
    return server(dialect).sql(_WAITING[dialect], NAME) != [["0"]]


def _session_class(dialect: str) -> Any:
    """The sessions of a dialect."""
    if dialect == "postgresql":
        return load_module(dialect, "session").PostgreSQLSession
    return load_module(dialect, "adapter")._Session


class Gate:
    """Holds the next transaction that writes, after its change and before its commit."""

    def __init__(self, dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._dialect = dialect
        self._opened = asyncio.Event()
        #: Set when the transaction has written.
        self.written = asyncio.Event()
        session = _session_class(dialect)
        change = session.change

        async def change_and_wait(one: object, *args: object, **named: object) -> Any:
            found = await change(one, *args, **named)
            if not self.written.is_set():
                self.written.set()
                await self._opened.wait()
            return found

        monkeypatch.setattr(session, "change", change_and_wait)

    async def open_for(self, other: asyncio.Future[Any]) -> None:
        """Let the transaction commit as soon as the other call waits for it, or has ended."""
        while not other.done() and not await someone_waits(self._dialect):
            pass
        self._opened.set()


class Between:
    """Runs something once, after the first statement of a name that any session runs."""

    def __init__(self, dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._after: dict[str, Callable[[], Awaitable[object]]] = {}
        session = _session_class(dialect)
        for method in ("fetch", "run", "write"):
            monkeypatch.setattr(session, method, self._wrapped(getattr(session, method)))

    def after(self, statement: str, act: Callable[[], Awaitable[object]]) -> None:
        """Run ``act`` after the next statement of this name."""
        self._after[statement] = act

    def _wrapped(self, plain: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(session: object, statement: str, *args: object, **named: object) -> Any:
            answer = await plain(session, statement, *args, **named)
            act = self._after.pop(statement, None)
            if act is not None:
                await act()
            return answer

        return call
