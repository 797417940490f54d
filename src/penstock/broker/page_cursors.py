"""Page cursors as callers keep them: a position in a queue, and the store it belongs to (A1).

An engine's cursor is a number. In another store, or in a restored one, the same number is another
position, so continuing from it would silently skip deliveries. Callers get ``<number>-<mark>``,
where the mark is a hash of the store's identity. A cursor without a mark comes from an older
Penstock and is accepted unchecked.
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
    """Refuse a cursor that no page can have returned."""
    if type(cursor) is not str or _CURSOR.fullmatch(cursor) is None:
        raise BadInput("cursor must be one that a previous page returned.", field="cursor")


def seal_cursor(number: str, store: StoreIdentity) -> str:
    """The caller's cursor for an engine's cursor."""
    return f"{number}-{_mark(store)}"


def open_cursor(cursor: str, store: StoreIdentity) -> str:
    """The engine's part of a checked cursor; ``OtherStore`` if it belongs to another store."""
    number, _, mark = cursor.partition("-")
    if mark and mark != _mark(store):
        raise OtherStore(
            "The cursor belongs to another store, or to this one before it was restored or copied. "
            "Start again with the first page.",
            field="cursor",
        )
    return number


def _mark(store: StoreIdentity) -> str:
    whole = f"{store.store}/{store.epoch}".encode()
    return hashlib.blake2b(whole, digest_size=_MARK_BYTES).hexdigest()
