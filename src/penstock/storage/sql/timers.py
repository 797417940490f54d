"""Timers: when to ask the database whether a queue has due, lapsed or expired deliveries.

A claim first moves what is due, which costs a statement. So a server remembers the next due time
of every queue and asks then; it also asks at intervals, because other servers write too. A
waiting caller has asked already (``next_due``). Only latency depends on this (C5): deliveries are
checked again before they are handed out.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Timers"]

#: How long a server relies on its memory.
_TRUST_MS: Final = 200


class Timers:
    """Due times by queue number and side (true for the dead letters)."""

    def __init__(self) -> None:
        #: When the database was last asked, and the next known due time.
        self._known: dict[tuple[int, bool], tuple[int, int | None]] = {}

    def is_due(self, side: tuple[int, bool], now: int) -> bool:
        """Whether to ask the database."""
        known = self._known.get(side)
        if known is None:
            return True
        asked_at, due = known
        return (due is not None and due <= now) or not 0 <= now - asked_at < _TRUST_MS

    def asked(self, side: tuple[int, bool], now: int, due: int | None) -> None:
        """Record the database's answer."""
        self._known[side] = (now, due)

    def note(self, side: tuple[int, bool], until: int) -> bool:
        """Record a due time; returns whether it is earlier than the known one."""
        known = self._known.get(side)
        if known is None:
            return True
        asked_at, due = known
        if due is not None and due <= until:
            return False
        self._known[side] = (asked_at, until)
        return True

    def forget(self) -> None:
        """Forget all due times, so that the next claims ask."""
        self._known.clear()
