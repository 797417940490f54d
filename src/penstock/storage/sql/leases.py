"""Leases: the numbers of claims. They only grow, and no two are alike (C1).

A number is the time in milliseconds, a counter, and the number of this server among those that
opened the store. The time is the database's, so claims of different servers follow one
another too.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Leases", "make_receipt", "read_receipt"]

from penstock.model.delivery import Receipt
from penstock.model.message import MessageId

#: 2020-01-01, in epoch milliseconds: numbers have to fit 63 bits.
_EPOCH_MS: Final = 1_577_836_800_000
_COUNTER_BITS: Final = 10
_SERVER_BITS: Final = 10


class Leases:
    """Gives numbers out."""

    def __init__(self, server: int) -> None:
        self._server = server & ((1 << _SERVER_BITS) - 1)
        self._last = 0

    def next(self, now: int) -> int:
        """A number larger than any that this server gave out."""
        self._last = max(self._last + 1, max(now - _EPOCH_MS, 1) << _COUNTER_BITS)
        return self._last << _SERVER_BITS | self._server


def make_receipt(queue: int, rank: int, lease: int, message: MessageId) -> Receipt:
    """The receipt of a delivery: where to find it, and which claim it stands for."""
    return Receipt(f"{queue:x}-{rank}-{lease:x}-{message:x}")


def read_receipt(receipt: str) -> tuple[int, int, int, MessageId] | None:
    """Queue, rank, lease and message of a receipt; None: it is none of ours."""
    parts = receipt.split("-")
    if len(parts) != 4 or any(len(part) > 16 or not part.isalnum() for part in parts):
        return None
    try:
        queue, rank, lease, message = (int(part, 16) for part in parts)
    except ValueError:
        return None
    if queue >= 1 << 31 or rank > 9 or lease >= 1 << 63 or message >= 1 << 63:
        return None
    return queue, rank, lease, MessageId(message)
