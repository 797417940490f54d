"""Failover: several servers of one store, of which one is in use at a time.

It only chooses the server of the next exchange, and gives up an exchange whose server hangs while
another one writes (``hung_servers``). ``penstock.client.calling`` decides whether a request is sent
again, by the same rules as with one server, so no call takes effect twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from penstock.client.connection import ConnectionLost
from penstock.client.http import Reply
from penstock.client.hung_servers import HungServers
from penstock.client.transport import Exchanges, Request

__all__ = ["Failover"]

#: A server, or the proxy before it, that says that it is not available.
_UNAVAILABLE: Final = frozenset({502, 503, 504})


class Failover:
    """Exchanges with the first server that answers; the next one after a failure."""

    def __init__(self, transports: Sequence[Exchanges], path: str = "") -> None:
        """``path`` is the prefix of the servers' paths."""
        self._transports = tuple(transports)
        self._hung = HungServers(self._transports, path, self._use)
        self._current = 0
        #: The last exchange failed. While servers take over from each other, trying one after the
        #: other, with a pause before each, would take seconds longer than the take-over.
        self._failed = False
        self._search: asyncio.Task[None] | None = None
        self.is_closed = False
        """Whether the client was closed."""

    async def exchange(self, request: Request) -> Reply:
        """Send the request once, to the server in use; ``ConnectionLost`` if no reply comes."""
        if self._failed:
            await self._find_writer()
        used = self._current
        try:
            async with self._hung.watched(used, request):
                reply = await self._transports[used].exchange(request)
        except ConnectionLost:
            self._leave(used)
            raise
        if reply.status in _UNAVAILABLE:
            self._leave(used)
        else:
            self._failed = False
        return reply

    async def close(self) -> None:
        """Close the connections to all servers."""
        self.is_closed = True
        if self._search is not None:
            self._search.cancel()
        await self._hung.close()
        await asyncio.gather(*(transport.close() for transport in self._transports))

    def _use(self, server: int) -> None:
        self._current = server

    async def _find_writer(self) -> None:
        """Ask all servers which of them writes. Calls that fail together ask once."""
        if self._search is None:
            self._search = asyncio.create_task(self._hung.find_writer(), name="penstock-failover")
            self._search.add_done_callback(self._searched)
        await asyncio.wait((self._search,))

    def _searched(self, search: asyncio.Task[None]) -> None:
        del search
        self._search = None

    def _leave(self, used: int) -> None:
        self._failed = True
        # Several calls fail together when a server stops; only the first of them moves on.
        if used == self._current:
            count = len(self._transports)
            others = [(used + step) % count for step in range(1, count)]
            # A server that hung may still do so, which would take seconds to notice again.
            lively = [server for server in others if not self._hung.was_silent(server)]
            self._current = (lively or others)[0]
