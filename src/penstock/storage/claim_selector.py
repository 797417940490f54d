"""The filter of one claim, evaluated over waiting deliveries: a bounded number, in slices."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.filters import Selection
from penstock.model.limits import MAX_CLAIM_SCAN
from penstock.model.message import Message
from penstock.storage.turns import SLICE_S

__all__ = ["ClaimSelector"]


class ClaimSelector:
    """Decides which deliveries a claim takes, and remembers its decisions by offset.

    An entry of the log never changes, so a scan that starts again after a slice, or after a
    conflict, evaluates nothing twice.
    """

    __slots__ = ("_decided", "_end", "_ends", "_has_decided", "_matches", "_slice_s", "_time")

    def __init__(self, where: Selection, slice_s: float = SLICE_S, end: int | None = None) -> None:
        self._matches: Final = where.matches
        #: Messages from this id on are not taken: they were published during the claim, perhaps by
        #: the claim itself, as copies of deliveries that it failed.
        self._end = end
        self._slice_s = slice_s
        #: The loop's clock, so that a simulated loop decides where slices end.
        self._time = asyncio.get_running_loop().time
        self._decided: dict[int, bool] = {}
        self.begin_slice()

    def begin_slice(self) -> None:
        """Begin a slice; at least one delivery can be decided in it."""
        self._ends = self._time() + self._slice_s
        self._has_decided = False

    def knows(self, message: Message) -> bool:
        """Whether the message was decided before, so that it costs nothing."""
        return message.offset in self._decided or self._is_later(message)

    @property
    def is_spent(self) -> bool:
        """Whether the claim has looked at as many deliveries as it may."""
        return len(self._decided) >= MAX_CLAIM_SCAN

    @property
    def is_slice_over(self) -> bool:
        """Whether other calls should run before the next message is decided."""
        return self._has_decided and self._time() >= self._ends

    def takes(self, message: Message) -> bool:
        """Whether the claim takes the delivery of this message."""
        if self._is_later(message):
            return False
        known = self._decided.get(message.offset)
        if known is None:
            known = self._decided[message.offset] = self._matches(message)
            self._has_decided = True
        return known

    def _is_later(self, message: Message) -> bool:
        return self._end is not None and message.id >= self._end
