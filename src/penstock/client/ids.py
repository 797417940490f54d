"""Idempotency ids: a request that is repeated is stored once (P4).

A publish has one for the whole batch. An id is the client's random prefix and a counter. No other
client makes the same one, so where the server has seen it before, that was an earlier try of the
same request, and the caller, who called once, is not told.
"""

from __future__ import annotations

import os

from penstock.client.options import IdPrefix

__all__ = ["Ids"]


class Ids:
    """The ids of one client."""

    def __init__(self, prefix: IdPrefix) -> None:
        self._draw = prefix
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._prefix = self._draw()
        # Of one width, so that the keys of a store grow in order, which is cheaper.
        self._form = self._prefix.replace("%", "%%") + "-%010x"
        self._count = 0

    def next(self) -> str:
        """An id that was never used."""
        if os.getpid() != self._process:
            # A forked child that counted on would reuse the parent's ids, and lose messages.
            self._begin()
        number = self._count
        self._count += 1
        return self._form % number
