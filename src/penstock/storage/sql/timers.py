"""Timers: when it is worth asking the database whether time has anything to do in a queue.

A claim lets time act first. Asking for that costs a statement, so a server remembers of every
queue when something is due next, and asks then; and now and then anyway, because other servers
write too. Whoever waits has asked (``next_due``), and so knows. Nothing depends on it but how soon
(C5): what is handed out is checked again.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Timers"]

#: How long a server goes by what it remembers.
_TRUST_MS: Final = 200


class Timers:
    """By queue number and side (whether it is the dead letters)."""

    def __init__(self) -> None:
        #: When it was asked, and when something is due next as far as is known.
        self._known: dict[tuple[int, bool], tuple[int, int | None]] = {}

    def is_due(self, side: tuple[int, bool], now: int) -> bool:
        """Whether to ask."""
        known = self._known.get(side)
        if known is None:
            return True
        asked_at, due = known
        return (due is not None and due <= now) or not 0 <= now - asked_at < _TRUST_MS

    def asked(self, side: tuple[int, bool], now: int, due: int | None) -> None:
        """The database said when something is due next."""
        self._known[side] = (now, due)

    def note(self, side: tuple[int, bool], until: int) -> bool:
        """Something is due then; whether that is earlier than was known."""
        known = self._known.get(side)
        if known is None:
            return True
        asked_at, due = known
        if due is not None and due <= until:
            return False
        self._known[side] = (asked_at, until)
        return True

    def forget(self) -> None:
        """Ask again of every queue."""
        self._known.clear()
