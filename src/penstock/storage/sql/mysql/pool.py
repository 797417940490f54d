"""A pool of connections, each with a transaction from its first statement on, or without any.

Whoever needs a transaction gets a connection with autocommit off, which saves a BEGIN; whoever
only reads gets one with it on, which saves a COMMIT. A connection goes back only if nothing is
open on it and every reply was read. When one is lost the idle ones are closed too: the server
has likely gone, and nobody should find that out ten times.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from penstock.storage.sql.mysql.link import Connector, Link

__all__ = ["IDLE_S", "Pool"]

#: Seconds that a connection may stay unused; the server ends it after two minutes.
IDLE_S: Final = 60.0


class Pool:
    """At most so many connections at a time; who finds none free waits."""

    def __init__(
        self, connector: Connector, size: int, opened: Callable[[], None], patience_s: float
    ) -> None:
        self._connector = connector
        #: Seconds that a caller waits for a connection that is free.
        self._patience_s = patience_s
        #: Called when a connection was opened.
        self._opened = opened
        self._free = asyncio.Semaphore(size)
        #: Those last used at the end, with the time of that.
        self._idle: list[tuple[Link, float]] = []

    async def take(self, *, autocommit: bool) -> Link:
        """A connection on which nothing is open."""
        if self._free.locked():
            async with asyncio.timeout(self._patience_s):
                await self._free.acquire()
        else:
            await self._free.acquire()  # Without waiting, and without a timer.
        try:
            link = self._pick(autocommit=autocommit)
            if link is None:
                link = await self._connector.connect()
                self._opened()
            try:
                await link.autocommit(autocommit)
            except BaseException:
                link.close()
                raise
        except BaseException:
            self._free.release()
            raise
        return link

    def give_back(self, link: Link) -> None:
        """Nothing is open on the connection: the next one may have it."""
        self._idle.append((link, time.monotonic()))
        self._free.release()

    def discard(self, link: Link) -> None:
        """Close a connection of which nobody knows what is under way on it."""
        link.close()
        self._free.release()

    def close_idle(self) -> None:
        """Close what is not in use."""
        for link, _ in self._idle:
            link.close()
        self._idle.clear()

    async def close(self) -> None:
        """Take leave of the server. Who still has a connection closes it by giving it back."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(link.part() for link, _ in idle))

    def _pick(self, *, autocommit: bool) -> Link | None:
        """The connection used last, better one that need not be switched."""
        oldest = time.monotonic() - IDLE_S
        while self._idle and self._idle[0][1] < oldest:
            self._idle.pop(0)[0].close()
        fitting = [
            i
            for i, (link, _) in enumerate(self._idle)
            if link.connection.get_autocommit() is autocommit
        ]
        return self._idle.pop(fitting[-1] if fitting else -1)[0] if self._idle else None
