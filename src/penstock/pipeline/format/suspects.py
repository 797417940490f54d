"""Rows that may make a query fail: how many of them share a micro-batch.

A query fails as a whole, so the broker cannot tell which of its rows was the reason. All rows of a
failed batch use up one attempt. Before the last attempts they are handed out in smaller and
smaller batches, and the last time each row is alone: the row that fails then is the poison row, and
the broker moves it to the dead letters. The other rows succeed.
"""

from __future__ import annotations

from typing import Final

__all__ = ["batch_limit"]

#: Rows per batch at the last attempt but one.
_FEW: Final = 100


def batch_limit(attempts: int, max_attempts: int | None) -> int | None:
    """The most rows that a batch may have with a row at this attempt; None: any number.

    ``max_attempts`` is None if the queue has no limit.
    """
    if max_attempts is None or attempts <= 1:
        return None
    remaining = max_attempts - attempts
    if remaining <= 0:
        return 1
    return _FEW if remaining == 1 else None
