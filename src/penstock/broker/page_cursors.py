"""Cursors of pages, as callers keep them: a position in a queue, and which store it is of (A1).

An engine's cursor is a number. In another store, or in a restored one, the same number is another
place, so browsing on from it would silently leave deliveries out. Callers are given
``<number>-<mark>``, where the mark is a hash of the store's identity. A cursor without a mark comes
from an older Penstock and is taken as it is.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from penstock.errors import BadInput, OtherStore
from penstock.model.identity import StoreIdentity

__all__ = ["check_cursor", "open_cursor", "seal_cursor"]

_MARK_BYTES: Final = 8
#: A claim number in hex, 60 bits, and the mark.
_CURSOR: Final = re.compile(rf"([0-9a-f]{{1,15}})(?:-([0-9a-f]{{{2 * _MARK_BYTES}}}))?")


def check_cursor(cursor: object) -> None:
    """Refuse what no page can have given."""
    if type(cursor) is not str or _CURSOR.fullmatch(cursor) is None:
        raise BadInput("cursor is what the page before gave.", field="cursor")


def seal_cursor(number: str, store: StoreIdentity) -> str:
    """The cursor for the caller, of what the engine gave."""
    return f"{number}-{_mark(store)}"


def open_cursor(cursor: str, store: StoreIdentity) -> str:
    """The engine's part of a cursor that was checked; ``OtherStore`` if it is of another store."""
    number, _, mark = cursor.partition("-")
    if mark and mark != _mark(store):
        raise OtherStore(
            "The cursor belongs to another store, or to this one before it was restored or copied. "
            "Begin with the first page again.",
            field="cursor",
        )
    return number


def _mark(store: StoreIdentity) -> str:
    whole = f"{store.store}/{store.epoch}".encode()
    return hashlib.blake2b(whole, digest_size=_MARK_BYTES).hexdigest()
