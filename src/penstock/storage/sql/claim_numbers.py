"""Claim numbers, the leased server numbers in them, and the receipts that carry them.

A claim number is unique and only grows (C1). It consists of the time in milliseconds, a counter,
and the number of this server, which no other live server has. The time is the database's, so
claims of different servers are ordered too. If two numbers collide nevertheless, for example
because a clock was set back, the second claim fails to insert its row and is retried with the next
number.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from math import inf
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

from penstock.errors import StoreBusy
from penstock.model.delivery import Receipt
from penstock.storage.copied_receipts import Claim
from penstock.storage.sql.database import Session

__all__ = [
    "LEASE_MS",
    "MAX_SERVERS",
    "USE_S",
    "Leases",
    "NoServerNumber",
    "Receipts",
    "ServerNumbers",
]

#: 2020-01-01, in epoch milliseconds: numbers have to fit 63 bits.
_EPOCH_MS: Final = 1_577_836_800_000
_COUNTER_BITS: Final = 10
_SERVER_BITS: Final = 10
#: Server numbers are 1 to this.
MAX_SERVERS: Final = (1 << _SERVER_BITS) - 1


class NoServerNumber(Exception):
    """This server may not issue claim numbers until it has leased a server number."""


def steady_s() -> float:
    """Seconds of a clock that never goes back and includes the time in suspend."""
    boottime: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class Leases:
    """Issues claim numbers while this server has a server number."""

    def __init__(self, server: int | None = None, steady: Callable[[], float] = steady_s) -> None:
        self.steady = steady
        self._server = 0
        self._until = -inf
        self._last = 0
        if server is not None:
            self.hold(server, inf)

    @property
    def usable(self) -> bool:
        """Whether claim numbers may be issued now."""
        return self.steady() < self._until

    def hold(self, server: int, until: float) -> None:
        """Use a server number until that time of the steady clock."""
        if not 1 <= server <= MAX_SERVERS:
            raise ValueError(f"{server} is not a server number")
        self._server, self._until = server, until

    def lapse(self) -> None:
        """Stop using the server number."""
        self._until = -inf

    def next(self, now: int, above: int = 0) -> int:
        """A number larger than any that this server issued, and than ``above``.

        ``above`` is the last claim number of the delivery, which may come from a server whose
        clock is a few milliseconds ahead. Raises ``NoServerNumber``.
        """
        if not self.usable:
            raise NoServerNumber
        time = max(now - _EPOCH_MS, 1) << _COUNTER_BITS
        self._last = max(self._last + 1, time, (above >> _SERVER_BITS) + 1)
        return self._last << _SERVER_BITS | self._server


# -- server numbers ------------------------------------------------------------------
# A server leases its number for a minute of the database's clock and stops using it well before the
# lease ends, so there is a pause before another server can lease it. A server without a number,
# because the lease was not renewed or the database failed over and may not know it, issues no claim
# numbers: the transaction is rolled back, and retried once a number is leased.

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


# -- receipts ------------------------------------------------------------------------
# A receipt locates a delivery, names its claim, and proves that this store issued it (S1, T1). All
# receipts of a claim share a prefix: the queue, the rank, the claim number, and a 64-bit tag that
# only servers of this store can compute. So a consumer cannot derive the receipts of another one
# from its own. The message id follows.

_PLACE: Final = struct.Struct("<QQQ")
_TAG_BYTES: Final = 8
#: Cached claims, so that settling the deliveries of a claim one by one verifies its tag once.
_REMEMBERED: Final = 1_024


class Receipts:
    """Makes and reads the receipts of one store."""

    def __init__(self, key: bytes, copied: Mapping[str, Claim] = MappingProxyType({})) -> None:
        """``copied`` are claims that keep a receipt from before a copy."""
        self._key = key
        self._copied = copied
        self._claim = lru_cache(_REMEMBERED)(self._read_claim)

    def prefix(self, queue: int, rank: int, lease: int) -> str:
        """The prefix of the receipts of one claim; the message id in hex follows."""
        place = _PLACE.pack(queue, rank, lease)
        tag = hashlib.blake2b(place, digest_size=_TAG_BYTES, key=self._key).hexdigest()
        return f"{queue:x}-{rank}-{lease:x}-{tag}-"

    def read(
        self, receipts: Iterable[Receipt]
    ) -> dict[tuple[int, int, int], list[tuple[Receipt, int]]]:
        """Receipts and their messages, by queue, rank and lease.

        Receipts that this store did not issue are dropped.
        """
        found: dict[tuple[int, int, int], list[tuple[Receipt, int]]] = {}
        by_claim: dict[str, list[tuple[Receipt, int]] | None] = {}
        for receipt in receipts:
            if receipt in self._copied:
                queue, rank, lease, copied = self._copied[receipt]
                found.setdefault((queue, rank, lease), []).append((receipt, copied))
                continue
            claim, _, text = receipt.rpartition("-")
            if claim not in by_claim:
                known = self._claim(claim)
                by_claim[claim] = None if known is None else found.setdefault(known, [])
            messages, message = by_claim[claim], _number(text, 63)
            if messages is not None and message is not None:
                messages.append((receipt, message))
        return {claim: messages for claim, messages in found.items() if messages}

    def _read_claim(self, text: str) -> tuple[int, int, int] | None:
        """Queue, rank and lease of a claim; None if the tag is wrong."""
        parts = text.split("-")
        if len(parts) != 4:
            return None
        queue, rank, lease = _number(parts[0], 31), _number(parts[1], 4), _number(parts[2], 63)
        if queue is None or rank is None or lease is None:
            return None
        return (queue, rank, lease) if self.prefix(queue, rank, lease) == f"{text}-" else None


def _number(text: str, bits: int) -> int | None:
    """Parse a number in canonical hex of at most ``bits`` bits; None otherwise."""
    try:
        number = int(text, 16) if len(text) <= 16 else -1
    except ValueError:
        return None
    return number if 0 <= number < 1 << bits and f"{number:x}" == text else None
