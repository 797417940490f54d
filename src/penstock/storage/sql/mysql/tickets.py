"""Tickets: how far the log is settled, while publishes are open (L2).

A publishing transaction first writes a ticket, then reads the highest committed segment, its
*base*, and writes that to the ticket. A dirty read sees the tickets of open transactions too, a
normal read only those of committed ones. ``stable`` reads, in this order, (a) the committed
tickets, (b) the highest number assigned, (c) all tickets, dirty. A ticket in (c) but not in (a)
counts as open. While one of them has no base yet, all three reads are repeated.

Why nothing appears at or below the result of ``stable``: take a transaction that appends segment
``n`` and commits. Its ticket was visible to dirty reads before ``n`` was assigned, and its base is
less than ``n``: AUTO_INCREMENT only grows.

- Not in (c), because it was not written yet: then ``n`` was assigned later still, and is above
  (b).
- Not in (c) because it was cleared, or in (a) too: then the transaction has committed, and a
  later read of the log sees its segments.
- In (c) but not in (a): the settled part ends at its base, below ``n``.

Why the end of the log never moves back, whichever server reads it: take an entry that a reader has
seen as settled, and a ticket that counts as open for a later reader. The ticket was not in (c) of
the first reader, or the entry would not be above its base. So its base was read after (c). The
transaction of the entry counted as ended in (c), so it had committed before, and the base is not
below the entry.

A number is assigned before its row is visible, so (b) from rows alone could be too low. The proof
still holds, because the ticket is visible even earlier. Nevertheless the server's counter is read
as well: when retention has emptied the log there are no rows. A transaction that rolls back
removes its rows in reverse order, the ticket last.

A server that has published much, or sees many committed tickets, clears them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from penstock.errors import PenstockError
from penstock.storage.sql.database import LOOKS, ConnectionLost, RetryTransaction, Stable
from penstock.storage.sql.error_mapping import raise_as
from penstock.storage.sql.mysql.binding import Statement
from penstock.storage.sql.mysql.connection import IDLE_S, Connector, Link
from penstock.storage.sql.mysql.error_mapping import translate

__all__ = ["Tickets"]

#: The number of tickets, written here or seen, after which they are cleared.
_MANY: Final = 200
_DIRTY: Final = "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"
#: The base of a ticket whose transaction has not read it yet.
_NO_BASE: Final = -1
#: Applies to the next statement only. It has no values either.
_COMMITTED: Final = ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", ())


class Tickets:
    """The tickets of a store, read on a dedicated connection."""

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
                # In order, in one round trip.
                _, ended, given, seen = await link.together(
                    [_COMMITTED, self._tickets, self._given, self._tickets]
                )
            if all(base != _NO_BASE for _, base in seen.rows or ()):
                break
        else:
            raise RetryTransaction("a publish has begun and has not announced its segment")
        committed = {number for number, _ in ended.rows or ()}
        if len(committed) >= _MANY:
            self._clear_soon()
        ((last,),) = given.rows or ()
        tickets = seen.rows or ()
        last = max([int(last), *(base for _, base in tickets)])
        oldest = min((base for number, base in tickets if number not in committed), default=None)
        return Stable(last if oldest is None else min(last, oldest), last, oldest)

    def written(self) -> None:
        """Count one more ticket whose transaction has ended."""
        self._written += 1
        if self._written >= _MANY:
            self._clear_soon()

    async def clear(self) -> None:
        """Remove the tickets of all committed transactions, of all servers."""
        async with self._linked() as link:
            _, ended = await link.together([_COMMITTED, self._tickets])
            numbers = [number for number, _ in ended.rows or ()]
            for sql, values in self._clear.all({"numbers": numbers}):
                await link.execute(sql, values)

    async def close(self) -> None:
        """Close the connection."""
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
            # Tickets that cannot be cleared now are cleared next time.
            with suppress(RetryTransaction, ConnectionLost, PenstockError):
                await self.clear()
        finally:
            self._clearing = None

    @asynccontextmanager
    async def _linked(self) -> AsyncIterator[Link]:
        """The connection, for one caller at a time; any error closes it."""
        async with self._alone:
            try:
                yield await self._connected()
            except BaseException as error:  # noqa: BLE001  (raised again)
                self._drop()
                raise_as(translate(error), error)

    async def _connected(self) -> Link:
        idle_s, self._used_at = time.monotonic() - self._used_at, time.monotonic()
        if idle_s > IDLE_S:
            # The server closes idle connections.
            self._drop()
        if self._link is None:
            link = await self._connector.connect()
            try:
                await link.execute_text(_DIRTY)
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
