"""Leases: the numbers of claims. They only grow, and no two are alike (C1).

A number is the time in milliseconds, a counter, and the number of this server among those that
opened the store. The time is the database's, so claims of different servers follow one
another too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from penstock.model.message import MessageId

__all__ = ["Leases", "read_receipt", "receipt_prefix"]

#: 2020-01-01, in epoch milliseconds: numbers have to fit 63 bits.
_EPOCH_MS: Final = 1_577_836_800_000
_COUNTER_BITS: Final = 10
_SERVER_BITS: Final = 10


class Leases:
    """Gives numbers out."""

    def __init__(self, server: int) -> None:
        self._server = server & ((1 << _SERVER_BITS) - 1)
        self._last = 0

    def next(self, now: int, above: int = 0) -> int:
        """A number larger than any that this server gave out, and than ``above``.

        That is the last claim of the same delivery, which a server may have given out whose
        clock is a few milliseconds ahead.
        """
        time = max(now - _EPOCH_MS, 1) << _COUNTER_BITS
        self._last = max(self._last + 1, time, (above >> _SERVER_BITS) + 1)
        return self._last << _SERVER_BITS | self._server


def receipt_prefix(queue: int, rank: int, lease: int) -> str:
    """What the receipts of one claim begin with; the message id in hex follows.

    A receipt says where to find the delivery, and which claim it stands for.
    """
    return f"{queue:x}-{rank}-{lease:x}-"


def read_receipt(receipt: str) -> tuple[int, int, int, MessageId] | None:
    """Queue, rank, lease and message of a receipt; None: it is none of ours."""
    claim, _, text = receipt.rpartition("-")
    known = _claim(claim)
    message = _number(text, 63)
    return None if known is None or message is None else (*known, MessageId(message))


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
