"""Leases: claim numbers, which are unique and only grow (C1).

A number consists of the time in milliseconds, a counter, and the number of this server, which no
other live server has (``server_numbers``). The time is the database's, so claims of different
servers are ordered too. If two numbers collide nevertheless, for example because a clock was set
back, the second claim fails to insert its row and is retried with the next number.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Final

__all__ = ["MAX_SERVERS", "Leases", "NoServerNumber"]

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
