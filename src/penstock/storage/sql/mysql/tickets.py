"""Tickets: how far the log is settled, while publishes are open (L2).

A publishing transaction first writes a ticket, a row with the highest segment that was committed
then, its *base*. A dirty read sees the tickets of open transactions too, a plain one only those
of committed ones; what the first sees and the second, made later, does not is open.

Why nothing appears at or below what ``stable`` gives: take a transaction that appends segment
``n`` and commits. Its ticket was there, if only for a dirty read, before ``n`` was given out, and
its base is less than ``n``: AUTO_INCREMENT only rises. ``stable`` reads (a) the highest number
given out, (b) the tickets, dirty, (c) the tickets that are committed, in this order.

- Not in (b), because it was not written yet: then ``n`` was given out later still, and is above
  what (a) saw.
- Not in (b), because it was cleared away, or in (c) too: then the transaction has committed, and
  whoever reads the log after this sees what it appended.
- In (b) but not in (c): it is open, and what is settled ends at its base, below ``n``. A ticket
  that is cleared in between looks the same, and makes the answer lower than it could be.

A number is given out before its row is there, so (a) by the rows alone could be too low. That
does no harm to the above, as the ticket is there even earlier. Still the server is asked for its
counter as well: when retention has emptied the log its rows say nothing. A transaction that rolls
back takes its rows with it in reverse order, the ticket last.

Committed tickets are cleared away by whoever publishes, now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from penstock.errors import PenstockError
from penstock.storage.sql.database import Again, Lost, Stable
from penstock.storage.sql.mysql.failures import translate
from penstock.storage.sql.mysql.link import Connector, Link
from penstock.storage.sql.mysql.shapes import Statement

__all__ = ["Tickets"]

#: After so many publishes of this server tickets are cleared away.
_CLEAR_AFTER: Final = 200
_DIRTY: Final = "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"
#: For the next statement only.
_COMMITTED: Final = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"


class Tickets:
    """The tickets of a store, on a connection of their own."""

    def __init__(self, connector: Connector, statements: dict[str, Statement]) -> None:
        self._connector = connector
        self._statements = statements
        self._link: Link | None = None
        self._alone = asyncio.Lock()
        self._written = 0
        self._clearing: asyncio.Task[None] | None = None

    async def stable(self) -> Stable:
        """How far the log is settled."""
        async with self._alone:
            try:
                ((given,),) = await self._fetch("given")
                seen = await self._fetch("tickets")
                await (await self._connected()).plainly(_COMMITTED)
                ended = {number for number, _ in await self._fetch("tickets")}
            except BaseException as error:
                self._drop()
                raise translate(error) from error
        given = max([int(given), *(base for _, base in seen)])
        oldest = min((base for number, base in seen if number not in ended), default=None)
        return Stable(given if oldest is None else min(given, oldest), given, oldest)

    def written(self) -> None:
        """One more ticket was written, and its transaction has ended."""
        self._written += 1
        if self._written >= _CLEAR_AFTER and self._clearing is None:
            self._written = 0
            self._clearing = asyncio.get_running_loop().create_task(self._clear_soon())

    async def clear(self) -> None:
        """Remove the tickets of all transactions that have committed, whosever they are."""
        async with self._alone:
            try:
                await (await self._connected()).plainly(_COMMITTED)
                numbers = [number for number, _ in await self._fetch("tickets")]
                if numbers:
                    sql, values = self._statements["clear_tickets"].bind({"numbers": numbers})
                    await (await self._connected()).execute(sql, values)
            except BaseException as error:
                self._drop()
                raise translate(error) from error

    async def close(self) -> None:
        """Take leave of the server."""
        if self._clearing is not None:
            await asyncio.wait([self._clearing])
        async with self._alone:
            link, self._link = self._link, None
            if link is not None:
                await link.part()

    async def _clear_soon(self) -> None:
        try:
            # What cannot be cleared now is cleared with the next.
            with suppress(Again, Lost, PenstockError):
                await self.clear()
        finally:
            self._clearing = None

    async def _connected(self) -> Link:
        if self._link is None:
            link = await self._connector.connect()
            try:
                await link.plainly(_DIRTY)
                await link.connection.autocommit(True)
            except BaseException:
                link.close()
                raise
            self._link = link
        return self._link

    async def _fetch(self, statement: str) -> Sequence[Sequence[Any]]:
        sql, values = self._statements[statement].bind({})
        return (await (await self._connected()).execute(sql, values)).rows or ()

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
