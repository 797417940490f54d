"""A pool of connections, each with autocommit on or off.

A transaction gets a connection with autocommit off, which saves a BEGIN; a read gets one with
autocommit on, which saves a COMMIT. A connection is returned only if no transaction is open on it
and every reply was read. When one is lost the idle ones are closed too: the server is probably
gone, and each caller would otherwise discover that separately.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from penstock.storage.sql.mysql.link import Connector, Link

__all__ = ["IDLE_S", "Pool"]

#: Seconds that a connection may stay idle; the server closes it after two minutes.
IDLE_S: Final = 60.0


class Pool:
    """A bounded number of connections; callers wait if all are in use."""

    def __init__(
        self, connector: Connector, size: int, opened: Callable[[], None], patience_s: float
    ) -> None:
        self._connector = connector
        #: Seconds that a caller waits for a free connection.
        self._patience_s = patience_s
        #: Called after a connection was opened.
        self._opened = opened
        self._free = asyncio.Semaphore(size)
        #: Idle connections with the time of their last use, most recent last.
        self._idle: list[tuple[Link, float]] = []

    async def take(self, *, autocommit: bool) -> Link:
        """A connection without an open transaction."""
        if self._free.locked():
            async with asyncio.timeout(self._patience_s):
                await self._free.acquire()
        else:
            await self._free.acquire()  # Immediate, so no timer is needed.
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
        """Return a connection without an open transaction."""
        self._idle.append((link, time.monotonic()))
        self._free.release()

    def discard(self, link: Link) -> None:
        """Close a connection whose state is unknown."""
        link.close()
        self._free.release()

    def close_idle(self) -> None:
        """Close the idle connections."""
        for link, _ in self._idle:
            link.close()
        self._idle.clear()

    async def close(self) -> None:
        """Close the idle connections properly."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(link.part() for link, _ in idle))

    def _pick(self, *, autocommit: bool) -> Link | None:
        """The connection used last, preferably one with the right autocommit mode."""
        oldest = time.monotonic() - IDLE_S
        while self._idle and self._idle[0][1] < oldest:
            self._idle.pop(0)[0].close()
        fitting = [
            i
            for i, (link, _) in enumerate(self._idle)
            if link.connection.get_autocommit() is autocommit
        ]
        return self._idle.pop(fitting[-1] if fitting else -1)[0] if self._idle else None
