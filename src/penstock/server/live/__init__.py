"""Live counts of all queues, computed once for all who watch, and their recent past.

::

    engine ─ counted ─▶ changes ─▶ LiveStats ─ counts of changed queues ─▶ Board ─▶ viewers
                                      │ every second while anybody watches,        (one text
                                      │ else every ten                              for all)
                                      └─▶ Histories: an hour by the second, a day by the minute
"""

from __future__ import annotations

from penstock.server.live.board import COLUMNS, Board
from penstock.server.live.feed import LiveStats
from penstock.server.live.history import HISTORY_COLUMNS

__all__ = ["COLUMNS", "HISTORY_COLUMNS", "Board", "LiveStats"]
