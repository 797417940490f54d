"""Tickets: how far the log is settled, while publishes are open (L2).

A publishing transaction first writes a ticket, then reads the highest segment that is committed,
its *base*, and writes that on the ticket. A dirty read sees the tickets of open transactions too,
a plain one only those of committed ones. ``stable`` reads (a) the tickets that are committed,
(b) the highest number given out, (c) the tickets, dirty, in this order. A ticket that is in (c)
but not in (a) counts as open. While one of them has no base yet, all is read again.

Why nothing appears at or below what ``stable`` gives: take a transaction that appends segment
``n`` and commits. Its ticket was there, if only for a dirty read, before ``n`` was given out, and
its base is less than ``n``: AUTO_INCREMENT only rises.

- Not in (c), because it was not written yet: then ``n`` was given out later still, and is above
  what (b) saw.
- Not in (c), because it was cleared away, or in (a) too: then the transaction has committed, and
  whoever reads the log after this sees what it appended.
- In (c) but not in (a): what is settled ends at its base, below ``n``.

Why the end of the log never falls, whichever server is asked: take an entry that a reader has
seen as settled, and a ticket that counts as open for a later reader. The ticket was not in (c) of
the first reader, or the entry would not be above its base. So its base was read after (c). The
transaction of the entry counted as ended in (c), which means that it had committed before, so
the base is not below the entry.

A number is given out before its row is there, so (b) by the rows alone could be too low. That
does no harm to the above, as the ticket is there even earlier. Still the server is asked for its
counter as well: when retention has emptied the log its rows say nothing. A transaction that rolls
back takes its rows with it in reverse order, the ticket last.

Committed tickets are cleared away now and then, by whoever has published much or sees many.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from penstock.errors import PenstockError
from penstock.storage.sql.database import LOOKS, Again, Lost, Stable
from penstock.storage.sql.failing import raise_as
from penstock.storage.sql.mysql.failures import translate
from penstock.storage.sql.mysql.link import Connector, Link
from penstock.storage.sql.mysql.pool import IDLE_S
from penstock.storage.sql.mysql.shapes import Statement

__all__ = ["Tickets"]

#: So many tickets, written here or seen, are cleared away.
_MANY: Final = 200
_DIRTY: Final = "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"
#: On the ticket of a transaction that has not read its base yet.
_NO_BASE: Final = -1
#: For the next statement only, which has no values either.
_COMMITTED: Final = ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", ())


class Tickets:
    """The tickets of a store, on a connection of their own."""

    def __init__(self, connector: Connector, statements: dict[str, Statement]) -> None:
        self._connector = connector
        self._given = statements["given"].bind({})
        self._tickets = statements["tickets"].bind({})
        self._clear = statements["clear_tickets"]
        self._link: Link | None = None
        self._used_at = 0.0
        self._alone = asyncio.Lock()
        self._written = 0
        self._clearing: asyncio.Task[None] | None = None

    async def stable(self) -> Stable:
        """How far the log is settled."""
        for _ in range(LOOKS):
            async with self._linked() as link:
                # One after the other, in one round trip.
                _, ended, given, seen = await link.together(
                    [_COMMITTED, self._tickets, self._given, self._tickets]
                )
            if all(base != _NO_BASE for _, base in seen.rows or ()):
                break
        else:
            raise Again("a publish has begun and does not say where")
        committed = {number for number, _ in ended.rows or ()}
        if len(committed) >= _MANY:
            self._clear_soon()
        ((last,),) = given.rows or ()
        tickets = seen.rows or ()
        last = max([int(last), *(base for _, base in tickets)])
        oldest = min((base for number, base in tickets if number not in committed), default=None)
        return Stable(last if oldest is None else min(last, oldest), last, oldest)

    def written(self) -> None:
        """One more ticket was written, and its transaction has ended."""
        self._written += 1
        if self._written >= _MANY:
            self._clear_soon()

    async def clear(self) -> None:
        """Remove the tickets of all transactions that have committed, whosever they are."""
        async with self._linked() as link:
            _, ended = await link.together([_COMMITTED, self._tickets])
            numbers = [number for number, _ in ended.rows or ()]
            for sql, values in self._clear.all({"numbers": numbers}):
                await link.execute(sql, values)

    async def close(self) -> None:
        """Take leave of the server."""
        if self._clearing is not None:
            await asyncio.wait([self._clearing])
        async with self._alone:
            link, self._link = self._link, None
            if link is not None:
                await link.part()

    def _clear_soon(self) -> None:
        if self._clearing is None:
            self._written = 0
            self._clearing = asyncio.get_running_loop().create_task(self._try_to_clear())

    async def _try_to_clear(self) -> None:
        try:
            # What cannot be cleared now is cleared with the next.
            with suppress(Again, Lost, PenstockError):
                await self.clear()
        finally:
            self._clearing = None

    @asynccontextmanager
    async def _linked(self) -> AsyncIterator[Link]:
        """The connection, for one at a time; whatever fails on it ends it."""
        async with self._alone:
            try:
                yield await self._connected()
            except BaseException as error:  # noqa: BLE001  (raised again)
                self._drop()
                raise_as(translate(error), error)

    async def _connected(self) -> Link:
        idle_s, self._used_at = time.monotonic() - self._used_at, time.monotonic()
        if idle_s > IDLE_S:
            # The server ends what is idle.
            self._drop()
        if self._link is None:
            link = await self._connector.connect()
            try:
                await link.plainly(_DIRTY)
                await link.autocommit(True)
            except BaseException:
                link.close()
                raise
            self._link = link
        return self._link

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
