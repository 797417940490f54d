"""Server numbers: leased, so that no two live servers have the same one (C1).

The number of a server is part of every claim number that it issues. A server leases it for a
minute of the database's clock and stops using it well before the lease ends, so there is a pause
before another server can lease it. A server without a number, because the lease was not renewed
or the database failed over and may not know it, issues no claim numbers: the transaction is
rolled back, and retried once a number is leased.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from penstock.errors import StoreBusy
from penstock.storage.sql.database import Session
from penstock.storage.sql.leases import MAX_SERVERS, Leases

__all__ = ["LEASE_MS", "USE_S", "ServerNumbers"]

T = TypeVar("T")

#: How long a number is leased, and how long of that it is used. The difference covers open
#: transactions, and clocks that run at different speeds.
LEASE_MS: Final = 60_000
USE_S: Final = 40.0


class _Run(Protocol):
    """Runs a function in a transaction."""

    async def __call__(
        self, act: Callable[[Session], Awaitable[T]], *, transaction: bool = False
    ) -> T: ...


class ServerNumbers:
    """The number of this server."""

    def __init__(self, run: _Run, leases: Leases, token: Callable[[], int]) -> None:
        self._run = run
        self._leases = leases
        self._token = token
        self._number: int | None = None
        self._holder = 0
        self._one_at_a_time = asyncio.Lock()

    async def lease(self) -> None:
        """Lease a number, the previous one if possible; no-op while the current one is usable.

        Raises ``StoreBusy`` if live servers have all of them.
        """
        async with self._one_at_a_time:
            if self._leases.usable:
                return
            asked_at = self._leases.steady()
            self._number = await self._run(self._renew_or_take, transaction=True)
            self._leases.hold(self._number, asked_at + USE_S)

    async def release(self, session: Session) -> None:
        """Stop using the number, and free it for other servers."""
        self._leases.lapse()
        if self._number is not None:
            await session.run(
                "renew_server_number", number=self._number, holder=self._holder, until=0
            )

    async def _renew_or_take(self, session: Session) -> int:
        ((now,),) = await session.fetch("now")
        until = int(now) + LEASE_MS
        if self._number is not None and await session.run(
            "renew_server_number", number=self._number, holder=self._holder, until=until
        ):
            return self._number
        self._holder = self._token()
        free = await session.fetch("free_server_number", now=int(now))
        if free:
            number = int(free[0][0])
            await session.run("take_server_number", number=number, holder=self._holder, until=until)
            return number
        ((last,),) = await session.fetch("last_server_number")
        number = int(last) + 1
        if number > MAX_SERVERS:
            raise StoreBusy(f"All {MAX_SERVERS} server numbers are in use by live servers.")
        await session.run("add_server_number", number=number, holder=self._holder, until=until)
        return number
