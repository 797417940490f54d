"""Idempotency ids: a retried request is stored once (P4).

A publish has one id for the whole batch: the client's random prefix and a counter. No other
client generates the same one. If the server has seen an id before, that was an earlier attempt
of the same request, so the caller, which called once, does not see ``repeated``.
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
        # Of fixed width, so that the keys of a store are written in order, which is cheaper.
        self._form = self._prefix.replace("%", "%%") + "-%010x"
        self._count = 0

    def next(self) -> str:
        """A new id."""
        if os.getpid() != self._process:
            # A forked child that kept counting would reuse the parent's ids, and lose messages.
            self._begin()
        number = self._count
        self._count += 1
        return self._form % number
