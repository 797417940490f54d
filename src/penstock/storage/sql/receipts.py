"""Receipts: locate a delivery, name its claim, and prove that this store issued them (S1, T1).

All receipts of a claim share a prefix: the queue, the rank, the claim number, and a 64-bit tag
that only servers of this store can compute. So a consumer cannot derive the receipts of another
consumer from its own. The message id follows.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from penstock.model.delivery import Receipt

__all__ = ["Receipts"]

_PLACE: Final = struct.Struct("<QQQ")
_TAG_BYTES: Final = 8
#: Cached claims, so that settling the deliveries of a claim one by one verifies its tag once.
_REMEMBERED: Final = 1_024


class Receipts:
    """Makes and reads the receipts of one store."""

    def __init__(self, key: bytes) -> None:
        self._key = key
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
