"""Writes of many batches under one id: the run that began one, and whether it is finished."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

__all__ = ["MAX_WRITE_ID_BYTES", "WRITE_KEPT_MS", "Write"]

MAX_WRITE_ID_BYTES: Final = 256
#: How long a write is remembered: longer than its batches.
WRITE_KEPT_MS: Final = 30 * 24 * 3600 * 1000


class Write(Struct, frozen=True, kw_only=True):
    """The record of a write to one topic."""

    id: str
    run: str
    """The run that began it."""
    number: int | None = None
    """The number of the write, among those that follow each other under one id, such as the
    micro-batches of a query. Only the last is remembered."""
    begun_at: int
    rows: int | None = None
    """How many messages it has published; None: not finished."""
    asked_at: int = 0
    """In a reply, the server's time."""
