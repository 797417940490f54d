"""Leases: the numbers of claims. They only grow, and no two are alike (C1).

A number is the time in milliseconds, a counter, and the number of this server, which no other live
server has (``server_numbers``). The time is the database's, so claims of different servers follow
one another too. Should two be alike all the same, because a clock was set back, say, the second
claim fails to insert its row and is made again with the next number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from math import inf
from typing import Final

from penstock.model.delivery import Receipt

__all__ = ["MAX_SERVERS", "Leases", "NoServerNumber", "read_receipts", "receipt_prefix"]

#: 2020-01-01, in epoch milliseconds: numbers have to fit 63 bits.
_EPOCH_MS: Final = 1_577_836_800_000
_COUNTER_BITS: Final = 10
_SERVER_BITS: Final = 10
#: Servers have the numbers from 1 to this.
MAX_SERVERS: Final = (1 << _SERVER_BITS) - 1


class NoServerNumber(Exception):
    """This server may not issue claim numbers until it has leased a server number."""


def steady_s() -> float:
    """Seconds of a clock that never goes back, and goes on while the machine is suspended."""
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
        """Whether numbers may be issued now."""
        return self.steady() < self._until

    def hold(self, server: int, until: float) -> None:
        """Use a server number until then, by the steady clock."""
        if not 1 <= server <= MAX_SERVERS:
            raise ValueError(f"{server} is not a server number")
        self._server, self._until = server, until

    def lapse(self) -> None:
        """Use the server number no more."""
        self._until = -inf

    def next(self, now: int, above: int = 0) -> int:
        """A number larger than any that this server issued, and than ``above``.

        That is the last claim of the same delivery, which a server may have issued whose
        clock is a few milliseconds ahead. Raises ``NoServerNumber``.
        """
        if not self.usable:
            raise NoServerNumber
        time = max(now - _EPOCH_MS, 1) << _COUNTER_BITS
        self._last = max(self._last + 1, time, (above >> _SERVER_BITS) + 1)
        return self._last << _SERVER_BITS | self._server


def receipt_prefix(queue: int, rank: int, lease: int) -> str:
    """What the receipts of one claim begin with; the message id in hex follows.

    A receipt says where to find the delivery, and which claim it stands for.
    """
    return f"{queue:x}-{rank}-{lease:x}-"


def read_receipts(
    receipts: Iterable[Receipt],
) -> dict[tuple[int, int, int], list[tuple[Receipt, int]]]:
    """By queue, rank and lease, receipts and their messages; those that are none of ours are not.

    The receipts of one claim differ in their last part only.
    """
    found: dict[tuple[int, int, int], list[tuple[Receipt, int]]] = {}
    by_claim: dict[str, list[tuple[Receipt, int]] | None] = {}
    for receipt in receipts:
        claim, _, text = receipt.rpartition("-")
        if claim not in by_claim:
            known = _claim(claim)
            by_claim[claim] = None if known is None else found.setdefault(known, [])
        messages, message = by_claim[claim], _number(text, 63)
        if messages is not None and message is not None:
            messages.append((receipt, message))
    return {claim: messages for claim, messages in found.items() if messages}


@lru_cache(maxsize=1024)
def _claim(text: str) -> tuple[int, int, int] | None:
    """Queue, rank and lease, which the receipts of one claim have in common."""
    parts = text.split("-")
    if len(parts) != 3:
        return None
    queue, rank, lease = _number(parts[0], 31), _number(parts[1], 4), _number(parts[2], 63)
    if queue is None or rank is None or lease is None:
        return None
    return queue, rank, lease


def _number(text: str, bits: int) -> int | None:
    """The number that is written just so, and no longer than that."""
    try:
        number = int(text, 16) if len(text) <= 16 else -1
    except ValueError:
        return None
    return number if 0 <= number < 1 << bits and f"{number:x}" == text else None
